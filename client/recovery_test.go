package client_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

const ms = time.Millisecond

// wants checks the state of a client, after all that can happen now has happened.
func wants(t testing.TB, c *client.Client, want client.State) {
	t.Helper()
	synctest.Wait()
	if got, _ := c.State(); got != want {
		t.Fatalf("the client is %v (%v), want %v", got, c.Err(), want)
	}
}

// attachedStill answers initialize like a server that has not noticed the loss yet.
func attachedStill(*link, request) any {
	return protocol.Errorf(protocol.CodeSessionAttached, "session s is attached to another connection")
}

func silent(*link, request) any { return silence{} }

// named is a start of a process whose id the test knows.
func named(id string) protocol.StartParams {
	params := shell("true")
	params.ProcessID = id
	return params
}

// TestAttempts: the first attempt to come back is made at once, the next one after 100 ms. A
// server that has only not seen yet that the old connection is gone is asked again sooner, on
// the same connection first.
func TestAttempts(t *testing.T) {
	t.Parallel()
	const (
		refused = iota
		busy
		unanswered
		dropped
	)
	for _, tt := range []struct {
		name   string
		script []int           // what an attempt meets; after it all is well
		dials  []time.Duration // the last one succeeds
		asked  []time.Duration // initialize
	}{
		{"at once", nil, []time.Duration{0}, []time.Duration{0}},
		{
			"refused", []int{refused, refused, refused},
			[]time.Duration{0, 100 * ms, 200 * ms, 300 * ms}, []time.Duration{300 * ms},
		},
		{
			"attached", []int{busy, busy, busy, busy, busy, busy, busy, busy}, []time.Duration{0, 226 * ms},
			[]time.Duration{0, 2 * ms, 6 * ms, 14 * ms, 30 * ms, 62 * ms, 126 * ms, 226 * ms, 228 * ms},
		},
		{
			"mixed", []int{refused, busy, busy, dropped, busy},
			[]time.Duration{0, 100 * ms, 206 * ms}, []time.Duration{100 * ms, 102 * ms, 106 * ms, 206 * ms, 208 * ms},
		},
		{
			"no answer to initialize", []int{unanswered},
			[]time.Duration{0, 10*time.Second + 100*ms}, []time.Duration{0, 10*time.Second + 100*ms},
		},
		{
			"dropped in the handshake", []int{dropped, dropped},
			[]time.Duration{0, 100 * ms, 200 * ms}, []time.Duration{0, 100 * ms, 200 * ms},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c := f.connect(t)
				time.Sleep(time.Second)
				script := tt.script
				for _, step := range script {
					switch step {
					case refused:
						f.meets(refuse)
					case dropped, unanswered:
						f.meets(f.accept)
					}
				}
				cut := time.Now()
				var asked []time.Duration
				f.on(protocol.MethodInitialize, func(l *link, r request) any {
					asked = append(asked, time.Since(cut))
					for len(script) > 0 && script[0] == refused {
						script = script[1:]
					}
					if len(script) == 0 {
						return f.answer(l, r)
					}
					step := script[0]
					script = script[1:]
					switch step {
					case busy:
						return attachedStill(l, r)
					case dropped:
						l.close()
					}
					return silence{}
				})
				f.cut()
				time.Sleep(time.Minute)
				wants(t, c, client.Connected)
				f.dialled(time.Second, tt.dials...)
				rig.Same(t, "asked at", tt.asked, asked)
				rig.Is(t, c.Generation(), 2, "the generation")
			})
		})
	}
}

// TestTooLate: after 45 s the client fails, also where an attempt hangs, and says what was
// the matter in the end.
func TestTooLate(t *testing.T) {
	t.Parallel()
	const late = "exec-server transport disconnected; failed to resume exec-server session: recovery timed out after 45s"
	for _, tt := range []struct {
		name  string
		set   func(f *fake)
		dials int
		want  string
	}{
		{"refused", func(f *fake) { f.meetsLater(refuse) }, 450, ": connecting to exec-server: connection refused"},
		{"the dial hangs", func(f *fake) { f.meetsLater(hang) }, 5, ": connecting to exec-server: context deadline exceeded"},
		{
			"the handshake hangs", func(f *fake) { f.on(protocol.MethodInitialize, silent) }, 5,
			": timed out waiting for exec-server initialize handshake after 10s",
		},
		{"catching up hangs", func(f *fake) { f.on(protocol.MethodProcessRead, silent) }, 1, ""},
		{"attached", func(f *fake) { f.on(protocol.MethodInitialize, attachedStill) }, 199, ": exec-server rejected request (-32010)"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c, p := f.process(t)
				time.Sleep(time.Second)
				tt.set(f)
				f.cut()
				time.Sleep(45*time.Second - ms)
				wants(t, c, client.Recovering)
				time.Sleep(ms)
				wants(t, c, client.Failed)
				<-c.Done()
				err := c.Err()
				if err == nil || !strings.HasPrefix(err.Error(), late+tt.want) {
					t.Errorf("failed with %v, want %s", err, late+tt.want)
				}
				rig.Is(t, rig.Err(p.Wait(t.Context())), err, "Wait")
				rig.Is(t, rig.Err(c.Status(t.Context())), err, "a call")
				// One more may begin in the last moment.
				n := len(f.dials) - 1
				rig.Is(t, n == tt.dials || n == tt.dials+1, true, "%d attempts, want %d", n, tt.dials)
			})
		})
	}
}

// TestNoWayBack: where another attempt is of no use, the client fails at once.
func TestNoWayBack(t *testing.T) {
	t.Parallel()
	errToken := errors.New("the token is refused")
	for _, tt := range []struct {
		name string
		set  func(f *fake)
		want string
	}{
		{
			"unknown session", func(f *fake) {
				f.on(protocol.MethodInitialize, func(*link, request) any {
					return protocol.Errorf(protocol.CodeInvalidRequest, "unknown session id s")
				})
			}, "exec-server rejected request (-32600): unknown session id s",
		},
		{
			"another session", func(f *fake) {
				f.on(protocol.MethodInitialize, func(*link, request) any { return protocol.InitializeResult{SessionID: "other"} })
			}, "exec-server protocol error: exec-server initialized an unexpected session other",
		},
		{
			"no session", func(f *fake) {
				f.on(protocol.MethodInitialize, func(*link, request) any { return protocol.Empty{} })
			}, "exec-server protocol error: initialize answered without a session id",
		},
		{
			"final", func(f *fake) {
				f.meetsLater(func(context.Context) (rpc.Conn, error) { return nil, errToken })
			}, "connecting to exec-server: the token is refused",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faked(t, func(t *testing.T, f *fake) {
				c := connect(t, client.Config{Dial: f.dial, Final: func(err error) bool { return err == errToken }})
				time.Sleep(time.Second)
				tt.set(f)
				f.cut()
				wants(t, c, client.Failed)
				rig.Is(t, f.since(), time.Second, "it took")
				want := "exec-server transport disconnected; failed to resume exec-server session: " + tt.want
				rig.Is(t, c.Err().Error(), want, "failed with")
			})
		})
	}
}

// TestRetryable: what may be tried again is what was not carried out and may fare better.
func TestRetryable(t *testing.T) {
	t.Parallel()
	refusal := func(code protocol.Code) error { return &client.ServerError{Err: protocol.Errorf(code, "no")} }
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{errors.New("anything"), false},
		{context.DeadlineExceeded, false},
		{&client.ConnectError{Err: errRefused}, true},
		{&client.ConnectError{Err: errRefused, Final: true}, false},
		{&client.ConnectError{Err: context.DeadlineExceeded}, true},
		{&client.InitializeTimeoutError{After: time.Second}, true},
		{&client.TimeoutError{Method: "m", After: time.Second}, false},
		{&client.DisconnectedError{}, true},
		{&client.DisconnectedError{Err: errRefused}, true},
		{&client.DisconnectedError{Sent: true}, false},
		{&client.DisconnectedError{Sent: true, Resume: &client.ConnectError{Err: errRefused}}, false},
		{&client.ConnectError{Err: &client.DisconnectedError{Sent: true}}, true},
		{&client.DisconnectedError{Err: client.ErrClosed}, false},
		{&client.DisconnectedError{Err: client.ErrTaken}, false},
		{refusal(protocol.CodeSessionAttached), true},
		{refusal(protocol.CodeInvalidRequest), false},
		{refusal(protocol.CodeNotFound), false},
		{&client.ProtocolError{Reason: "r"}, false},
		{&client.UnsupportedError{Feature: "f"}, false},
		{&client.WriteError{Status: protocol.WriteStdinClosed}, false},
		{&client.GapError{After: 1, Through: 2}, false},
		{&client.RecoverError{ProcessID: "p", Err: &client.GapError{}}, false},
		{client.ErrRecovering, true},
		{client.ErrTooManyCalls, true},
		{client.ErrClosed, false},
		{client.ErrReplaced, false},
		{client.ErrReplacing, false},
	} {
		for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err)} {
			rig.Is(t, client.Retryable(err), tt.want, "Retryable(%T %v)", tt.err, err)
		}
	}
}
