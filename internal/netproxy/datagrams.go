package netproxy

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// An association forwards datagrams for a command (UDP ASSOCIATE). It ends with the connection on
// which the command has asked for it. The first datagram fixes the address that the command sends
// from. Datagrams from other addresses are dropped, and so are fragments. Each destination is
// judged once, with its first datagram. If a destination is refused, the association ends.
type association struct {
	p      *Proxy
	ctx    context.Context // ends with the association
	cancel context.CancelFunc
	socket net.PacketConn // the command sends its datagrams to this socket
	client string

	wg sync.WaitGroup // counts the goroutines of flows

	mu    sync.Mutex // protects the fields below
	from  netip.AddrPort
	flows map[string]*flow // by HOST:PORT
}

// A flow is one destination of an association.
type flow struct {
	key    string
	conn   *net.UDPConn // nil: no address could be reached, and datagrams are dropped
	header []byte       // precedes each datagram that goes back to the command
}

// associate serves UDP ASSOCIATE. If port is not 0, it is the port that the command has announced
// to send from.
func (p *Proxy) associate(conn stream, in *head.Reader, port uint16) {
	if p.associations.Add(1) > maxAssociations {
		p.associations.Add(-1)
		p.farewell(conn, reply(replyFailure, netip.AddrPort{}))
		return
	}
	defer p.associations.Add(-1)
	socket, err := p.cfg.Datagrams()
	if err != nil {
		p.farewell(conn, reply(replyFailure, netip.AddrPort{}))
		return
	}
	a := &association{p: p, socket: socket, client: conn.RemoteAddr().String(), flows: map[string]*flow{}}
	a.ctx, a.cancel = context.WithCancel(p.ctx)
	// The end of the context ends both loops of the association.
	stop := context.AfterFunc(a.ctx, func() {
		_ = socket.Close()
		_ = conn.Close()
	})
	defer stop()
	received := make(chan struct{})
	go func() {
		defer close(received)
		defer a.cancel()
		a.receive(addrPort(conn.RemoteAddr()).Addr(), port)
	}()
	if _, err := conn.Write(reply(replySucceeded, addrPort(socket.LocalAddr()))); err == nil {
		in.Release()
		for b := make([]byte, maxName); await(conn) == nil; { // until the command hangs up
			if _, err := conn.Read(b); err != nil { // bytes after the request are discarded
				break
			}
		}
	}
	a.cancel()
	<-received
	a.wg.Wait()
	_ = socket.Close()
}

// receive forwards the datagrams of the command until the association ends.
func (a *association) receive(host netip.Addr, port uint16) {
	b := buffer.Get(maxDatagram)[:maxDatagram]
	defer buffer.Recycle(b)
	for {
		n, addr, err := a.socket.ReadFrom(b)
		if err != nil {
			return
		}
		if !a.pin(addrPort(addr), host, port) {
			continue
		}
		to, data, ok := parseDatagram(b[:n])
		if !ok {
			continue
		}
		f, ok := a.flow(to)
		if !ok {
			return
		}
		if f != nil && f.conn != nil {
			_, _ = f.conn.Write(data) // an error is ignored, because datagrams may be lost
		}
	}
}

// pin reports whether a datagram comes from the command. The first datagram must come from the host
// of the command's connection and, if the command has announced a port, from that port. Later
// datagrams must come from the same address as the first.
func (a *association) pin(from netip.AddrPort, host netip.Addr, port uint16) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.from.IsValid() && (port == 0 || port == from.Port()) && from.Addr().Unmap() == host.Unmap() {
		a.from = from
	}
	return a.from == from
}

// An endpoint is the destination of a datagram.
type endpoint struct {
	host string // as package rules judges it
	port uint16
}

// parseDatagram parses a datagram of the command. It refuses fragments, because no client sends
// them in practice.
func parseDatagram(b []byte) (to endpoint, data []byte, ok bool) {
	if len(b) < 3 || b[0] != 0 || b[1] != 0 || b[2] != 0 {
		return endpoint{}, nil, false
	}
	r := bytes.NewReader(b[3:])
	host, port, err := readAddress(r)
	if err != nil {
		return endpoint{}, nil, false
	}
	if host, err = rules.Host(host); err != nil {
		return endpoint{}, nil, false
	}
	return endpoint{host, port}, b[len(b)-r.Len():], true
}

// flow returns the flow to a destination, and judges a new destination. It returns a nil flow if
// there are too many flows, and false if the destination is refused.
func (a *association) flow(to endpoint) (*flow, bool) {
	key := net.JoinHostPort(to.host, strconv.Itoa(int(to.port)))
	a.mu.Lock()
	f, full := a.flows[key], len(a.flows) >= maxFlows
	a.mu.Unlock()
	if f != nil || full {
		return f, true
	}
	q := request{Request: rules.Request{Protocol: rules.SOCKS5UDP, Host: to.host, Port: to.port}, client: a.client}
	addrs, answered, refused := a.p.admit(a.ctx, q, nil)
	if refused != nil {
		return nil, false
	}
	f = a.open(key, addrs, to.port)
	a.mu.Lock()
	a.flows[key] = f
	a.mu.Unlock()
	s := &standing{q: q, addrs: addrs, answered: answered, end: a.cancel}
	begun := a.p.begins(s)
	a.wg.Go(func() {
		defer s.over()
		a.answer(f)
	})
	return f, begun
}

// open makes a flow to the first of these addresses for which a socket can be connected. If there
// is none, the flow drops all datagrams. Such a flow still exists for some time, so that one
// verdict covers the datagrams of this time.
func (a *association) open(key string, addrs []netip.Addr, port uint16) *flow {
	for _, addr := range addrs[:min(len(addrs), maxTries)] {
		at := netip.AddrPortFrom(addr, port)
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at)) // a connected socket receives from this address only
		if err == nil && a.p.hold(conn) {
			return &flow{key: key, conn: conn, header: appendAddressOf([]byte{0, 0, 0}, at)}
		}
	}
	return &flow{key: key}
}

// answer forwards the datagrams that come back on a flow. It ends when none has come for some time.
func (a *association) answer(f *flow) {
	defer func() {
		a.mu.Lock()
		delete(a.flows, f.key)
		a.mu.Unlock()
	}()
	if f.conn == nil {
		select {
		case <-time.After(a.p.times.flow):
		case <-a.ctx.Done():
		}
		return
	}
	defer a.p.drop(f.conn)
	defer context.AfterFunc(a.ctx, func() { _ = f.conn.Close() })()
	for {
		if f.conn.SetReadDeadline(time.Now().Add(a.p.times.flow)) != nil {
			return
		}
		if err := await(f.conn); err != nil {
			if isTimeout(err) || a.ctx.Err() != nil {
				return
			}
		}
		if !a.pass(f) {
			return
		}
	}
}

// pass forwards one datagram to the command. It is called when a datagram has arrived, because
// memory is not held while a flow waits.
func (a *association) pass(f *flow) bool {
	b := buffer.Get(maxDatagram + len(f.header))
	defer func() { buffer.Recycle(b) }()
	b = append(b, f.header...)
	n, err := f.conn.Read(b[len(b):cap(b)])
	if err != nil {
		return a.ctx.Err() == nil && !isTimeout(err) // after ECONNREFUSED for instance: no process listens there at the moment
	}
	a.mu.Lock()
	to := a.from
	a.mu.Unlock()
	_, err = a.socket.WriteTo(b[:len(b)+n], net.UDPAddrFromAddrPort(to))
	return err == nil || a.ctx.Err() == nil
}
