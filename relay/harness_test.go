package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/relaypb"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func newDialer(t *testing.T, s *service, timing timing) *Dialer {
	t.Helper()
	id := rig.Value(noise.NewIdentity())
	t.Cleanup(func() { s.log.checkSecrets(t) })
	return &Dialer{Registry: s.client(), Identity: id, Logger: s.log.logger(), timing: timing}
}

// answering plays the executor on a harness's websocket.
type answering struct {
	t  *testing.T
	s  *service
	d  *Dialer
	id *noise.Identity // the executor's
}

func newAnswering(t *testing.T, timing timing) *answering {
	t.Helper()
	s := newService(t)
	id := rig.Value(noise.NewIdentity())
	s.executorKey = id.PublicKey()
	return &answering{t: t, s: s, d: newDialer(t, s, timing), id: id}
}

// dial starts a Dial and returns its outcome and the websocket, whose first
// frames have been read and checked.
func (x *answering) dial(ctx context.Context) (dialed <-chan any, p *peer, stream string, message1 []byte) {
	x.t.Helper()
	outcome := make(chan any, 1)
	go func() {
		if c, err := x.d.Dial(ctx); err != nil {
			outcome <- err
		} else {
			outcome <- c
		}
	}()
	p, stream, message1 = x.greeted()
	return outcome, p, stream, message1
}

// greeted reads and checks the first frames on the next websocket.
func (x *answering) greeted() (p *peer, stream string, message1 []byte) {
	x.t.Helper()
	p = x.s.next()
	stream, message1 = x.greeting(p)
	return p, stream, message1
}

func (x *answering) greeting(p *peer) (stream string, message1 []byte) {
	x.t.Helper()
	resume := p.read()
	rig.Is(x.t, resume.GetResume() != nil && resume.GetResume().NextSeq == 0, true, "%.300s is a resume from 0", resume)
	id := rig.Value(uuid.Parse(resume.StreamId))
	rig.Is(x.t, fmt.Sprint(id.Version(), id), "VERSION_4 "+resume.StreamId, "stream id, a random UUID")
	shake := p.read()
	rig.Is(x.t, shake.StreamId, resume.StreamId, "stream of the handshake")
	rig.Is(x.t, shake.AckBits, frame.WillAcknowledge, "bits of the handshake")
	return resume.StreamId, shake.GetHandshake().GetPayload()
}

// respond completes a handshake.
func (x *answering) respond(p *peer, stream string, message1 []byte) *noise.Session {
	x.t.Helper()
	r := rig.Value(noise.ReadInitiation(x.id, noise.Prologue(testEnvironment, testRegistration, []byte(stream)), message1))
	rig.Is(x.t, r.Authorization, testAuthority, "message 1 of %v", r.HarnessKey)
	rig.Is(x.t, r.HarnessKey.Equal(x.d.Identity.PublicKey()), true, "message 1 has the harness's key")
	message2, keys, err := r.Respond()
	rig.Must(x.t, err)
	p.send(handshakeFrame(stream, message2))
	return keys
}

// open completes a Dial.
func (x *answering) open() (rpc.Conn, *peer, string, *noise.Session) {
	x.t.Helper()
	dialed, p, stream, message1 := x.dial(x.t.Context())
	keys := x.respond(p, stream, message1)
	return x.opened(dialed), p, stream, keys
}

// opened returns the connection that was dialed.
func (x *answering) opened(dialed <-chan any) rpc.Conn {
	x.t.Helper()
	c, ok := (<-dialed).(rpc.Conn)
	if !ok {
		x.t.Fatal("Dial failed")
	}
	x.t.Cleanup(func() { c.Close() })
	return c
}

func (x *answering) say(p *peer, keys *noise.Session, id string, seq uint32, text string) {
	(&script{t: x.t, p: p}).say(keys, id, seq, text)
}

func TestDialRefused(t *testing.T) {
	t.Parallel()
	tests := map[string]func(p *peer, stream string){
		"early data":    func(p *peer, stream string) { p.send(dataFrame(stream, 0, []byte("data"))) },
		"text":          func(p *peer, _ string) { _ = p.ws.WriteMessage(websocket.TextMessage, []byte("text")) },
		"invalid frame": func(p *peer, stream string) { p.send(resetFrame(stream, "")) },
		"bad handshake": func(p *peer, stream string) { p.send(handshakeFrame(stream, make([]byte, noise.ResponseSize))) },
		"short":         func(p *peer, stream string) { p.send(handshakeFrame(stream, []byte("short"))) },
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newAnswering(t, timing{})
			dialed, p, stream, _ := x.dial(t.Context())
			// Frames of other streams are ignored.
			p.send(dataFrame("other", 0, []byte("data")))
			p.send(handshakeFrame("other", []byte("handshake")))
			p.send(resetFrame("other", "reason"))
			p.send(resetFrame("other", ""))
			p.send(resumeFrame(stream, 0))
			answer(p, stream)
			err, ok := (<-dialed).(error)
			rig.Is(t, ok && !strings.Contains(err.Error(), "sig="), true, "Dial fails and tells no secret: %v", err)
			p.ends()
		})
	}
}

// TestDialRepeats: after a passing failure anywhere between the question to the
// registry and the answer of the executor Dial starts over, and nothing of the
// failed attempt is left.
func TestDialRepeats(t *testing.T) {
	t.Parallel()
	refused := func(status int, reason string) func(x *answering) {
		return func(x *answering) {
			x.s.upgrade = func(_ string, n int, w http.ResponseWriter) bool {
				w.Header().Set(wire.HeaderRejectionReason, reason)
				return n == 0 && plainAnswer(w, status)
			}
		}
	}
	nobody := rig.FreeAddress(t)
	tests := map[string]struct {
		prepare func(x *answering)
		shaking func(p *peer, stream string) // on the first websocket, if there is one
	}{
		"reset": {shaking: func(p *peer, stream string) { p.send(resetFrame(stream, resetReason)) }},
		"loss":  {shaking: func(p *peer, _ string) { p.ws.Close() }},
		"close": {shaking: func(p *peer, _ string) {
			_ = p.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1012, ""), time.Now().Add(patience))
		}},
		"upgrade answered 408": {prepare: refused(408, "")},
		"upgrade answered 410": {prepare: refused(410, "unknown_route")},
		"upgrade answered 429": {prepare: refused(429, "route_unavailable")},
		"upgrade answered 500": {prepare: refused(500, "")},
		"upgrade answered 503": {prepare: refused(503, "pod_draining")},
		"nobody listens": {prepare: func(x *answering) {
			x.s.connect = func(n int, answer *wire.ConnectResponse, _ http.ResponseWriter) bool {
				if n == 0 {
					answer.URL = "ws://" + nobody + "/?sig=" + testSignature
				}
				return false
			}
		}},
		"the registry fails in between": {
			prepare: func(x *answering) {
				x.s.connect = func(n int, _ *wire.ConnectResponse, w http.ResponseWriter) bool {
					return n == 1 && errorAnswer(w, http.StatusServiceUnavailable, "store_unavailable")
				}
			},
			shaking: func(p *peer, _ string) { p.ws.Close() },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newAnswering(t, timing{})
			if tt.prepare != nil {
				tt.prepare(x)
			}
			dialed, p, stream, message1 := x.dial(t.Context())
			if tt.shaking != nil {
				tt.shaking(p, stream)
				p.ends()
				var again string
				p, again, message1 = x.greeted()
				rig.Is(t, again == stream, false, "the second attempt has the stream id of the first")
				stream = again
			}
			keys := x.respond(p, stream, message1)
			c := x.opened(dialed)
			x.say(p, keys, stream, 0, `"works"`)
			wantMessage(t, c, `"works"`)
		})
	}
}

// TestDialIsFinal: a failure that another attempt cannot mend ends Dial at once.
func TestDialIsFinal(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 302, 400, 401, 403, 404} {
		x := newAnswering(t, timing{})
		x.s.upgrade = func(_ string, _ int, w http.ResponseWriter) bool { return plainAnswer(w, status) }
		_, err := x.d.Dial(t.Context())
		refused, ok := errors.AsType[*socket.RefusedError](err)
		rig.Is(t, ok && refused.Status == status, true, "Dial gives %v, with the status %d", err, status)
		rig.Is(t, x.s.connects, 1, "%d: questions to the registry", status)
	}
}

// TestRefusals: an executor that refuses is not asked for ever, however long the
// caller may be willing to wait.
func TestRefusals(t *testing.T) {
	alone(t, func(t *testing.T) {
		var r refusals
		refused, lost := fmt.Errorf("handshake: %w", errPeerReset), &api.NetworkError{Cause: io.EOF}
		time.Sleep(time.Minute) // the executor was offline for so long: that does not count
		for _, tt := range []struct {
			after time.Duration
			err   error
			again bool
		}{
			{0, refused, true}, {5 * time.Second, refused, true}, {4 * time.Second, lost, true}, {0, errInvalidFrame, false},
			{time.Second - 1, refused, true}, {1, refused, false}, {time.Minute, lost, true},
		} {
			time.Sleep(tt.after)
			rig.Is(t, r.again(tt.err), tt.again, "%v later, %v: again", tt.after, tt.err)
		}
	})
}

func TestDialPatience(t *testing.T) {
	t.Parallel()
	t.Run("its own", func(t *testing.T) {
		t.Parallel()
		x := newAnswering(t, timing{handshake: 50 * time.Millisecond})
		dialed := make(chan error, 1)
		go func() { dialed <- rig.Err(x.d.Dial(t.Context())) }()
		p := x.s.next()
		rig.Is(t, <-dialed, context.DeadlineExceeded, "Dial")
		p.ends()
	})
	t.Run("the caller's", func(t *testing.T) {
		t.Parallel()
		x := newAnswering(t, timing{})
		ctx, cancel := context.WithCancel(t.Context())
		dialed, p, _, _ := x.dial(ctx)
		cancel()
		err, _ := (<-dialed).(error)
		rig.Is(t, err, context.Canceled, "Dial")
		p.ends()
	})
	t.Run("outlived", func(t *testing.T) {
		t.Parallel()
		x := newAnswering(t, timing{})
		ctx, cancel := context.WithCancel(t.Context())
		dialed, p, stream, message1 := x.dial(ctx)
		keys := x.respond(p, stream, message1)
		c := x.opened(dialed)
		cancel()
		x.say(p, keys, stream, 0, `"still here"`)
		wantMessage(t, c, `"still here"`)
	})
}

func TestHarnessEnds(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		event func(p *peer, stream string)
		want  error
		told  bool // whether the executor gets a reset
	}{
		{"reset", func(p *peer, stream string) { p.send(resetFrame(stream, "any text")) }, io.EOF, false},
		{"text", func(p *peer, _ string) { _ = p.ws.WriteMessage(websocket.TextMessage, []byte("text")) }, errTextMessage, true},
		{"invalid frame", func(p *peer, stream string) { p.send(resetFrame(stream, "")) }, errInvalidFrame, true},
		{"second handshake", func(p *peer, stream string) { p.send(handshakeFrame(stream, make([]byte, noise.ResponseSize))) },
			errHandshakeTwice, true},
		{"bad record", func(p *peer, stream string) { p.send(dataFrame(stream, 1, make([]byte, 40))) }, nil, true},
		// The executor has not acknowledged, so the loss is the end.
		{"loss", func(p *peer, _ string) { p.ws.Close() }, nil, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := newAnswering(t, timing{})
			c, p, stream, keys := x.open()
			p.send(dataFrame("other", 0, []byte("data")))
			p.send(resetFrame("other", "reason"))
			p.send(resetFrame("other", ""))
			x.say(p, keys, stream, 0, `"before"`)
			wantMessage(t, c, `"before"`)
			tt.event(p, stream)
			wantEnd(t, c, tt.want)
			for f := (*relaypb.RelayMessageFrame)(nil); tt.told && f.GetReset_() == nil; {
				if f = p.read(); f.GetReset_() != nil {
					rig.Is(t, f.StreamId+" "+f.GetReset_().Reason, stream+" "+resetReason, "reset")
				}
			}
			p.ends()
			rig.Is(t, c.Write([]byte(`1`)) == nil, false, "Write succeeds after the end")
		})
	}
}

func TestHarnessCloseFreesTheStream(t *testing.T) {
	t.Parallel()
	x := newAnswering(t, timing{})
	c, p, stream, keys := x.open()
	rig.Must(t, c.Write([]byte(`"last words"`)))
	rig.Check(t, c.Close())
	p.wantRecord(keys, `"last words"`)
	p.wantReset(stream)
	p.ends()
	rig.Is(t, strings.Contains(c.(fmt.Stringer).String(), stream), true, "%v has its id", c)
}

// proven is an open connection whose executor has shown that it acknowledges.
func (x *answering) proven() (rpc.Conn, *peer, string) {
	x.t.Helper()
	c, p, stream, keys := x.open()
	rig.Must(x.t, c.Write([]byte(`"one"`)))
	p.read()
	p.send(&relaypb.RelayMessageFrame{StreamId: stream, Ack: 0,
		Body: &relaypb.RelayMessageFrame_AckFrame{AckFrame: &relaypb.RelayAck{}}})
	x.say(p, keys, stream, 0, `"two"`)
	wantMessage(x.t, c, `"two"`)
	return c, p, stream
}

func TestHarnessPinsTheExecutor(t *testing.T) {
	t.Parallel()
	other := rig.Value(noise.NewIdentity())
	tests := map[string]func(answer *wire.ConnectResponse, w http.ResponseWriter) bool{
		"another key": func(answer *wire.ConnectResponse, _ http.ResponseWriter) bool {
			answer.ExecutorPublicKey = other.PublicKey()
			return false
		},
		"another registration": func(answer *wire.ConnectResponse, _ http.ResponseWriter) bool {
			answer.ExecutorRegistrationID = "reg-2"
			return false
		},
		"refused": func(_ *wire.ConnectResponse, w http.ResponseWriter) bool {
			return errorAnswer(w, http.StatusUnauthorized, "no")
		},
	}
	for name, connect := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := newAnswering(t, timing{})
			x.s.connect = func(n int, answer *wire.ConnectResponse, w http.ResponseWriter) bool {
				return n > 0 && connect(answer, w)
			}
			c, p, _ := x.proven()
			p.ws.Close()
			wantEnd(t, c, errNoWebsocket)
		})
	}
}

// TestDialPinsTheExecutor: a session that was begun with one executor is not told to another, which
// the registry names later.
func TestDialPinsTheExecutor(t *testing.T) {
	t.Parallel()
	x := newAnswering(t, timing{})
	x.open()
	x.open()
	other := rig.Value(noise.NewIdentity())
	x.id, x.s.executorKey = other, other.PublicKey()
	dialed, p, stream, message1 := x.dial(t.Context())
	x.respond(p, stream, message1)
	err, _ := (<-dialed).(error)
	rig.Is(t, errors.Is(err, api.ErrExecutorChanged) && Final(err), true, "Dial to another executor fails for good: %v", err)
}

func TestHarnessResumes(t *testing.T) {
	t.Parallel()
	x := newAnswering(t, timing{least: time.Millisecond, most: 2 * time.Millisecond})
	x.s.upgrade = func(_ string, n int, w http.ResponseWriter) bool {
		return (n == 1 || n == 2) && plainAnswer(w, http.StatusForbidden)
	}
	_, p, stream := x.proven()
	p.ws.Close()
	p = x.s.next()
	f := p.read()
	rig.Is(t, fmt.Sprint(f.StreamId, " ", f.GetResume().GetNextSeq()), stream+" 1", "resume: %.300s", f)
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	rig.Is(t, x.s.connects, 4, "connect calls: a new address for every attempt")
}
