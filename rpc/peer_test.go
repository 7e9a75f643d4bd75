package rpc_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestServe(t *testing.T) {
	t.Parallel()
	tests := append(rig.Rows(t, "testdata/serve.txt", "serve", 3), []string{
		"unknown method, long", `{"id":2,"method":"` + strings.Repeat("n", 1<<20) + `"}`,
		"{\"error\":{\"code\":-32601,\"message\":\"unknown method `" + strings.Repeat("n", 128) + "`\"},\"id\":2}",
	})
	result := func(r any, err error) rpc.Method {
		return rpc.Method{Handle: func(context.Context, json.RawMessage) (any, error) { return r, err }}
	}
	notFound := protocol.Errorf(protocol.CodeNotFound, "no such thing")
	table := newStage(t).table()
	table["plain"] = result(nil, errPlain)
	table["wire"] = result(nil, notFound)
	table["wrapped"] = result(nil, errors.Join(notFound))
	table["both"] = result(5, errPlain)
	table["func"] = result(func() {}, nil)
	table["nil"] = result(nil, nil)
	table["typed"] = rpc.Method{Handle: rpc.Handle(func(_ context.Context, p protocol.ProcessParams) (*protocol.StartResult, error) {
		return &protocol.StartResult{ProcessID: p.ProcessID, SandboxType: protocol.SandboxNone}, nil
	})}
	for _, tt := range tests {
		run(t, tt[0], func(t *testing.T) {
			_, f := serve(t, rpc.Config{Table: table}, true)
			f.send("%s", tt[1])
			synctest.Wait()
			f.send(`{"id":"probe","method":"echo","params":{}}`) // the connection lives
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			rig.Is(t, f.got[0], tt[2], "the result")
			rig.Is(t, f.got[len(f.got)-1], `{"id":"probe","result":{}}`, "afterwards")
		})
	}
}

func TestWireError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		table := rpc.Table{"m": {Handle: func(context.Context, json.RawMessage) (any, error) { return nil, errPlain }}}
		_, f := serve(t, rpc.Config{Table: table, WireError: func(err error) *protocol.Error {
			return protocol.InvalidParams("translated: %v", err)
		}}, true)
		f.send(`{"id":1,"method":"m"}`)
		f.expect(`{"error":{"code":-32602,"message":"translated: it broke"},"id":1}`)
	})
}

// panics is a result whose encoder is broken.
type panics struct{}

func (panics) AppendJSON([]byte) []byte { panic("in the encoder") }

func TestPanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var log bytes.Buffer
		table := newStage(t).table()
		table["handler"] = rpc.Method{Handle: func(context.Context, json.RawMessage) (any, error) { panic("in the handler") }}
		table["encoder"] = rpc.Method{Handle: func(context.Context, json.RawMessage) (any, error) { return panics{}, nil }}
		_, f := serve(t, rpc.Config{Table: table, Logger: slog.New(slog.NewTextHandler(&log, nil))}, true)
		for _, method := range []string{"handler", "encoder"} {
			f.send(`{"id":1,"method":%q}`, method)
			f.expect(`{"error":{"code":-32603,"message":"internal error"},"id":1}`)
			for _, want := range []string{"method=" + method, `panic="in the ` + method, "peer_test.go"} {
				rig.Is(t, strings.Contains(log.String(), want), true, "%s: %s is in the log: %s", method, want, &log)
			}
		}
		f.send(`{"id":2,"method":"echo","params":{}}`)
		f.expect(`{"id":2,"result":{}}`)
	})
}

func TestFatal(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, in, want string }{
		{"notification", `{"method":"bad"}`, "bad is not for you"},
		{"result null", `{"id":0,"result":null}`, "unsolicited answer with id 0"},
		{"long id", `{"id":"` + strings.Repeat("x", 1<<20) + `","result":{}}`, `unsolicited answer with id \"` + strings.Repeat("x", 63)},
	}
	for _, tt := range tests {
		run(t, tt.name, func(t *testing.T) {
			_, f := serve(t, rpc.Config{Notification: func(_ context.Context, method string, _ json.RawMessage) error {
				return protocol.InvalidRequest("%s is not for you", method)
			}}, true)
			f.send("%s", tt.in)
			f.expect(`{"error":{"code":-32600,"message":"`+tt.want+`"},"id":-1}`, "end: EOF")
		})
	}
}

// TestFatalNotificationError pins that any error of Config.Notification ends
// the connection, and only a protocol.Error is told.
func TestFatalNotificationError(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, f := serve(t, rpc.Config{Notification: func(context.Context, string, json.RawMessage) error { return errPlain }}, true)
		f.send(`{"method":"m"}`)
		f.expect("end: EOF")
	})
}

func TestServeReturns(t *testing.T) {
	t.Parallel()
	refuse := func(context.Context, string, json.RawMessage) error { return protocol.InvalidRequest("no") }
	tests := []struct {
		name string
		end  func(p *rpc.Peer, conn rpc.Conn, cancel func())
		want bool // an error
	}{
		{"other end closes", func(_ *rpc.Peer, conn rpc.Conn, _ func()) { conn.Close() }, false},
		{"own Close", func(p *rpc.Peer, _ rpc.Conn, _ func()) { p.Close() }, true},
		{"context ends", func(_ *rpc.Peer, _ rpc.Conn, cancel func()) { cancel() }, true},
		{"violation", func(_ *rpc.Peer, conn rpc.Conn, _ func()) {
			_ = conn.Write([]byte(`{"method":"m"}`))
			_, _ = conn.Read()
		}, true},
	}
	for _, tt := range tests {
		run(t, tt.name, func(t *testing.T) {
			s := newStage(t)
			near, conn := rpc.Pipe()
			defer conn.Close()
			table := s.table()
			table["slow"] = rpc.Method{Handle: func(ctx context.Context, _ json.RawMessage) (any, error) {
				<-ctx.Done()
				s.record("cancelled")
				<-s.gate("slow")
				s.record("returns")
				return nil, nil
			}}
			p := rpc.NewPeer(near, rpc.Config{Table: table, Notification: refuse, Closing: func(error) { s.record("closing") }})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var err error
			go func() {
				err = p.Serve(ctx)
				s.record("served")
			}()
			rig.Must(t, conn.Write([]byte(`{"id":1,"method":"slow"}`)))
			s.expect()
			tt.end(p, conn, cancel)
			rig.Is(t, s.count(), 2, "cancelled and closing, in either order: %q", s.events)
			s.release("slow")
			s.mu.Lock()
			defer s.mu.Unlock()
			rig.Is(t, strings.Join(s.events[2:], " "), "returns served", "the last events of %q", s.events)
			rig.Is(t, err != nil, tt.want, "an error of Serve, %v", err)
			rig.Is(t, p.Call(t.Context(), "m", nil, nil), rpc.ErrClosed, "Call afterwards")
			rig.Is(t, p.Notify("m", nil) == nil, false, "Notify succeeds afterwards")
		})
	}
}

// TestCloseUnblocksAStoppedReader pins that Close and the end of the context
// reach a peer that has stopped reading.
func TestCloseUnblocksAStoppedReader(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, method string
		concurrency  int
	}{
		{"parked", "free", 3}, {"urgent", "urgent", 3}, {"strict", "free", 1}, {"strict, inline", "first", 1},
	}
	for _, tt := range tests {
		run(t, tt.name, func(t *testing.T) {
			s := newStage(t)
			p, f := serve(t, rpc.Config{Table: s.table(), Concurrency: tt.concurrency}, false)
			f.request("free", "a", "")
			f.flood(200, tt.method, "")
			p.Close()
			synctest.Wait()
			rig.Is(t, p.Call(t.Context(), "m", nil, nil), rpc.ErrClosed, "Call while Serve still reads")
		})
	}
}

// TestClosingIsTimely pins that Config.Closing is called at once,
// also when reading has stopped and no handler looks at its context.
func TestClosingIsTimely(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s := newStage(t)
		table := rpc.Table{"deaf": {Handle: func(context.Context, json.RawMessage) (any, error) {
			<-s.gate("deaf")
			return nil, nil
		}}}
		p, f := serve(t, rpc.Config{Table: table, Closing: func(error) { s.record("closing") }}, false)
		f.flood(200, "deaf", "")
		p.Close()
		s.expect("closing")
		s.release("deaf")
	})
}

// sent counts calls of Sent, also after an encoding that failed.
type sent struct {
	calls *atomic.Int32
	bad   func()
}

func (s sent) Sent() { s.calls.Add(1) }

func (s sent) MarshalJSON() ([]byte, error) {
	if s.bad != nil {
		return nil, errPlain
	}
	return []byte(`"sent"`), nil
}

func TestSent(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		bad   func()
		err   error
		write func(f *far) // makes the write end
		want  int32
	}{
		{"written", nil, nil, func(f *far) { _, _ = f.conn.Read() }, 1},
		{"write fails", nil, nil, func(f *far) { f.conn.Close() }, 1},
		{"cannot be encoded", func() {}, nil, func(f *far) { _, _ = f.conn.Read() }, 1},
		{"beside an error", nil, errPlain, func(f *far) { _, _ = f.conn.Read() }, 0},
	}
	for _, tt := range tests {
		run(t, tt.name, func(t *testing.T) {
			var calls atomic.Int32
			table := rpc.Table{"m": {Handle: func(context.Context, json.RawMessage) (any, error) {
				return sent{&calls, tt.bad}, tt.err
			}}}
			_, f := serve(t, rpc.Config{Table: table}, false)
			f.send(`{"id":1,"method":"m"}`)
			synctest.Wait()
			rig.Is(t, calls.Load(), 0, "calls of Sent before the answer was written")
			tt.write(f)
			synctest.Wait()
			rig.Is(t, calls.Load(), tt.want, "calls of Sent")
		})
	}
}

// rejecting is a Conn that is told of malformed messages.
type rejecting struct {
	rpc.Conn
	reasons chan error
}

func (c rejecting) Reject(reason error) { c.reasons <- reason }

// TestRejecter: a malformed message ends a connection that is a Rejecter, and is
// not answered.
func TestRejecter(t *testing.T) {
	t.Parallel()
	for _, message := range []string{`null`, `{}`, `{`, `[1]`, ``} {
		near, far := rpc.Pipe()
		conn := rejecting{near, make(chan error, 1)}
		p := rpc.NewPeer(conn, rpc.Config{})
		ended := make(chan error, 1)
		go func() { ended <- p.Serve(t.Context()) }()
		rig.Must(t, far.Write([]byte(message)))
		rig.Is(t, <-ended == nil, false, "%q: Serve ended without an error", message)
		rig.Is(t, <-conn.reasons == nil, false, "%q: rejected for no reason", message)
		answer, err := far.Read()
		rig.Is(t, err == nil, false, "%q: answered with %s", message, answer)
	}
}
