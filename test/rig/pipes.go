package rig

import (
	"context"
	"net"
	"sync"
)

// pipes is a listener whose connections are in memory.
type pipes struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// Pipes returns a listener that says that it has this address, and the func that dials it. The
// connections are in memory, so that a bubble of synctest can hold both of their ends.
func Pipes(addr net.Addr) (l net.Listener, dial func(ctx context.Context, network, address string) (net.Conn, error)) {
	p := &pipes{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
	return p, p.dial
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close ends dial and Accept. The connections stay.
func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return p.addr }
