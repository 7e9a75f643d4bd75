package netproxy

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A Kind is what is spoken at a listener.
type Kind int

// The kinds of listeners.
const (
	HTTP   Kind = iota // plain requests, and CONNECT
	SOCKS5             // connections, and datagrams if Config has them
)

// Config says what a proxy lets through, and whom it tells. Only Policy has to be set.
type Config struct {
	Policy *rules.Hosts
	// Decide is asked about what the policy does not decide. Without it, that is refused.
	Decide Decider
	// Report is told each verdict. It must not block.
	Report func(Report)
	// Upstream has the proxies through which plain requests and tunnels to names go out. Nil:
	// all go directly.
	Upstream *Upstream
	// Resolver looks names up, once for each request. Nil: Go's resolver, with the system's
	// configuration.
	Resolver *net.Resolver
	// Own reports whether a connection to an address would arrive at the program itself, at a
	// listener of this proxy for instance: nobody is to reach these from inside. Nil: none would.
	Own func(netip.AddrPort) bool
	// Datagrams makes a socket for UDP ASSOCIATE of SOCKS5, where only the command can reach it.
	// Nil: that is refused.
	Datagrams func() (net.PacketConn, error)
	// Credentials has those that the command uses and does not see. With them, requests inside
	// some tunnels are looked into. Nil: none is.
	Credentials *mask.Broker
	// Authority is whom the command trusts for that. It is set together with Credentials.
	Authority *intercept.Authority
	// Roots returns whom the proxy trusts where it speaks TLS itself: for requests for https
	// URLs, and in tunnels that are looked into. It is called each time. Nil: the system's.
	Roots func() *x509.CertPool
}

// A Question is put to the Decider: may the command reach this?
type Question struct {
	Protocol, Host string
	Port           uint16
}

// An Answer allows or refuses. The reason of a refusal is told to the command and in the
// report; empty, it is policy_denied.
type Answer struct {
	Decision rules.Action
	Reason   string
}

// A Decider answers questions, many at once. The context ends with the proxy. An error is a
// refusal.
type Decider func(ctx context.Context, q Question) (Answer, error)

// A Report is one verdict about one request, with members as on the wire.
type Report struct {
	Time           time.Time
	Scope          string
	Decision       rules.Action
	Source, Reason string
	Protocol, Host string
	Port           uint16
	Method         string // empty for SOCKS5
	Client         string // the command's side of the connection
	Override       bool   // the Decider has allowed what the policy would not
}

// A stream is a connection whose directions end one by one, by TCP or at a UNIX socket.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// Proxy is the way out of one command. Its methods may be called at once.
type Proxy struct {
	cfg    Config
	ctx    context.Context // of all connections: it ends with Close
	cancel context.CancelFunc
	limit  int // of clients; twice as many connections of both sides
	places *places
	times  timing
	heads  *head.Room
	asking chan struct{} // has an element for each name that is being resolved

	wg           sync.WaitGroup // of connections
	associations atomic.Int32   // of SOCKS5, for datagrams
	http2        atomic.Int32   // connections that may speak it

	mu        sync.Mutex // protects the fields below
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]struct{} // of both sides
	clients   int                   // connections of the command
}

// New returns a proxy without listeners.
func New(cfg Config) *Proxy {
	cfg.Resolver = cmp.Or(cfg.Resolver, &net.Resolver{PreferGo: true})
	if cfg.Report == nil {
		cfg.Report = func(Report) {}
	}
	if cfg.Own == nil {
		cfg.Own = func(netip.AddrPort) bool { return false }
	}
	if cfg.Roots == nil {
		cfg.Roots = func() *x509.CertPool { return nil }
	}
	p := &Proxy{cfg: cfg, limit: connections(), places: together, times: usual, heads: head.NewRoom(maxHeads), asking: make(chan struct{}, maxLookups), listeners: map[net.Listener]struct{}{}, conns: map[net.Conn]struct{}{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Serve accepts the command's connections at l, which gives [net.TCPConn] or [net.UnixConn],
// and closes it at the end. It returns nil after Close or when l is closed, and the error
// if l has failed for good.
func (p *Proxy) Serve(kind Kind, l net.Listener) error {
	defer l.Close()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.listeners[l] = struct{}{}
	p.wg.Add(1)
	p.mu.Unlock()
	defer p.wg.Done()
	defer func() {
		p.mu.Lock()
		delete(p.listeners, l)
		p.mu.Unlock()
	}()
	for pause := time.Duration(0); ; {
		conn, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			p.welcome(kind, conn)
		case p.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return nil
		case !passing(err):
			return err
		default: // descriptors are short, or the like
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-p.ctx.Done():
			}
		}
	}
}

// passing reports whether accepting may succeed later.
func passing(err error) bool {
	errno, ok := errors.AsType[syscall.Errno](err)
	return ok && slices.Contains([]syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED, syscall.EINTR}, errno)
}

// welcome serves a connection of the command in a goroutine, or closes it.
func (p *Proxy) welcome(kind Kind, conn net.Conn) {
	s, ok := conn.(stream)
	if !ok || !p.enter(conn) {
		_ = conn.Close()
		return
	}
	go func() {
		defer p.wg.Done()
		defer p.leave(conn)
		switch kind {
		case HTTP:
			p.serveHTTP(s)
		case SOCKS5:
			p.serveSOCKS(s)
		}
	}()
}

// enter makes room for a connection of the command. After true, leave is called, and wg.Done.
func (p *Proxy) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.clients == p.limit || !p.places.take() {
		return false
	}
	p.clients++
	p.conns[conn] = struct{}{}
	p.wg.Add(1)
	return true
}

func (p *Proxy) leave(conn net.Conn) {
	p.drop(conn)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients--
	p.places.give()
}

// hold has Close end a connection to a destination. It closes it if that has been called, or if
// there are too many, since a command may have several for one of its own.
func (p *Proxy) hold(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.conns) >= 2*p.limit {
		_ = conn.Close()
		return false
	}
	p.conns[conn] = struct{}{}
	return true
}

// drop closes a connection of either side.
func (p *Proxy) drop(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// Close refuses what waits for an answer, ends all connections, and waits until nothing of the
// proxy runs any more.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.cancel()
	for l := range p.listeners {
		_ = l.Close()
	}
	for conn := range p.conns {
		_ = conn.Close()
	}
	p.mu.Unlock()
	p.wg.Wait()
	return nil
}
