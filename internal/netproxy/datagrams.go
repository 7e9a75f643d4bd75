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

// An association passes datagrams on for a command (UDP ASSOCIATE), as long as its connection
// lasts. The first datagram says where the command sends from; others from elsewhere are
// dropped, and so are fragments. Each destination is judged once, with its first datagram: if
// it is refused, the association ends.
type association struct {
	p      *Proxy
	ctx    context.Context // of the association
	cancel context.CancelFunc
	socket net.PacketConn // on which the command speaks
	client string

	wg sync.WaitGroup // of flows

	mu    sync.Mutex // protects what follows
	from  netip.AddrPort
	flows map[string]*flow // by HOST:PORT, as the command says it
}

// A flow is one destination of an association.
type flow struct {
	key    string
	conn   *net.UDPConn // nil: it leads nowhere
	header []byte       // before each datagram that comes back
}

// associate serves UDP ASSOCIATE. A port, if it is not 0, is where the command says that it will
// send from.
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
	// Whatever ends the association ends both of its loops.
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
			if _, err := conn.Read(b); err != nil { // what else it says is lost
				break
			}
		}
	}
	a.cancel()
	<-received
	a.wg.Wait()
	_ = socket.Close()
}

// receive passes on what the command sends, until the association ends.
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
			_, _ = f.conn.Write(data) // lost, as datagrams may be
		}
	}
}

// pin reports whether a datagram comes from the command: from where the first one came, which is
// the host of its connection, and the port that it has said.
func (a *association) pin(from netip.AddrPort, host netip.Addr, port uint16) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.from.IsValid() && (port == 0 || port == from.Port()) && from.Addr().Unmap() == host.Unmap() {
		a.from = from
	}
	return a.from == from
}

// An endpoint is where a datagram is to go.
type endpoint struct {
	host string // as package rules judges it
	port uint16
}

// parseDatagram takes a datagram of the command apart. It refuses fragments, which nobody
// sends.
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

// flow returns the flow to a destination, which is judged if it is new. It returns nil if there
// are too many, and false if it is refused.
func (a *association) flow(to endpoint) (*flow, bool) {
	key := net.JoinHostPort(to.host, strconv.Itoa(int(to.port)))
	a.mu.Lock()
	f, full := a.flows[key], len(a.flows) >= maxFlows
	a.mu.Unlock()
	if f != nil || full {
		return f, true
	}
	q := request{Request: rules.Request{Protocol: rules.SOCKS5UDP, Host: to.host, Port: to.port}, client: a.client}
	addrs, refused := a.p.admit(a.ctx, q, nil)
	if refused != nil {
		return nil, false
	}
	f = a.open(key, addrs, to.port)
	a.mu.Lock()
	a.flows[key] = f
	a.mu.Unlock()
	a.wg.Go(func() { a.answer(f) })
	return f, true
}

// open makes a flow to the first of these addresses to which there is a way. Without one the flow
// leads nowhere, so that there is one verdict for all that is sent there for some time.
func (a *association) open(key string, addrs []netip.Addr, port uint16) *flow {
	for _, addr := range addrs[:min(len(addrs), maxTries)] {
		at := netip.AddrPortFrom(addr, port)
		conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(at)) // only that end is heard
		if err == nil && a.p.hold(conn) {
			return &flow{key: key, conn: conn, header: appendAddressOf([]byte{0, 0, 0}, at)}
		}
	}
	return &flow{key: key}
}

// answer passes on what comes back on a flow, until nothing has come for some time.
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

// pass passes one datagram on to the command. Memory for it is taken when it is there.
func (a *association) pass(f *flow) bool {
	b := buffer.Get(maxDatagram + len(f.header))
	defer func() { buffer.Recycle(b) }()
	b = append(b, f.header...)
	n, err := f.conn.Read(b[len(b):cap(b)])
	if err != nil {
		return a.ctx.Err() == nil && !isTimeout(err) // nobody listens there, for now
	}
	a.mu.Lock()
	to := a.from
	a.mu.Unlock()
	_, err = a.socket.WriteTo(b[:len(b)+n], net.UDPAddrFromAddrPort(to))
	return err == nil || a.ctx.Err() == nil
}
