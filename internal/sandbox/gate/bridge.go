package gate

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
)

// maxBridged bounds the connections that one listener passes on at the same time.
// Further ones wait.
const maxBridged = 256

// bridges are the connections that a gate passes on.
type bridges struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// Bridge passes the connections of each listener on to the address of the host with
// the same index, until the gate is closed. It is called once, and then the caller
// accepts no connections itself.
func (g *Gate) Bridge(to []netip.AddrPort) {
	for i, l := range g.listeners {
		g.work.Go(func() { g.bridges.pass(l, to[i]) })
	}
}

// pass passes the connections of l on, and returns when all have ended.
func (b *bridges) pass(l *listener, to netip.AddrPort) {
	var passing sync.WaitGroup
	defer passing.Wait()
	ctx, giveUp := context.WithCancel(context.Background())
	defer giveUp()
	places := make(chan struct{}, maxBridged)
	for {
		places <- struct{}{}
		inside, err := l.Accept()
		if err != nil {
			return
		}
		passing.Go(func() {
			defer func() { <-places }()
			b.join(ctx, inside, to)
		})
	}
}

// join passes one connection on.
func (b *bridges) join(ctx context.Context, inside net.Conn, to netip.AddrPort) {
	defer b.drop(inside)
	if !b.add(inside) {
		return
	}
	outside, err := new(net.Dialer).DialContext(ctx, "tcp", to.String())
	if err != nil {
		return
	}
	defer b.drop(outside)
	if !b.add(outside) {
		return
	}
	var back sync.WaitGroup
	back.Go(func() { flow(inside, outside) })
	flow(outside, inside)
	back.Wait()
}

// flow copies until src ends, and then ends dst. After an error both directions end.
func flow(dst, src net.Conn) {
	if _, err := io.Copy(dst, src); err != nil {
		_, _ = dst.Close(), src.Close()
		return
	}
	_ = dst.(*net.TCPConn).CloseWrite()
}

// add keeps the connection, so that it is closed with the gate; false: it must end.
func (b *bridges) add(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	if b.conns == nil {
		b.conns = map[net.Conn]struct{}{}
	}
	b.conns[c] = struct{}{}
	return true
}

// drop closes the connection.
func (b *bridges) drop(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
	_ = c.Close()
}

func (b *bridges) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for c := range b.conns {
		_ = c.Close()
	}
}
