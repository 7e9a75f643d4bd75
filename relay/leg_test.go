package relay

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// script is a harness that a test plays by hand, on the executor's websocket.
type script struct {
	t  *testing.T
	s  *service
	l  *Link
	p  *peer
	id *noise.Identity
}

func newScript(t *testing.T, s *service, l *Link) *script {
	t.Helper()
	id := rig.Value(noise.NewIdentity())
	s.mu.Lock()
	s.harnessKey = id.PublicKey()
	s.mu.Unlock()
	return &script{t: t, s: s, l: l, p: s.next(), id: id}
}

// begin sends the first frames of a harness; the stream id is also the
// authorization when that is not given.
func (x *script) begin(id, authorization string) *noise.Initiator {
	x.t.Helper()
	x.s.mu.Lock()
	executor := x.s.executorKey
	x.s.mu.Unlock()
	i, message1, err := noise.Initiate(x.id, executor, noise.Prologue(testEnvironment, testRegistration, []byte(id)), []byte(authorization))
	rig.Must(x.t, err)
	x.p.send(resumeFrame(id, 0))
	x.p.send(handshakeFrame(id, message1))
	return i
}

// answered reads message 2 of a stream.
func (x *script) answered(id string, i *noise.Initiator) *noise.Session {
	x.t.Helper()
	f := x.p.read()
	rig.Is(x.t, f.StreamId, id, "stream of %.300s, a handshake", f)
	keys := rig.Value(i.Finish(f.GetHandshake().GetPayload()))
	return keys
}

// open completes a handshake and accepts its stream.
func (x *script) open(id string) (*noise.Session, rpc.Conn) {
	x.t.Helper()
	keys := x.answered(id, x.begin(id, testAuthority))
	c := rig.Value(x.l.Accept())
	return keys, c
}

func (x *script) wantReset(id string) { x.t.Helper(); x.p.wantReset(id) }

// quiet checks that nothing was sent so far: it sends data of an unknown stream,
// and the reset of that has to be the next frame that comes.
func (x *script) quiet() {
	x.t.Helper()
	id := uuid.NewString()
	x.p.send(dataFrame(id, 0, []byte("unknown")))
	x.wantReset(id)
}

// say sends a message as one record.
func (x *script) say(keys *noise.Session, id string, seq uint32, text string) {
	x.t.Helper()
	plaintext := append([]byte{0, 0, 0, byte(len(text))}, text...)
	record := rig.Value(keys.Seal(nil, plaintext))
	x.p.send(dataFrame(id, seq, record))
}

func wantMessage(t *testing.T, c rpc.Conn, want string) {
	t.Helper()
	got, err := c.Read()
	rig.Must(t, err)
	rig.Is(t, string(got), want, "Read")
}

func wantEnd(t *testing.T, c rpc.Conn, want error) {
	t.Helper()
	got, err := c.Read()
	rig.Is(t, err != nil && (want == nil || errors.Is(err, want)), true, "Read: got %.80q, %v; want the end, %v", got, err, want)
}

// validation answers by authorization: "hang" until the test ends, "no" as the
// registry's word, a number as a status.
func (s *service) validation(t *testing.T) {
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	s.validate = func(_ int, r *wire.ValidateRequest, w http.ResponseWriter) bool {
		switch r.HarnessKeyAuthorization {
		case "hang":
			<-release
		case "no":
			fmt.Fprint(w, `{"valid":false}`)
		case "missing":
			fmt.Fprint(w, `{}`)
		case "302":
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(http.StatusFound)
		case "500":
			w.WriteHeader(http.StatusInternalServerError)
		default:
			return false
		}
		return true
	}
}

// TestLinkFrames has the rows of remote.md 8.2. Each is repeated more often than
// the number of failed handshakes after which the reference pauses (8.3); ours
// never pauses, since harnesses share the websocket.
func TestLinkFrames(t *testing.T) {
	t.Parallel()
	bad := func(authorization string) func(x *script, id string) {
		return func(x *script, id string) {
			x.begin(id, authorization)
			x.wantReset(id)
		}
	}
	// sends is a frame that is answered with a reset.
	sends := func(frame func(id string) *relaypb.RelayMessageFrame) func(x *script, id string) {
		return func(x *script, id string) {
			x.p.send(frame(id))
			x.wantReset(id)
		}
	}
	handshake := func(message1 []byte) func(x *script, id string) {
		return sends(func(id string) *relaypb.RelayMessageFrame { return handshakeFrame(id, message1) })
	}
	// violates is data that ends a stream.
	violates := func(seq uint32, payload func(keys *noise.Session) []byte) func(x *script, id string) {
		return func(x *script, id string) {
			keys, c := x.open(id)
			x.p.send(dataFrame(id, seq, payload(keys)))
			x.wantReset(id)
			wantEnd(x.t, c, nil)
		}
	}
	hanging := func(next func(x *script, id string)) func(x *script, id string) {
		return func(x *script, id string) {
			x.s.mu.Lock()
			before := x.s.validates
			x.s.mu.Unlock()
			x.begin(id, "hang")
			rig.Until(x.t, "validate", func() bool { x.s.mu.Lock(); defer x.s.mu.Unlock(); return x.s.validates > before })
			next(x, id)
			rig.Is(x.t, fmt.Sprint(x.l.streams.find([]byte(id))), "<nil> false", "the handshake")
		}
	}
	tests := []struct {
		name  string
		event func(x *script, id string)
	}{
		{"data for an unknown stream", sends(func(id string) *relaypb.RelayMessageFrame { return dataFrame(id, 0, []byte("data")) })},
		{"resume, ack, heartbeat and reset for an unknown stream", func(x *script, id string) {
			x.p.send(resumeFrame(id, 0))
			x.p.send(&relaypb.RelayMessageFrame{StreamId: id, Ack: 99, AckBits: 0xffffffff,
				Body: &relaypb.RelayMessageFrame_AckFrame{AckFrame: &relaypb.RelayAck{}}})
			x.p.send(&relaypb.RelayMessageFrame{StreamId: id,
				Body: &relaypb.RelayMessageFrame_Heartbeat{Heartbeat: &relaypb.RelayHeartbeat{}}})
			x.p.send(resetFrame(id, "why not"))
			x.quiet()
		}},
		{"resume of what an unknown stream was", sends(func(id string) *relaypb.RelayMessageFrame { return resumeFrame(id, 7) })},
		{"data while validate is running",
			hanging(sends(func(id string) *relaypb.RelayMessageFrame { return dataFrame(id, 0, []byte("data")) }))},
		{"ack and resume while validate is running", func(x *script, id string) {
			i := x.begin(id, testAuthority)
			x.p.send(resumeFrame(id, 0))
			x.answered(id, i)
			rig.Check(x.t, rig.Err(x.l.Accept()))
		}},
		{"handshake on an active stream", func(x *script, id string) {
			keys, c := x.open(id)
			x.begin(id, testAuthority)
			x.wantReset(id)
			x.say(keys, id, 0, `"alive"`)
			wantMessage(x.t, c, `"alive"`)
			x.p.send(resetFrame(id, "done"))
		}},
		{"second handshake while validate runs", hanging(bad(testAuthority))},
		{"reset while validate runs", hanging(func(x *script, id string) {
			x.p.send(resetFrame(id, "done"))
			x.quiet()
		})},
		{"handshake that cannot be decrypted", handshake(make([]byte, noise.InitiationSize+10))},
		{"handshake that is too short", handshake([]byte("short"))},
		{"handshake that is too long", handshake(make([]byte, 65536))},
		{"handshake for another stream", func(x *script, id string) {
			_, message1, err := noise.Initiate(x.id, x.l.cfg.Identity.PublicKey(),
				noise.Prologue(testEnvironment, testRegistration, []byte("other")), []byte(testAuthority))
			rig.Must(x.t, err)
			handshake(message1)(x, id)
		}},
		{"validate refused", bad("no")},
		{"validate without valid", bad("missing")},
		{"validate answered 500", bad("500")},
		{"validate redirected", bad("302")},
		{"record that cannot be decrypted", violates(0, func(*noise.Session) []byte { return make([]byte, 100) })},
		{"bad framing", violates(0, func(keys *noise.Session) []byte { return rig.Value(keys.Seal(nil, make([]byte, 4))) })},
		{"window exceeded", violates(65, func(*noise.Session) []byte { return []byte("early") })},
		{"inbound queue full", func(x *script, id string) {
			keys, _ := x.open(id)
			for seq := range uint32(129) {
				x.say(keys, id, seq, `"unread"`)
			}
			x.wantReset(id)
		}},
		{"reset from the peer", func(x *script, id string) {
			keys, c := x.open(id)
			x.say(keys, id, 0, `"before"`)
			x.p.send(resetFrame(id, "any text"))
			x.quiet()
			wantMessage(x.t, c, `"before"`)
			wantEnd(x.t, c, io.EOF)
		}},
		{"reset since the harness was revoked", func(x *script, id string) {
			keys, c := x.open(id)
			x.say(keys, id, 0, `"before"`)
			x.p.send(resetFrame(id, wire.ResetRevoked))
			x.quiet()
			wantEnd(x.t, c, rpc.ErrRevoked) // and nothing of what it has said
		}},
		{"local end", func(x *script, id string) {
			keys, c := x.open(id)
			rig.Check(x.t, c.Write([]byte(`"last words"`)))
			rig.Check(x.t, c.Close())
			x.p.wantRecord(keys, `"last words"`)
			x.wantReset(id)
		}},
		{"reuse of an id", func(x *script, id string) {
			x.open(id)
			x.p.send(resetFrame(id, "done"))
			keys, c := x.open(id)
			x.say(keys, id, 0, `"second"`)
			wantMessage(x.t, c, `"second"`)
			x.p.send(resetFrame(id, "done"))
		}},
		{"invalid frames and text", func(x *script, id string) {
			keys, c := x.open(id)
			x.p.write([]byte("\xff\xff\xff"))
			x.p.send(&relaypb.RelayMessageFrame{Version: 2, StreamId: id,
				Body: &relaypb.RelayMessageFrame_Reset_{Reset_: &relaypb.RelayReset{Reason: "x"}}})
			x.p.send(resetFrame(id, ""))
			x.p.send(resetFrame(" ", "blank"))
			x.p.send(&relaypb.RelayMessageFrame{StreamId: id})
			x.p.send(handshakeFrame(id, nil))
			x.p.send(dataFrame(id, 0, nil))
			rig.Check(x.t, x.p.ws.WriteMessage(websocket.TextMessage, []byte("text")))
			x.quiet()
			x.say(keys, id, 0, `"alive"`)
			wantMessage(x.t, c, `"alive"`)
			x.p.send(resetFrame(id, "done"))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.validation(t)
			l := startLink(t, s, timing{})
			x := newScript(t, s, l)
			for range 10 {
				tt.event(x, uuid.NewString())
			}
			id := uuid.NewString()
			keys, c := x.open(id)
			x.say(keys, id, 0, `"works"`)
			wantMessage(t, c, `"works"`)
		})
	}
}

// TestLinkLimitOfHandshakes makes the handshakes under way by hand. Real ones,
// whose validation hangs, would end after 10 s, which on a busy machine is too
// soon.
func TestLinkLimitOfHandshakes(t *testing.T) {
	t.Parallel()
	s := newService(t)
	x := newScript(t, s, startLink(t, s, timing{}))
	rig.Until(t, "the link", x.l.Ready)
	for i := range maxPending {
		h, err := x.l.streams.admit(fmt.Append(nil, "hangs ", i), anyInitiation, func() {})
		rig.Must(t, err, x.l.streams.validate(h, fmt.Sprint("key ", i)))
	}
	for id := range 3 { // more of them are refused
		x.begin(fmt.Sprint(id), testAuthority)
		x.wantReset(fmt.Sprint(id))
	}
	// A place that is freed can be used at once.
	x.p.send(resetFrame("hangs 7", "freed"))
	keys, c := x.open("next")
	x.say(keys, "next", 0, `"works"`)
	wantMessage(t, c, `"works"`)
}

// fill makes active streams of sessions. Their handshakes are over: while they take place,
// nobody would answer the pings on the link's websocket.
func (x *script) fill(sessions []*noise.Session) {
	x.t.Helper()
	rig.Until(x.t, "the link", x.l.Ready)
	for i, keys := range sessions {
		id := fmt.Sprint("filled ", i)
		h := rig.Value(x.l.streams.admit([]byte(id), anyInitiation, func() {}))
		x.l.streams.mu.Lock()
		m := &member{id: id, owner: id, lane: x.l.streams.leg.socket.NewLane(0)}
		x.l.streams.mu.Unlock()
		m.stream = newStream(streamConfig{id: []byte(id), session: keys, send: m.lane.Send,
			ended: func(s *stream, err error) { x.l.streamEnded(id, s, err) }})
		rig.Must(x.t, x.l.streams.activate(h, m))
		x.l.streams.released()
	}
}

func TestLinkLimitOfStreams(t *testing.T) {
	t.Parallel()
	var sessions []*noise.Session
	for len(sessions) < maxActive-1 {
		a, b := pairOfSessions()
		sessions = append(sessions, a, b)
	}
	s := newService(t)
	x := newScript(t, s, startLink(t, s, timing{}))
	x.fill(sessions[:maxActive-1])
	_, last := x.open("last")
	for range 3 {
		x.begin("one more", testAuthority)
		x.wantReset("one more")
	}
	x.p.send(resetFrame("filled 0", "freed"))
	x.p.send(resetFrame("filled 1", "freed")) // because the same harness gets a second one
	keys, c := x.open("one more")
	x.say(keys, "one more", 0, `"works"`)
	wantMessage(t, c, `"works"`)
	last.Close()
	x.wantReset("last")
	x.open("yet another")
	rig.Is(t, strings.Contains(c.(fmt.Stringer).String(), `"one more"`), true, "%v has its id", c)
}

// TestLinkBadHandshakes: beside any bad handshakes a good one comes through, at the
// latest when it is tried again, since the harnesses of an executor share its
// websocket.
func TestLinkBadHandshakes(t *testing.T) {
	t.Parallel()
	tests := map[string]func(x *script, id string){
		"random": func(x *script, id string) {
			message1 := make([]byte, noise.InitiationSize)
			_, _ = rand.Read(message1) // it has no error
			x.p.send(handshakeFrame(id, message1))
		},
		"not authorized": func(x *script, id string) { x.begin(id, "no") },
		"given up": func(x *script, id string) {
			x.begin(id, testAuthority)
			x.p.send(resetFrame(id, "never mind"))
		},
		"twice": func(x *script, id string) {
			x.begin(id, testAuthority)
			x.begin(id, testAuthority)
		},
		"too long": func(x *script, id string) { x.p.send(handshakeFrame(id, make([]byte, 65536))) },
	}
	for name, bad := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			s.validation(t)
			x := newScript(t, s, startLink(t, s, timing{}))
			flooding, stop := context.WithCancel(t.Context())
			var flood sync.WaitGroup
			defer flood.Wait()
			defer stop()
			// At most 1,000 go ahead of the answers that were read: a single processor would do nothing else.
			ahead := make(chan struct{}, 1000)
			flood.Go(func() {
				for i := 0; ; i++ {
					select {
					case ahead <- struct{}{}:
						bad(x, fmt.Sprint("bad ", i))
					case <-flooding.Done():
						return
					}
				}
			})
			read := func() *relaypb.RelayMessageFrame {
				select {
				case <-ahead:
				default:
				}
				return x.p.read()
			}
			limit := time.Now().Add(patience)
			for n := 0; ; n++ {
				id := fmt.Sprint("good ", n)
				i := x.begin(id, testAuthority)
				f := read()
				// Where too many answers wait some are dropped, perhaps that of the
				// good one.
				for others := 0; f.StreamId != id && others < 1000; others++ {
					f = read()
				}
				if f.StreamId == id && f.GetHandshake() != nil {
					rig.Check(t, rig.Err(i.Finish(f.GetHandshake().Payload)))
					t.Logf("attempt %d came through", n+1)
					return
				}
				if time.Now().After(limit) {
					t.Fatalf("none of %d attempts has come through", n+1)
				}
			}
		})
	}
}

// TestLinkLogIsBounded: harnesses that come and go do not fill the log.
func TestLinkLogIsBounded(t *testing.T) {
	t.Parallel()
	var lines lineLimit
	now := time.Now()
	for range 3 {
		for i := range 3 * maxStreamLines {
			ok, first := lines.take(now)
			rig.Is(t, fmt.Sprint(ok, first), fmt.Sprint(i < maxStreamLines, i == maxStreamLines), "line %d", i)
		}
		now = now.Add(streamLinesInterval)
	}

	s := newService(t)
	s.validation(t)
	x := newScript(t, s, startLink(t, s, timing{}))
	x.l.lines.mu.Lock()
	x.l.lines.since, x.l.lines.n = time.Now().Add(time.Hour), maxStreamLines-2
	x.l.lines.mu.Unlock()
	for range 5 {
		x.begin("bad", "no")
		x.wantReset("bad")
	}
	// The last line comes after its reset.
	rig.Until(t, "the lines", func() bool { return strings.Count(s.log.String(), "handshake refused") == 5 })
	log := s.log.String()
	for line, want := range map[string]int{`level=WARN msg="handshake refused"`: 2, `level=DEBUG msg="handshake refused"`: 3, "the rest is left out": 1} {
		rig.Is(t, strings.Count(log, line), want, "how often the log says %s:\n%s", line, log)
	}
}

// TestLinkSlowValidation: a registry that takes its time holds up no streams but
// those that it is asked about, and message 2 waits for its word.
func TestLinkSlowValidation(t *testing.T) {
	t.Parallel()
	s := newService(t)
	release := make(chan struct{})
	asked := make(chan struct{})
	s.validate = func(n int, _ *wire.ValidateRequest, _ http.ResponseWriter) bool {
		if n == 1 {
			close(asked)
			<-release
		}
		return false
	}
	x := newScript(t, s, startLink(t, s, timing{}))
	keys, c := x.open("first")
	i := x.begin("slow", testAuthority)
	<-asked
	x.say(keys, "first", 0, `"meanwhile"`)
	wantMessage(t, c, `"meanwhile"`)
	x.open("third")
	x.quiet()
	close(release)
	x.answered("slow", i)
}

// flood writes until that fails.
func flood(c rpc.Conn) (failed <-chan error) {
	written := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = c.Write(make([]byte, 1<<20))
		}
		written <- err
	}()
	return written
}

// TestLinkClosesBusyStream pins that a stream that nobody reads can be closed:
// its writer returns, and the peer finds a reset when it reads again.
func TestLinkClosesBusyStream(t *testing.T) {
	t.Parallel()
	s := newService(t)
	x := newScript(t, s, startLink(t, s, timing{farewell: 50 * time.Millisecond}))
	_, c := x.open("stream")
	written := flood(c)
	// One frame has come; the writer is soon where the socket takes no more.
	x.p.read()
	rig.Check(t, c.Close())
	rig.Within(t, patience, "the end of Write", written)
	for x.p.read().GetReset_() == nil {
	}
	// The message that was stuck may come behind the reset.
	i := x.begin("another", testAuthority)
	f := x.p.read()
	for f.StreamId == "stream" {
		f = x.p.read()
	}
	rig.Is(t, rig.Err(i.Finish(f.GetHandshake().GetPayload())), nil, "the answer to another stream: %.100s", f)
}
