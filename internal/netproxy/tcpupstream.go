package netproxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A TCPUpstream is a proxy for CONNECT that is the only way to other hosts for SOCKS5 and for held
// connections. What may not go there fails: nothing is dialled directly.
type TCPUpstream struct {
	Address string // HOST:PORT
	Private bool   // it leads to private addresses too
	Closed  bool   // nothing may go there, because the client does not allow it
}

var (
	errClosedUpstream = errors.New("connecting: the client does not allow the upstream proxy for TCP, which is the only way")
	errPrivate        = errors.New("connecting: the upstream proxy for TCP leads to no private address")
)

// targets returns the places that the upstream proxy is asked for, one after the other until it
// connects to one. A name goes there as its addresses, which were judged. It goes there by itself
// only if local addresses are like others, because the upstream proxy looks it up again.
func (u *TCPUpstream) targets(q request, addrs []netip.Addr, local bool) ([]string, error) {
	port := strconv.Itoa(int(q.Port))
	switch {
	case u.Closed:
		return nil, errClosedUpstream
	case local && !isAddress(q.Host):
		if q.Host == "localhost" {
			return nil, errPrivate // it would be the upstream proxy's own
		}
		return []string{net.JoinHostPort(q.Host, port)}, nil
	case len(addrs) == 0:
		return nil, errNoAddress
	}
	var targets []string
	for _, addr := range addrs {
		if addr.IsLoopback() || rules.IsLocal(addr) && !(u.Private && isAddress(q.Host)) {
			return nil, errPrivate
		}
		if len(targets) < maxTries {
			targets = append(targets, net.JoinHostPort(addr.String(), port))
		}
	}
	return targets, nil
}

// connectTCP makes the connection for an allowed request through the upstream proxy.
func (p *Proxy) connectTCP(ctx context.Context, q request, place string, addrs []netip.Addr) (*link, error) {
	targets, err := p.cfg.TCP.targets(q, addrs, p.policy().Local())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, heldTime)
	defer cancel()
	var first error
	for _, target := range targets {
		l, err := p.tunnelTo(ctx, target, place, addrs)
		if err == nil {
			return l, nil
		}
		if first == nil {
			first = err
		}
	}
	return nil, first
}

// tunnelTo asks the upstream proxy for a tunnel to one target.
func (p *Proxy) tunnelTo(ctx context.Context, target, place string, addrs []netip.Addr) (*link, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.cfg.TCP.Address)
	if err != nil {
		return nil, err
	}
	if !p.hold(conn) {
		return nil, net.ErrClosed
	}
	l := &link{raw: conn, conn: conn, in: head.NewReader(conn).Within(p.heads), place: place, addrs: addrs, hop: new(hop)}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline) // it fails only if conn is closed, and then open fails too
	if err := l.open(target); err != nil {
		p.cut(l)
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	l.hop = nil // the other end is the destination now
	return l, nil
}
