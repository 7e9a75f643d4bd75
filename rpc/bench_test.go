package rpc_test

import (
	"context"
	"sync"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// join makes two peers that serve each other until the benchmark ends.
func join(b *testing.B, near, far rpc.Config) (*rpc.Peer, *rpc.Peer) {
	b.Helper()
	c, d := rpc.Pipe()
	p, q := rpc.NewPeer(c, near), rpc.NewPeer(d, far)
	var served sync.WaitGroup
	served.Go(func() { _ = p.Serve(context.Background()) })
	served.Go(func() { _ = q.Serve(context.Background()) })
	b.Cleanup(func() {
		p.Close()
		served.Wait()
	})
	return p, q
}

// BenchmarkRoundTrip is the empty method: nothing but the peer's own work.
func BenchmarkRoundTrip(b *testing.B) {
	for name, order := range map[string]rpc.Order{
		"free": {}, "urgent": {Urgent: true}, "inline": {Inline: true}, "queue": {Queue: rpc.InQueue("q")},
	} {
		b.Run(name, func(b *testing.B) {
			handle := rpc.Handle(func(context.Context, protocol.EmptyParams) (protocol.Empty, error) { return protocol.Empty{}, nil })
			p, _ := join(b, rpc.Config{}, rpc.Config{Table: rpc.Table{"m": {Handle: handle, Order: order}}})
			b.ReportAllocs()
			for b.Loop() {
				rig.Must(b, p.Call(b.Context(), "m", nil, nil))
			}
		})
	}
}

func BenchmarkNotify64K(b *testing.B) {
	p, _ := join(b, rpc.Config{}, rpc.Config{})
	n := &protocol.OutputNotification{ProcessID: "p", OutputChunk: protocol.OutputChunk{Stream: protocol.StreamStdout, Chunk: make([]byte, 64<<10)}}
	b.ReportAllocs()
	b.SetBytes(int64(len(n.Chunk)))
	for b.Loop() {
		n.Seq++
		rig.Must(b, p.Notify(protocol.MethodProcessOutput, n))
	}
}
