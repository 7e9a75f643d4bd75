package rpc_test

import (
	"errors"
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
	tests := []struct {
		name                string
		closeOwn            bool
		wantRead, wantWrite error
	}{
		{"own end closed", true, net.ErrClosed, net.ErrClosed},
		{"other end closed", false, io.EOF, io.ErrClosedPipe},
	}
	for _, tt := range tests {
		for _, blocked := range []bool{false, true} {
			name := tt.name + ", before the calls"
			if blocked {
				name = tt.name + ", during the calls"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, b := rpc.Pipe()
					end := b
					if tt.closeOwn {
						end = a
					}
					if !blocked {
						end.Close()
					}
					var readErr, writeErr error
					go func() { _, readErr = a.Read() }()
					go func() { writeErr = a.Write([]byte(`{}`)) }()
					synctest.Wait()
					if blocked {
						end.Close()
						synctest.Wait()
					}
					if !errors.Is(readErr, tt.wantRead) || !errors.Is(writeErr, tt.wantWrite) {
						t.Errorf("Read: %v, want %v; Write: %v, want %v", readErr, tt.wantRead, writeErr, tt.wantWrite)
					}
				})
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
