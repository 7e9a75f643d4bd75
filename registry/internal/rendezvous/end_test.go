package rendezvous

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// end is one end of the relay, as the test plays it.
type end struct {
	c        *cluster
	t        testing.TB
	socket   *socket.Socket
	lane     *socket.Lane
	messages chan []byte     // closed with the socket
	resets   map[string]bool // streams that arrives has seen a reset of
	told     chan string     // principals that have lost their right; not among messages
}

func (ts *relayServer) connect(rawURL string, header http.Header) (*socket.Socket, error) {
	return socket.Dial(ts.c.t.Context(), rawURL, header, socket.Config{PongTimeout: unread, DialContext: ts.dial})
}

// end connects an end that reads ahead of the test.
func (ts *relayServer) end(t ticket.Ticket) *end {
	ts.c.t.Helper()
	return ts.endWith(ts.url(t), nil, 1<<12)
}

// slowEnd connects an end that reads no more than the test does.
func (ts *relayServer) slowEnd(t ticket.Ticket) *end {
	ts.c.t.Helper()
	return ts.endWith(ts.url(t), nil, 0)
}

// endWith connects an end that reads so many messages ahead of the test.
func (ts *relayServer) endWith(rawURL string, header http.Header, ahead int) *end {
	t := ts.c.t
	t.Helper()
	s, err := ts.connect(rawURL, header)
	for deadline := time.Now().Add(soon); err != nil; s, err = ts.connect(rawURL, header) {
		// On a busy machine NATS may take too long. Real ends try again, too.
		refused, ok := errors.AsType[*socket.RefusedError](err)
		if ts.c.fake != nil || !ok || refused.Status != http.StatusServiceUnavailable || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	e := &end{c: ts.c, t: t, socket: s, lane: s.NewLane(64 << 20), messages: make(chan []byte, ahead), resets: make(map[string]bool), told: make(chan string, 16)}
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
	return ts.endWith(ts.url(ts.ticket(ticket.Executor)), http.Header{wire.HeaderStreamOwners: {owners.Header()}}, 1<<12)
}

// executor connects an executor and waits until the store has noted it.
func (ts *relayServer) executor() *end {
	ts.c.t.Helper()
	e := ts.end(ts.ticket(ticket.Executor))
	ts.c.waitOnline(ts)
	return e
}

func (ts *relayServer) harness() *end {
	ts.c.t.Helper()
	return ts.end(ts.ticket(ticket.Harness))
}

// strange is a ticket for a harness with a key of its own.
func (ts *relayServer) strange() ticket.Ticket {
	ts.c.t.Helper()
	other := ts.ticket(ticket.Harness)
	other.Principal = ts.c.principal(ticket.Harness, "*")
	return other
}

func (ts *relayServer) stranger() *end {
	ts.c.t.Helper()
	return ts.end(ts.strange())
}

func (e *end) send(message []byte) {
	e.t.Helper()
	m := socket.NewMessage(len(message))
	m.Bytes = append(m.Bytes, message...)
	rig.Must(e.t, e.lane.Send(m))
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
	e.want(appended(reset(stream, reason)))
}

// arrives has another end send a frame until it comes, and drops all before it: a server
// that did not know a stream has lost a frame, and a moment later it knows.
func (e *end) arrives(from *end, f frame.Frame) {
	e.t.Helper()
	want := appended(f)
	for range 100 {
		from.trySend(f)
		for _, got := range e.waiting() {
			if bytes.Equal(got, want) {
				return
			}
			var f frame.Frame
			if frame.Decode(got, &f) == nil && f.Body == frame.Reset {
				e.resets[string(f.StreamID)] = true
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	e.t.Fatalf("it never came: %s", printable(want))
}

// waiting returns all messages that come before time passes.
func (e *end) waiting() (messages [][]byte) {
	for {
		synctest.Wait()
		select {
		case m, ok := <-e.messages:
			if !ok {
				return messages
			}
			messages = append(messages, m)
		default:
			return messages
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

// wantNothing expects that no message comes before time passes. With NATS, the test has received
// something before that was sent after the message that must not come.
func (e *end) wantNothing() {
	e.t.Helper()
	if e.c.fake != nil {
		synctest.Wait()
	}
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

// resumed is a resume of a stream on which this end has sent something, and acknowledges.
func resumed(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Resume, NextSeq: 1, Ack: 1}
}

func handshake(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Handshake, Payload: []byte("message 1")}
}

func reset(stream, reason string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte(reason)}
}

func appended(f frame.Frame) []byte { return f.Append(nil) }

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
