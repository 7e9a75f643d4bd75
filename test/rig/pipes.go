package rig

import (
	"context"
	"net"
	"sync"
)

// Pipes is a listener whose connections are in memory, so that a bubble of synctest can hold both of
// their ends. It is dialed by [Pipes.Dial] alone.
type Pipes struct {
	addr   net.Addr
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

// NewPipes returns a listener that says that it has this address.
func NewPipes(addr net.Addr) *Pipes {
	return &Pipes{addr: addr, conns: make(chan net.Conn), closed: make(chan struct{})}
}

// Dial connects to the listener, whatever address is given.
func (p *Pipes) Dial(ctx context.Context, _, _ string) (net.Conn, error) {
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

// Accept waits for the next connection.
func (p *Pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Dial and Accept. The connections stay.
func (p *Pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr returns the address that the listener was given.
func (p *Pipes) Addr() net.Addr { return p.addr }
