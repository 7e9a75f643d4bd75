package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestNotify(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, f := serve(t, rpc.Config{}, true)
		for _, params := range []any{nil, map[string]int{"a": 1}, &protocol.ClosedNotification{ProcessID: "p", Seq: 3}} {
			rig.Is(t, p.Notify("m", params), nil, "Notify(%v)", params)
		}
		rig.Is(t, p.Notify("m", func() {}) == nil, false, "a function was sent")
		f.expect(`{"method":"m","params":{}}`, `{"method":"m","params":{"a":1}}`, `{"method":"m","params":{"processId":"p","seq":3}}`)
	})
}

// TestBegin: calls are on the wire in the order in which they were begun, before any is answered.
func TestBegin(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, f := serve(t, rpc.Config{}, true)
		var calls []*rpc.Pending
		for i := range 3 {
			calls = append(calls, rig.Value(p.Begin("m", map[string]int{"n": i})))
		}
		f.expect(`{"id":1,"method":"m","params":{"n":0}}`, `{"id":2,"method":"m","params":{"n":1}}`, `{"id":3,"method":"m","params":{"n":2}}`)
		f.send(`{"id":3,"result":3}`)
		f.send(`{"id":1,"result":1}`)
		for _, i := range []int{0, 2} {
			var got int
			rig.Check(t, calls[i].Wait(t.Context(), &got))
			rig.Is(t, got, i+1, "the answer to call %d", i)
		}
		p.Close()
		rig.Is(t, calls[1].Wait(t.Context(), nil), rpc.ErrUnanswered, "a call without an answer")
		rig.Is(t, rig.Err(p.Begin("m", nil)) == nil, false, "a call has begun on a connection that has ended")
	})
}

func TestCall(t *testing.T) {
	t.Parallel()
	type result struct{ A int }
	tests := []struct {
		name, answer string
		result       any
		want         any    // of result
		err          string // how its text begins
		wire         bool   // the error is the other side's
	}{
		{"ignored result", `"result":{"A":5}`, nil, nil, "<nil>", false},
		{"by encoding/json", `"result":{"A":5}`, &result{}, &result{5}, "<nil>", false},
		{"by UnmarshalObject", `"result":{"processId":"p"}`, &protocol.ProcessParams{}, &protocol.ProcessParams{ProcessID: "p"},
			"<nil>", false},
		{"error", `"error":{"code":-32004,"message":"gone"}`, &result{}, &result{}, "gone (code -32004)", true},
		{"bad result", `"result":5`, &result{}, &result{}, "decoding the result: json", false},
		{"bad result for UnmarshalObject", `"result":{}`, &protocol.ProcessParams{}, &protocol.ProcessParams{},
			"decoding the result: missing field `processId`", false},
		{"null for UnmarshalObject", `"result":null`, &protocol.ProcessParams{}, &protocol.ProcessParams{},
			"decoding the result: params: invalid type: null", false},
	}
	for _, tt := range tests {
		run(t, tt.name, func(t *testing.T) {
			p, f := serve(t, rpc.Config{}, true)
			var err error
			var call sync.WaitGroup
			call.Go(func() { err = p.Call(t.Context(), "m", map[string]int{"x": 1}, tt.result) })
			f.expect(`{"id":1,"method":"m","params":{"x":1}}`)
			f.send(`{"id":1,%s}`, tt.answer)
			call.Wait()
			rig.Is(t, strings.HasPrefix(fmt.Sprint(err), tt.err), true, "Call: %v, want %q", err, tt.err)
			_, wire := errors.AsType[*protocol.Error](err)
			rig.Is(t, wire, tt.wire, "Call: %T, an answer of the other side", err)
			rig.Is(t, fmt.Sprint(tt.result), fmt.Sprint(tt.want), "result")
		})
	}
}

func TestCallParamsThatCannotBeSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, f := serve(t, rpc.Config{}, true)
		rig.Is(t, p.Call(t.Context(), "m", func() {}, nil) == nil, false, "a function was sent")
		f.expect()
		f.send(`{"id":1,"result":{}}`) // nobody waits for it
		f.answers(`-1 -32600`, "end: EOF")
	})
}

func TestCallsBothWays(t *testing.T) {
	bubble(t, func(t *testing.T) {
		a, b := rpc.Pipe()
		near := rpc.NewPeer(a, rpc.Config{Table: newStage(t).table()})
		far := rpc.NewPeer(b, rpc.Config{Table: newStage(t).table()})
		var all sync.WaitGroup
		for _, p := range []*rpc.Peer{near, far} {
			all.Go(func() { _ = p.Serve(context.Background()) })
		}
		var calls sync.WaitGroup
		for i := range 40 {
			for _, p := range []*rpc.Peer{near, far} {
				calls.Go(func() {
					got := -1
					rig.Check(t, p.Call(t.Context(), "echo", i, &got))
					rig.Is(t, got, i, "echo")
				})
			}
		}
		calls.Wait()
		near.Close()
		all.Wait()
	})
}

func TestAbandonedCall(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, f := serve(t, rpc.Config{Table: newStage(t).table()}, true)
		ctx, cancel := context.WithCancelCause(t.Context())
		called := make(chan error, 1)
		go func() { called <- p.Call(ctx, "m", nil, nil) }()
		f.answers("1")
		cancel(errPlain)
		rig.Is(t, <-called, errPlain, "Call")
		f.send(`{"id":1,"error":{"code":1,"message":"too late"}}`)
		f.send(`{"id":"probe","method":"echo"}`)
		f.answers(`"probe"`)
		f.send(`{"id":1,"result":{}}`) // the second answer to a call is fatal
		f.answers(`-1 -32600`, "end: EOF")
	})
}

// TestManyAbandonedCalls pins that the memory of calls that are never answered
// is bounded: the connection ends.
func TestManyAbandonedCalls(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, _ := serve(t, rpc.Config{}, true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range 1024 {
			rig.Is(t, p.Call(ctx, "m", nil, nil), context.Canceled, "call %d", i)
		}
		synctest.Wait()
		rig.Must(t, p.Notify("m", nil))
		rig.Is(t, p.Call(ctx, "m", nil, nil), context.Canceled, "the last call")
		synctest.Wait()
		rig.Is(t, p.Notify("m", nil) == nil, false, "the connection lives after 1025 calls")
	})
}

// TestForgets: a peer that forgets its calls takes late and unknown answers for nothing, however
// many, but only after a call of its own.
func TestForgets(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p, f := serve(t, rpc.Config{Table: newStage(t).table(), Forgets: true}, true)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		const calls = 3000
		for i := range calls {
			rig.Is(t, p.Call(ctx, "m", nil, nil), context.Canceled, "call %d", i)
		}
		for i := range calls {
			f.send(`{"id":%d,"result":{}}`, i+1)
		}
		for _, stray := range []string{"1", "4000", "-1", `"x"`} {
			f.send(`{"id":%s,"result":{}}`, stray)
			f.send(`{"id":%s,"error":{"code":1,"message":"m"}}`, stray)
		}
		synctest.Wait()
		called := make(chan error, 1)
		go func() { called <- p.Call(t.Context(), "m", nil, nil) }()
		synctest.Wait()
		f.send(`{"id":%d,"result":{}}`, calls+1)
		rig.Is(t, <-called, nil, "a call after %d that were given up", calls)
	})
	synctest.Test(t, func(t *testing.T) {
		_, f := serve(t, rpc.Config{Forgets: true}, true)
		f.send(`{"id":1,"result":{}}`)
		f.answers(`-1 -32600`, "end: EOF")
	})
}

func TestEndUnblocksCalls(t *testing.T) {
	t.Parallel()
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, f := serve(t, rpc.Config{}, false)
			errs := make(chan error, 3)
			go func() { errs <- p.Call(t.Context(), "answered never", nil, nil) }()
			rig.Must(t, rig.Err(f.conn.Read()))
			go func() { errs <- p.Call(t.Context(), "read never", nil, nil) }()
			go func() { errs <- p.Notify("read never", nil) }()
			synctest.Wait()
			rig.Is(t, len(errs), 0, "calls that returned early")
			if own {
				p.Close()
			} else {
				f.conn.Close()
			}
			for range 3 {
				rig.Is(t, <-errs == nil, false, "Call succeeds after the end")
			}
		})
	}
}

// broken is a connection that can be read but not written to.
type broken struct{ rpc.Conn }

func (broken) Write([]byte) error { return io.ErrShortWrite }

// TestFailedWriteEndsTheConnection covers each kind of message that is
// written: a peer whose answers get lost must not live on.
func TestFailedWriteEndsTheConnection(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"result":         `{"id":1,"method":"echo"}`,
		"error":          `{"id":1,"method":"fail"}`,
		"unknown method": `{"id":1,"method":"nope"}`,
		"malformed":      `{`,
	}
	for name, in := range tests {
		run(t, name, func(t *testing.T) {
			table := newStage(t).table()
			table["fail"] = rpc.Method{Handle: rpc.Handle(func(context.Context, protocol.EmptyParams) (any, error) { return nil, errPlain })}
			near, conn := rpc.Pipe()
			var served sync.WaitGroup
			served.Go(func() { _ = rpc.NewPeer(broken{near}, rpc.Config{Table: table}).Serve(context.Background()) })
			rig.Must(t, conn.Write([]byte(in)))
			rig.Is(t, rig.Err(conn.Read()), io.EOF, "Read")
			served.Wait()
		})
	}
}
