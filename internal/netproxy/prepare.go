package netproxy

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A command whose connections are transparent does not speak with the proxy. Its connect(2) is
// held: Prepare judges the destination and dials it, the command's connection is then made, and
// Join joins both. So the command gets the error of the destination, and no port looks open that is
// closed. To the policy it is a request of SOCKS5.

// meant returns the name that an invented address stands for, and every other host as it is.
func (p *Proxy) meant(host string) string {
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if name, _ := p.cfg.Named(addr); name != "" {
		return name
	}
	return host
}

// A Prepared is a connection to a destination, for a connection of the command that does not stand
// yet. It ends by Join or Close, or with the proxy.
type Prepared struct {
	p     *Proxy
	q     request
	link  *link
	ended sync.Once
}

// Prepare judges a connection of the command to an address, and dials the destination. client is the
// command's end. After a failure the errno is the one that connect(2) of the command fails with:
// EACCES for a refusal, EHOSTUNREACH if nothing is known of the address or the name has no address,
// EAGAIN if the command has too many connections, and otherwise the error of the destination.
func (p *Proxy) Prepare(ctx context.Context, to, client netip.AddrPort) (*Prepared, syscall.Errno) {
	p.mu.Lock()
	took := p.takePlaceLocked()
	if took {
		p.wg.Add(1)
	}
	p.mu.Unlock()
	if !took {
		return nil, syscall.EAGAIN
	}
	defer p.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	prepared, errno := p.prepare(ctx, to, client)
	if errno != 0 {
		p.givePlace()
	}
	return prepared, errno
}

func (p *Proxy) prepare(ctx context.Context, to, client netip.AddrPort) (_ *Prepared, errno syscall.Errno) {
	addr := to.Addr().Unmap().WithZone("")
	host := addr.String()
	if name, invented := p.cfg.Named(addr); name != "" {
		host = name
		first, end := p.families.begin(net.JoinHostPort(name, strconv.Itoa(int(to.Port()))), addr.Is6(), p.times.family)
		if first != nil {
			select {
			case <-first.done:
			case <-ctx.Done():
				return nil, syscall.ETIMEDOUT
			}
			if first.errno != 0 {
				return nil, first.errno
			}
		}
		defer func() { end(errno) }()
	} else if invented {
		return nil, syscall.EHOSTUNREACH
	}
	q := request{Request: rules.Request{Protocol: rules.SOCKS5TCP, Host: host, Port: to.Port()}, client: client.String(), within: heldTime}
	l, refused := p.reach(ctx, q, nil)
	if refused != nil {
		return nil, refused.errno()
	}
	return &Prepared{p: p, q: q, link: l}, 0
}

// families are the latest attempts to reach names. A name has two invented addresses, of both families,
// which mean the same. A program that fails at one of them tries the other, or does so soon without
// waiting. That is one attempt: it is judged, asked about and reported once.
type families struct {
	mu     sync.Mutex
	latest map[string]*tried // by host and port
}

// tried is an attempt at an address of one family.
type tried struct {
	v6    bool
	done  chan struct{} // closed when the attempt has ended
	errno syscall.Errno
	ended time.Time
}

// maxTried bounds the attempts that are remembered.
const maxTried = 1024

// begin begins an attempt. If first is not nil, the attempt belongs to first, which may not have
// ended: if first fails, its errno is the errno of both. The caller calls end with its errno. soon is
// how soon the second of two attempts follows one that has failed.
func (f *families) begin(place string, v6 bool, soon time.Duration) (first *tried, end func(syscall.Errno)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.latest[place]; t != nil && t.v6 != v6 && (t.ended.IsZero() || t.errno != 0 && time.Since(t.ended) < soon) {
		delete(f.latest, place) // a third attempt is a new one
		return t, func(syscall.Errno) {}
	}
	if f.latest == nil || len(f.latest) >= maxTried {
		f.latest = map[string]*tried{}
	}
	t := &tried{v6: v6, done: make(chan struct{})}
	f.latest[place] = t
	return nil, func(errno syscall.Errno) {
		f.mu.Lock()
		defer f.mu.Unlock()
		t.errno, t.ended = errno, time.Now()
		close(t.done)
	}
}

// Close ends the connection to the destination, which is not needed.
func (r *Prepared) Close() {
	r.ended.Do(func() {
		r.p.cut(r.link)
		r.p.givePlace()
	})
}

// Join joins the command's connection with the prepared one, until both have ended. It does not wait
// for their end. It owns conn.
func (r *Prepared) Join(conn *net.TCPConn) {
	r.ended.Do(func() {
		p := r.p
		p.mu.Lock()
		closed := p.closed
		if !closed {
			p.conns[conn] = struct{}{}
			p.wg.Add(1)
		}
		p.mu.Unlock()
		if closed {
			_ = conn.Close()
			p.cut(r.link)
			p.givePlace()
			return
		}
		go func() {
			defer p.wg.Done()
			defer p.leave(conn)
			defer p.cut(r.link)
			in := head.NewReader(conn)
			defer in.Release()
			p.serveTunnel(r.q, &tunnel{here: conn, there: r.link.raw.(stream), idle: p.times.tunnel, resets: true}, in, r.link)
		}()
	})
}

// errno returns the error of connect(2) for a refusal.
func (r *refusal) errno() syscall.Errno {
	switch {
	case !r.failed && r.err == nil:
		return syscall.EACCES
	case errors.Is(r.err, errNoAddress):
		return syscall.EHOSTUNREACH
	case errors.Is(r.err, context.DeadlineExceeded), errors.Is(r.err, os.ErrDeadlineExceeded):
		return syscall.ETIMEDOUT
	}
	if timeout, ok := errors.AsType[net.Error](r.err); ok && timeout.Timeout() {
		return syscall.ETIMEDOUT
	}
	switch errno, _ := errors.AsType[syscall.Errno](r.err); errno {
	case syscall.ECONNREFUSED, syscall.ETIMEDOUT, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.EACCES:
		return errno
	case syscall.EPERM: // of a firewall of this host
		return syscall.EACCES
	case syscall.ECONNRESET:
		return syscall.ECONNREFUSED
	case syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.EADDRNOTAVAIL:
		return syscall.EAGAIN
	}
	return syscall.EHOSTUNREACH
}
