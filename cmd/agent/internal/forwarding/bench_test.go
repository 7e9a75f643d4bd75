package forwarding

import (
	"context"
	"fmt"
	"io"
	"net"
	"os/exec"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
)

// BenchmarkForward brings bytes through a forwarded port of an agent in another process, down
// from there and up to there; output is what a process prints there, which they are compared with.
func BenchmarkForward(b *testing.B) {
	const size = 64 << 20
	url := rig.Start(b, exec.CommandContext(b.Context(), rig.Agent(b), "--listen", "ws://127.0.0.1:0")).Line(b)
	c := rig.Value(client.DialURL(b.Context(), url))
	defer c.Close()
	there := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	defer there.Close()
	f := &Forwarder{Client: c, Say: func(text string) { b.Log(text) }}
	here := rig.Value(f.Listen(b.Context(), Spec{"tcp", "127.0.0.1:0", "tcp://" + there.Addr().String()}))
	ctx, cancel := context.WithCancel(b.Context())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	defer func() {
		cancel()
		rig.Check(b, <-served)
	}()
	buf := make([]byte, 1<<20)
	pass := func(b *testing.B, to, from net.Conn) {
		go func() {
			for n := 0; n < size; n += len(buf) {
				if _, err := to.Write(buf); err != nil {
					return
				}
			}
		}()
		rig.Must(b, rig.Err(io.CopyN(io.Discard, from, size)))
	}
	for _, up := range []bool{false, true} {
		b.Run(map[bool]string{false: "down", true: "up"}[up], func(b *testing.B) {
			local := rig.Value(net.Dial("tcp", here.String()))
			defer local.Close()
			remote := rig.Value(there.Accept())
			defer remote.Close()
			b.SetBytes(size)
			for b.Loop() {
				if up {
					pass(b, local, remote)
				} else {
					pass(b, remote, local)
				}
			}
		})
	}
	b.Run("output", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			p := rig.Value(c.Spawn(b.Context(), client.Spec{Argv: []string{"dd", "if=/dev/zero", "bs=64k", fmt.Sprint("count=", size>>16), "status=none"}}))
			rig.Is(b, fmt.Sprint(p.CopyOutput(b.Context(), io.Discard, io.Discard)), "0 <nil>", "CopyOutput gives")
		}
	})
}
