package rpc_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestPipe(t *testing.T) {
	rpctest.TestConn(t, func(*testing.T) (a, b rpc.Conn) { return rpc.Pipe() })
}

func TestPipeIsSynchronous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := rpc.Pipe()
		written := false
		go func() {
			rig.Check(t, a.Write([]byte(`{}`)))
			written = true
		}()
		synctest.Wait()
		rig.Is(t, written, false, "Write returns before the message is read")
		rig.Must(t, rig.Err(b.Read()))
		synctest.Wait()
		rig.Is(t, written, true, "Write returns after the message was read")
	})
}

func TestPipeErrors(t *testing.T) {
	for _, own := range []bool{true, false} {
		for _, during := range []bool{false, true} {
			run(t, fmt.Sprintf("own end %v, during the calls %v", own, during), func(t *testing.T) {
				a, b := rpc.Pipe()
				end, want := b, [2]error{io.EOF, io.ErrClosedPipe}
				if own {
					end, want = a, [2]error{net.ErrClosed, net.ErrClosed}
				}
				if !during {
					end.Close()
				}
				var got [2]error
				go func() { got[0] = rig.Err(a.Read()) }()
				go func() { got[1] = a.Write([]byte(`{}`)) }()
				synctest.Wait()
				if during {
					end.Close()
					synctest.Wait()
				}
				rig.Is(t, got, want, "of Read and Write")
			})
		}
	}
}

func BenchmarkPipe(b *testing.B) {
	near, far := rpc.Pipe()
	go func() {
		for {
			message, err := far.Read()
			if err != nil {
				return
			}
			if far.Write(message) != nil {
				return
			}
			buffer.Recycle(message)
		}
	}()
	defer near.Close()
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, near.Write([]byte(`{}`)))
		message, err := near.Read()
		rig.Must(b, err)
		buffer.Recycle(message)
	}
}
