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
	"github.com/execagent/execagent/internal/share"
)

// A Kind is the protocol of a listener.
type Kind int

// The kinds of listeners.
const (
	HTTP   Kind = iota // plain requests, and CONNECT
	SOCKS5             // connections; also datagrams if Config.Datagrams is set
)

// Config says which requests a proxy allows, and where it reports verdicts. Only Policy is
// required.
type Config struct {
	// Policy is the first policy; [Proxy.SetPolicy] replaces it.
	Policy *rules.Hosts
	// Owner is whose shares of descriptors and memory the command uses up.
	Owner string
	// Decide is asked about a request if the policy returns rules.Ask. If Decide is nil, such requests
	// are refused.
	Decide Decider
	// Report is called with each verdict. It must not block.
	Report func(Report)
	// Failed is called with the error of each connection of the command that could not be accepted; nil:
	// nobody is told.
	Failed func(error)
	// Unreached is called if there is no connection for a request that was allowed. It must not block.
	// Nil: nobody is told.
	Unreached func(Question, error)
	// Upstream has the proxies of the host, through which plain requests and tunnels go out if their
	// host is a name. Nil: all connections are direct.
	Upstream *Upstream
	// TCP, if it is set, is the only way from SOCKS5 and from Prepare to other hosts.
	TCP *TCPUpstream
	// Named returns the name that a resolver of the command has invented an address for. The name
	// stands for the address wherever the command asks for a connection. invented is true without a
	// name for an address that no name of this command has. Nil: no address is invented.
	Named func(netip.Addr) (name string, invented bool)
	// Resolver looks names up, once for each request. Nil: Go's resolver, with the system's
	// configuration.
	Resolver *net.Resolver
	// Own reports whether a connection to an address would arrive at this program itself, for instance
	// at a listener of this proxy. A command must not reach such addresses through the proxy. Nil:
	// there are none.
	Own func(netip.AddrPort) bool
	// Datagrams makes the socket for UDP ASSOCIATE of SOCKS5, at an address that only the command can
	// reach. Nil: UDP ASSOCIATE is refused.
	Datagrams func() (net.PacketConn, error)
	// Credentials has the credentials that the command uses but cannot see. If it is set, the proxy
	// looks into some tunnels. Nil: it looks into none.
	Credentials *mask.Broker
	// Authority makes the certificates that the command trusts inside tunnels. It is set if Credentials is
	// set, or if the policy has request rules.
	Authority *intercept.Authority
	// Roots returns the certificate authorities that the proxy trusts when it speaks TLS itself: for
	// requests for https URLs, and in tunnels that it looks into. It is called for each connection.
	// Nil: the system's authorities.
	Roots func() *x509.CertPool
}

// A Question asks the Decider whether the command may reach a host.
type Question struct {
	Protocol, Host string
	Port           uint16
	// Method and Path are those of an HTTP request to a host that has request rules. They are bounded and in
	// ASCII. For everything else they are empty.
	Method, Path string
}

// An Answer allows or refuses. The reason of a refusal is sent to the command and stands in the
// report. An empty reason means policy_denied.
type Answer struct {
	Decision rules.Action
	Reason   string
}

// A Decider answers questions, many at the same time. The context ends with the proxy. An error is
// a refusal.
type Decider func(ctx context.Context, q Question) (Answer, error)

// A Report is one verdict about one request. Its members have the values that go on the wire.
type Report struct {
	Time           time.Time
	Scope          string
	Decision       rules.Action
	Source, Reason string
	Protocol, Host string
	Port           uint16
	Method         string // empty for SOCKS5
	Path           string // as in a Question
	Client         string // address of the command's end of the connection
	Override       bool   // the Decider has allowed a request that the policy does not allow
	// Addrs are the addresses of a name that was refused because of them, or because it has none.
	Addrs []netip.Addr
}

// A stream is a TCP or UNIX connection whose two directions can be closed separately.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// A Proxy connects one command to the network. Its methods may be called concurrently.
type Proxy struct {
	cfg    Config
	ctx    context.Context // context of all connections; Close ends it
	cancel context.CancelFunc
	limit  int // highest number of clients; conns may have twice as many elements
	memory *share.Pool
	times  timing
	heads  *head.Room
	asking chan struct{} // semaphore: one element for each name that is being resolved

	families families // the latest attempts of Prepare

	wg           sync.WaitGroup // counts connections and Serve calls
	associations atomic.Int32   // number of associations
	http2        atomic.Int32   // number of connections that may speak HTTP/2

	current atomic.Pointer[rules.Hosts] // the policy
	changed atomic.Bool                 // the policy is not the first one

	mu        sync.Mutex // protects the fields below
	closed    bool
	listeners map[net.Listener]struct{}
	conns     map[net.Conn]struct{} // connections to the command and to destinations
	clients   int                   // number of connections to the command
	standings map[*standing]struct{}
}

// New returns a proxy without listeners.
func New(cfg Config) *Proxy {
	cfg.Resolver = cmp.Or(cfg.Resolver, &net.Resolver{PreferGo: true})
	if cfg.Report == nil {
		cfg.Report = func(Report) {}
	}
	if cfg.Failed == nil {
		cfg.Failed = func(error) {}
	}
	if cfg.Own == nil {
		cfg.Own = func(netip.AddrPort) bool { return false }
	}
	if cfg.Named == nil {
		cfg.Named = func(netip.Addr) (string, bool) { return "", false }
	}
	if cfg.Roots == nil {
		cfg.Roots = func() *x509.CertPool { return nil }
	}
	p := &Proxy{cfg: cfg, limit: connections(), memory: Memory, times: usual, heads: head.NewRoom(maxHeads), asking: make(chan struct{}, maxLookups), listeners: map[net.Listener]struct{}{}, conns: map[net.Conn]struct{}{}}
	p.current.Store(cfg.Policy)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Serve accepts the command's connections at l, which must return [net.TCPConn] or [net.UnixConn].
// It closes l at the end. It returns nil after Close or when l is closed, and an error if l has
// failed permanently.
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
		default: // a temporary error: for instance, descriptors are short
			p.cfg.Failed(err)
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-p.ctx.Done():
			}
		}
	}
}

// passing reports whether the error is temporary, so that Accept may succeed later.
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

// enter registers a connection of the command. If it returns true, the caller must call leave and
// wg.Done.
func (p *Proxy) enter(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.takePlaceLocked() {
		return false
	}
	p.conns[conn] = struct{}{}
	p.wg.Add(1)
	return true
}

// takePlaceLocked takes the place of one connection of the command, for leave or givePlace.
func (p *Proxy) takePlaceLocked() bool {
	if p.closed || p.clients == p.limit || !p.takeShare() {
		return false
	}
	p.clients++
	return true
}

func (p *Proxy) leave(conn net.Conn) {
	p.drop(conn)
	p.givePlace()
}

func (p *Proxy) givePlace() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clients--
	p.giveShare()
}

// hold registers a connection to a destination, so that Close ends it. If the proxy is closed or
// has too many connections, hold closes the connection and returns false. The limit is needed
// because one connection of a command may cause several connections to destinations.
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

// drop closes and unregisters a connection to the command or to a destination.
func (p *Proxy) drop(conn net.Conn) {
	_ = conn.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, conn)
}

// Close refuses requests that wait for an answer, ends all connections, and waits until all
// goroutines of the proxy have ended.
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
