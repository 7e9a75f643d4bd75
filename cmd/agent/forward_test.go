package main

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/execagent/execagent/rpc"
)

// offers is a listener whose Accept returns the connections that a test sends to
// conns.
type offers struct {
	conns  chan rpc.Conn
	closed chan struct{}
}

func (o *offers) Accept() (rpc.Conn, error) {
	select {
	case c := <-o.conns:
		return c, nil
	case <-o.closed:
		return nil, net.ErrClosed
	}
}

func (o *offers) Close() error   { close(o.closed); return nil }
func (o *offers) Addr() net.Addr { return nil }

// TestForwardBound: while the exec-server takes connections and answers none, a
// harness that gives up each stream at once still gets no more than maxForwards
// connections opened.
func TestForwardBound(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	f := &forwarder{target: "ws://" + silent.Addr().String(), logger: slog.New(slog.DiscardHandler)}
	o := &offers{conns: make(chan rpc.Conn), closed: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- f.serve(t.Context(), o) }()
	taken := 0
	for limit := time.After(time.Second); taken <= maxForwards; {
		near, far := rpc.Pipe()
		near.Close() // the harness gives the stream up
		select {
		case o.conns <- far:
			taken++
			continue
		case <-limit:
			far.Close()
		}
		break
	}
	if taken != maxForwards {
		t.Errorf("%d connections were taken, want %d", taken, maxForwards)
	}
	silent.Close() // resets the connections in its queue, so that serve can end
	o.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
