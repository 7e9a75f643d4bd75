package main

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// offers is a listener whose Accept returns the connections that a test sends to
// conns.
type offers struct {
	conns  chan rpc.Conn
	closed chan struct{}
	close  sync.Once
}

func (o *offers) Accept() (rpc.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *offers) Close() error   { o.close.Do(func() { close(o.closed) }); return nil }
func (o *offers) Addr() net.Addr { return nil }

// TestBound: while the other end answers nothing, a client that gives up each connection at
// once still gets no more than maxConnections opened.
func TestBound(t *testing.T) {
	t.Parallel()
	b := &bridge{logger: slog.New(slog.DiscardHandler), dial: func(ctx context.Context) (rpc.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	synctest.Test(t, func(t *testing.T) {
		o := &offers{conns: make(chan rpc.Conn), closed: make(chan struct{})}
		done := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { done <- b.serve(ctx, o) }()
		taken := 0
		for range maxConnections + 1 {
			near, far := rpc.Pipe()
			_ = near.Close() // the client gives up
			synctest.Wait()
			select {
			case o.conns <- far:
				taken++
			default:
				_ = far.Close()
			}
		}
		rig.Is(t, taken, maxConnections, "connections were taken")
		cancel()
		rig.Check(t, <-done)
	})
}

// TestJoin: messages pass both ways and whole, and the end of either side ends the other.
func TestJoin(t *testing.T) {
	t.Parallel()
	for name, ends := range map[string]func(near, far rpc.Conn, cancel func()){
		"the client ends":  func(near, _ rpc.Conn, _ func()) { _ = near.Close() },
		"the agent ends":   func(_, far rpc.Conn, _ func()) { _ = far.Close() },
		"the program ends": func(_, _ rpc.Conn, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			near, a := rpc.Pipe()
			b, far := rpc.Pipe()
			joined := make(chan struct{})
			go func() {
				defer close(joined)
				joinConns(ctx, a, b)
			}()
			for _, way := range [][2]rpc.Conn{{near, far}, {far, near}} {
				rig.Must(t, way[0].Write([]byte(`{"id":1}`)))
				rig.Is(t, string(rig.Value(way[1].Read())), `{"id":1}`, "the other side reads")
			}
			ends(near, far, cancel)
			<-joined
			for _, c := range []rpc.Conn{near, far} {
				rig.Is(t, rig.Err(c.Read()) != nil, true, "a side has ended")
			}
		})
	}
}
