package rendezvous

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// end is one end of the relay, as the test plays it.
type end struct {
	t        testing.TB
	socket   *socket.Socket
	lane     *socket.Lane
	messages chan []byte     // closed with the socket
	resets   map[string]bool // streams that drop has seen a reset of
	told     chan string     // principals that have lost their right; not among messages
}

func (ts *relayServer) dial(t ticket.Ticket) *end {
	ts.c.t.Helper()
	return ts.dialURL(ts.url(t))
}

func (ts *relayServer) dialURL(rawURL string) *end {
	ts.c.t.Helper()
	return ts.dialBuffered(rawURL, 1<<16)
}

// dialBuffered connects an end that reads so many messages ahead of the test.
func (ts *relayServer) dialBuffered(rawURL string, ahead int) *end {
	ts.c.t.Helper()
	return ts.dialWith(rawURL, nil, ahead)
}

func (ts *relayServer) dialWith(rawURL string, header http.Header, ahead int) *end {
	t := ts.c.t
	t.Helper()
	s, err := socket.Dial(t.Context(), rawURL, header, socket.Config{PongTimeout: unread})
	for deadline := time.Now().Add(soon); err != nil; s, err = socket.Dial(t.Context(), rawURL, header, socket.Config{PongTimeout: unread}) {
		// On a busy machine the store may take too long. Real ends try again, too.
		refused, ok := errors.AsType[*socket.RefusedError](err)
		if !ok || refused.Status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return newEnd(t, s, ahead)
}

// newEnd is the end that has a websocket, which it closes when the test ends.
func newEnd(t testing.TB, s *socket.Socket, ahead int) *end {
	e := &end{t: t, socket: s, lane: s.NewLane(64 << 20), messages: make(chan []byte, ahead), resets: make(map[string]bool), told: make(chan string, 1024)}
	go func() {
		defer close(e.messages)
		for {
			m, err := s.Read()
			if err != nil {
				return
			}
			if f, ok := frame.Inspect(m.Bytes); ok && bytes.HasPrefix(f.StreamID, []byte(wire.PrincipalStream)) && f.Body == frame.Reset && string(f.Reason) == wire.ResetRevoked {
				e.told <- string(f.StreamID)
				m.Release()
				continue
			}
			e.messages <- bytes.Clone(m.Bytes)
			m.Release()
		}
	}()
	t.Cleanup(func() {
		s.Close()
		for range e.messages { // the reader may wait for room
		}
	})
	return e
}

// executorOf connects an executor that has streams of harnesses' principals.
func (ts *relayServer) executorOf(streams map[string]string) *end {
	ts.c.t.Helper()
	owners := make(wire.StreamOwners)
	for stream, principal := range streams {
		owners.Set([]byte(stream), ts.signer.Pseudonym(ts.c.environmentID, principal))
	}
	return ts.dialWith(ts.url(ts.ticket(ticket.Executor)), http.Header{wire.HeaderStreamOwners: {owners.Header()}}, 1<<16)
}

// executor connects an executor and waits until the store has noted it.
func (ts *relayServer) executor() *end {
	ts.c.t.Helper()
	e := ts.dial(ts.ticket(ticket.Executor))
	ts.c.waitOnline(ts.node)
	return e
}

func (ts *relayServer) harness() *end {
	ts.c.t.Helper()
	return ts.dial(ts.ticket(ticket.Harness))
}

func (c *cluster) waitOnline(node string) {
	c.t.Helper()
	c.eventually("the executor is online", func() bool {
		p, ok, err := c.st.Online(c.t.Context(), c.environmentID)
		return err == nil && ok && p.Node == node
	})
}

// eventually asks until condition is true.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			c.t.Fatalf("not within %v: %s", soon, what)
		case <-tick.C:
		}
	}
}

func (e *end) send(message []byte) {
	e.t.Helper()
	m := socket.NewMessage(len(message))
	m.Bytes = append(m.Bytes, message...)
	if err := e.lane.Send(m); err != nil {
		e.t.Fatal(err)
	}
}

// trySend sends a frame on a websocket that may have ended.
func (e *end) trySend(f frame.Frame) {
	m := socket.NewMessage(0)
	m.Bytes = f.Append(m.Bytes)
	e.lane.TrySend(m)
}

func (e *end) sendFrame(f frame.Frame) []byte {
	e.t.Helper()
	b := f.Append(nil)
	e.send(b)
	return b
}

func (e *end) receive() []byte {
	e.t.Helper()
	select {
	case m, ok := <-e.messages:
		if !ok {
			e.t.Fatalf("websocket has ended: %v", e.socket.Err())
		}
		return m
	case <-time.After(soon):
		e.t.Fatal("nothing came")
	}
	return nil
}

func (e *end) want(message []byte) {
	e.t.Helper()
	if got := e.receive(); !bytes.Equal(got, message) {
		e.t.Fatalf("got %q, want %q", printable(got), printable(message))
	}
}

func printable(message []byte) string {
	var f frame.Frame
	if err := frame.Decode(message, &f); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d ack %d seq %d %.64q %s", f.StreamID, f.Body, f.Ack, f.Seq, f.Payload, f.Reason)
}

func (e *end) wantReset(stream, reason string) {
	e.t.Helper()
	f := frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte(reason)}
	e.want(f.Append(nil))
}

// wantAnyReset expects a reset with any one of the reasons.
func (e *end) wantAnyReset(stream string, reasons ...string) {
	e.t.Helper()
	var f frame.Frame
	got := e.receive()
	if err := frame.Decode(got, &f); err != nil || f.Body != frame.Reset || string(f.StreamID) != stream || !slices.Contains(reasons, string(f.Reason)) {
		e.t.Fatalf("got %q, want a reset of %s for one of %q", printable(got), stream, reasons)
	}
}

// until drops messages until the wanted one comes. It calls send again and again, which
// makes the other end send that message.
func (e *end) until(message []byte, send func()) {
	e.t.Helper()
	if !e.drop(func(got []byte) bool { return bytes.Equal(got, message) }, send) {
		e.t.Fatalf("websocket has ended: %v", e.socket.Err())
	}
}

// past drops the copies that from has sent because of an until: it lets from send another
// message of the stream and drops all that come before that one. A message may be lost
// where servers are just finding each other, so another one follows, at longer and longer
// intervals: only the last one is behind everything.
func (e *end) past(from *end, stream string) {
	e.t.Helper()
	var fence []byte
	seq, pause, next := uint32(1), time.Second, time.Time{}
	if !e.drop(func(got []byte) bool { return bytes.Equal(got, fence) }, func() {
		if now := time.Now(); now.After(next) {
			seq, pause, next = seq+1, 2*pause, now.Add(pause)
			fence = from.sendFrame(acked(data(stream, seq, "behind it"), 1))
		}
	}) {
		e.t.Fatalf("websocket has ended: %v", e.socket.Err())
	}
}

// untilReset drops messages until the stream is reset or the websocket ends. It calls
// send again and again, which brings that about. A reset that drop has dropped before
// counts.
func (e *end) untilReset(stream string, send func()) {
	e.t.Helper()
	if !e.resets[stream] {
		e.drop(func([]byte) bool { return e.resets[stream] }, send)
	}
}

// drop drops messages until a wanted one comes, and reports false if the websocket ends
// before. It calls send every 50 ms.
func (e *end) drop(wanted func(message []byte) bool, send func()) bool {
	e.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(soon)
	send()
	for {
		select {
		case got, ok := <-e.messages:
			var f frame.Frame
			if ok && frame.Decode(got, &f) == nil && f.Body == frame.Reset {
				e.resets[string(f.StreamID)] = true
			}
			if !ok || wanted(got) {
				return ok
			}
		case <-tick.C:
			send()
		case <-deadline:
			e.t.Fatal("it never came")
		}
	}
}

// wantEnd waits for the end of the websocket; frames before it are dropped.
func (e *end) wantEnd() {
	e.t.Helper()
	timeout := time.After(soon)
	for {
		select {
		case _, ok := <-e.messages:
			if !ok {
				return
			}
		case <-timeout:
			e.t.Fatal("the websocket is still open")
		}
	}
}

// wantNothing expects that no message waits. The test calls it when it has received
// something that was sent after the message that must not come.
func (e *end) wantNothing() {
	e.t.Helper()
	select {
	case m, ok := <-e.messages:
		e.t.Fatalf("got %q, %v", printable(m), ok)
	default:
	}
}

func data(stream string, seq uint32, payload string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Data, Seq: seq, Payload: []byte(payload)}
}

func acked(f frame.Frame, ack uint32) frame.Frame {
	f.Ack = ack
	return f
}

func resume(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Resume}
}

func handshake(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Handshake, Payload: []byte("message 1")}
}

// opened opens a stream and lets both ends send data. With an ack that is not 0 the ends
// show that they acknowledge.
func opened(h, e *end, stream string, ack uint32) {
	h.t.Helper()
	e.want(h.sendFrame(resume(stream)))
	e.want(h.sendFrame(handshake(stream)))
	h.want(e.sendFrame(handshake(stream)))
	exchange(h, e, stream, ack)
}

func exchange(h, e *end, stream string, ack uint32) {
	h.t.Helper()
	e.want(h.sendFrame(acked(data(stream, 0, "to the executor"), ack)))
	h.want(e.sendFrame(acked(data(stream, 0, "to the harness"), ack)))
}

// openedAtLast opens a stream over a new websocket of a harness at ts. A server that has just
// forgotten the executor may hear of an older absence once more, and closes the websocket. A harness
// dials again then, and so does this, each time for a stream of another name.
func openedAtLast(ts *relayServer, e *end) {
	ts.c.t.Helper()
	for try := range 20 {
		h, stream := ts.harness(), fmt.Sprint("new", try)
		if passes(h, e, e, resume(stream)) && passes(h, e, e, handshake(stream)) && passes(h, e, h, handshake(stream)) &&
			passes(h, e, e, data(stream, 0, "to the executor")) && passes(h, e, h, data(stream, 0, "to the harness")) {
			return
		}
	}
	ts.c.t.Fatal("the websocket of a harness ends each time")
}

// passes sends f between h and e, to the end to, and drops what arrives before it. It reports false if
// the websocket of h ends.
func passes(h, e, to *end, f frame.Frame) bool {
	h.t.Helper()
	from := h
	if to == h {
		from = e
	}
	from.trySend(f)
	sent, deadline := f.Append(nil), time.After(soon)
	for {
		select {
		case got, ok := <-e.messages:
			if !ok {
				h.t.Fatalf("the executor's websocket has ended: %v", e.socket.Err())
			}
			if to == e && bytes.Equal(got, sent) {
				return true
			}
		case got, ok := <-h.messages:
			if !ok {
				return false
			}
			if to == h && bytes.Equal(got, sent) {
				return true
			}
		case <-deadline:
			h.t.Fatal("nothing came")
		}
	}
}

// within receives from a channel.
func within[T any](t testing.TB, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		t.Fatal("nothing came")
	}
	return v
}
