package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/internal/unixsocket"
	"github.com/execagent/execagent/rpc"
)

const maxHeader = 16 << 10 // of one HTTP request, in bytes

// Config configures a Listener. Only URL has no usable zero value.
type Config struct {
	// URL is exactly ws://IP:PORT or wss://IP:PORT, where port 0 lets the system
	// choose, or unix:///PATH. Listen replaces a stale socket at PATH.
	URL string
	// TLS has the certificate of a server at wss. If it requires and verifies
	// certificates of clients, it also replaces Auth: the subject of a client's
	// certificate is its principal.
	TLS *tls.Config
	// AllowUIDs are the users who may connect to a UNIX socket, besides this one
	// and root.
	AllowUIDs []uint32
	// Auth checks every upgrade; nil accepts every client. If it is nil, URL
	// must name a loopback address, unless AllowUnauthenticated is set, because
	// an agent that anybody can reach is an open machine (rpc.md 1.1).
	Auth                 *Authenticator
	AllowUnauthenticated bool

	PingInterval time.Duration // 0 is 30 s, see [WebSocket]
	PeerTimeout  time.Duration // 0 is 90 s, see [WebSocket]

	Budget *rpc.Budget // of the messages of all connections; nil bounds nothing

	// Metrics answers GET /metrics of clients that may connect; nil: there is no such path.
	Metrics http.Handler
	// Refused is called for each refused client; it may be nil.
	Refused func(Refusal)

	// Log logs refused clients, a limited number per interval, and errors of the HTTP
	// server; nil discards.
	Log *slog.Logger
}

// Listener is a [rpc.Listener] that also answers plain HTTP, see rpc.md 1.2.
type Listener struct {
	config  Config
	bound   net.Listener
	local   bool         // bound is a UNIX socket
	other   *reservation // of a port
	server  *http.Server
	lobby   *conns.Lobby // connections in their HTTP part; one too many replaces the oldest
	short   share.Shortage
	refused refusals
	conns   chan *WebSocket
	running sync.WaitGroup // the server, connections in their HTTP part, hand-overs

	stop, closing sync.Once
	done          chan struct{} // closed when no more connections are accepted
	err           error         // the reason; set before done is closed
}

// Listen binds the address of config.URL and starts to serve it. The caller
// closes the Listener.
func Listen(config Config) (*Listener, error) {
	if config.Refused == nil {
		config.Refused = func(Refusal) {}
	}
	handler := slog.DiscardHandler
	if config.Log != nil {
		handler = config.Log.Handler()
	}
	l := &Listener{
		config: config,
		lobby:  conns.NewLobby(share.Strangers(), 0),
		conns:  make(chan *WebSocket),
		done:   make(chan struct{}),
	}
	l.refused.begin(slog.New(handler))
	bind := l.bindPort
	if unixsocket.Is(config.URL) {
		bind = l.bindPath
	}
	if err := bind(slog.New(handler)); err != nil {
		return nil, err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true) // WebSockets need it
	l.server = &http.Server{
		Protocols:                    &protocols,
		Handler:                      http.HandlerFunc(l.serveHTTP),
		DisableGeneralOptionsHandler: true,             // "OPTIONS *" is one more unknown path
		ReadTimeout:                  handshakeTimeout, // of a connection, which has one request, see serveHTTP
		WriteTimeout:                 handshakeTimeout,
		MaxHeaderBytes:               maxHeader,
		ConnState:                    l.connState,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, wireKey{}, wireOf(conn))
		},
		ErrorLog: slog.NewLogLogger(handler, slog.LevelDebug),
	}
	l.running.Go(func() { l.end(l.server.Serve(door{l})) })
	return l, nil
}

// bindPath listens at a UNIX socket.
func (l *Listener) bindPath(*slog.Logger) error {
	path, err := pathOf(l.config.URL)
	if err != nil {
		return err
	}
	if l.config.TLS != nil {
		return fmt.Errorf("listen URL %q is invalid: a UNIX socket has no TLS", l.config.URL)
	}
	bound, err := unixsocket.Listen(path, len(l.config.AllowUIDs) > 0)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", l.config.URL, err)
	}
	l.bound, l.local = bound, true
	return nil
}

// bindPort listens at a port.
func (l *Listener) bindPort(log *slog.Logger) error {
	address, secure, err := parseListenURL(l.config.URL)
	switch {
	case err != nil:
		return err
	case secure && l.config.TLS == nil:
		return fmt.Errorf("listen URL %q needs a certificate and its key", l.config.URL)
	case !secure && l.config.TLS != nil:
		return fmt.Errorf("listen URL %q has no TLS, want wss://", l.config.URL)
	}
	if l.config.Auth == nil && !l.config.certified() && !l.config.AllowUnauthenticated && !address.Addr().Unmap().IsLoopback() {
		return fmt.Errorf("listen URL %q is not a loopback address and %w", l.config.URL, ErrUnauthenticated)
	}
	network := "tcp"
	if address.Addr().Is4() {
		network = "tcp4" // "tcp" would make 0.0.0.0 also listen on IPv6
	}
	tcp, other, reserveErr, err := bind(network, address)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", l.config.URL, err)
	}
	if reserveErr != nil {
		log.Warn("clients that connect to localhost may reach another program", "error", reserveErr)
	}
	l.bound, l.other = tcp, other
	return nil
}

// maxBinds is how many ports are tried if the kernel chooses.
const maxBinds = 16

// bind listens at address and reserves its port at the other loopback address;
// reserveErr says why the reservation was not possible. If the kernel chooses
// the port, bind tries until the port is free at both addresses, because an
// earlier connection (TIME_WAIT) may occupy it at the other address for a
// minute.
func bind(network string, address netip.AddrPort) (tcp *net.TCPListener, other *reservation, reserveErr, err error) {
	var lc net.ListenConfig
	for n := 1; ; n++ {
		listener, err := lc.Listen(context.Background(), network, address.String())
		if err != nil {
			return nil, nil, nil, err
		}
		tcp = listener.(*net.TCPListener)
		other, reserveErr = reserve(tcp.Addr().(*net.TCPAddr).AddrPort())
		if reserveErr == nil || address.Port() != 0 || n == maxBinds {
			return tcp, other, reserveErr, nil
		}
		_ = tcp.Close() // nobody knows it yet
	}
}

// certified reports whether clients must have a certificate.
func (c *Config) certified() bool {
	return c.TLS != nil && c.TLS.ClientAuth == tls.RequireAndVerifyClientCert
}

// ErrUnauthenticated says that clients from outside this machine could connect without
// authentication.
var ErrUnauthenticated = errors.New("no authentication is configured")

// CheckURL refuses URLs that [Listen] would not accept. It checks only the text.
func CheckURL(url string) error {
	if !unixsocket.Is(url) {
		_, _, err := parseListenURL(url)
		return err
	}
	_, err := pathOf(url)
	return err
}

// pathOf returns the path of a UNIX socket.
func pathOf(url string) (string, error) {
	path, err := unixsocket.Path(url)
	if err != nil {
		return "", fmt.Errorf("listen URL %q is invalid: %w", url, err)
	}
	return path, nil
}

// parseListenURL accepts only ws://IP:PORT (rpc.md 1.1) and wss://IP:PORT. A URL parser would
// accept more: a path, a query, a zone, capitals.
func parseListenURL(s string) (address netip.AddrPort, secure bool, err error) {
	rest, ok := strings.CutPrefix(s, "ws://")
	if !ok {
		rest, secure = strings.CutPrefix(s, "wss://")
	}
	if !ok && !secure {
		return netip.AddrPort{}, false, fmt.Errorf("listen URL %q is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", s)
	}
	if _, port, err := net.SplitHostPort(rest); err == nil && len(port) > 4 {
		if n, err := strconv.Atoi(port); err == nil && n > 65535 {
			return netip.AddrPort{}, false, fmt.Errorf("listen URL %q is invalid, the port is not between 0 and 65535", s)
		}
	}
	address, err = netip.ParseAddrPort(rest)
	if err != nil || address.Addr().Zone() != "" {
		return netip.AddrPort{}, false, fmt.Errorf("listen URL %q is invalid, want ws://IP:PORT with a numeric address", s)
	}
	return address, secure, nil
}

// Accept returns the next WebSocket, open and, if Config.Auth is set,
// authenticated; the caller closes it. After Close it returns net.ErrClosed, and
// after a failure of the listener that error.
func (l *Listener) Accept() (rpc.Conn, error) {
	select {
	case <-l.done:
		return nil, l.err
	default:
	}
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, l.err
	}
}

// Close stops listening, unblocks Accept, and ends connections that Accept has not
// returned yet; the others live on. It may be called more than once, and at the
// same time as Accept.
func (l *Listener) Close() error {
	l.end(net.ErrClosed)
	l.lobby.Close()
	err := l.server.Close()
	l.running.Wait()
	l.closing.Do(l.other.release)
	l.refused.lines.Flush()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Addr is the bound address, with the real port.
func (l *Listener) Addr() net.Addr { return l.bound.Addr() }

// URL is the address to dial, with the real port: "ws://127.0.0.1:37721".
func (l *Listener) URL() string {
	if l.local {
		return unixsocket.URL(l.Addr().String())
	}
	if l.config.TLS != nil {
		return "wss://" + l.Addr().String()
	}
	return "ws://" + l.Addr().String()
}

func (l *Listener) end(err error) {
	l.stop.Do(func() {
		l.err = err
		close(l.done)
	})
}

// connState removes a connection from the lobby when its HTTP part is over.
func (l *Listener) connState(conn net.Conn, state http.ConnState) {
	if state == http.StateClosed || state == http.StateHijacked {
		l.lobby.Leave(conn)
		l.running.Done()
	}
}

// handOver gives conn to Accept, or closes it with the Listener.
func (l *Listener) handOver(conn *WebSocket) {
	select {
	case l.conns <- conn:
	case <-l.done:
		conn.Close()
	}
}

// nobody is no user: (uid_t)-1, as in chown(2).
const nobody = math.MaxUint32

// door is the listener of the HTTP server. Its connections have a seat in the
// lobby.
type door struct{ l *Listener }

func (d door) Accept() (net.Conn, error) {
	accepted, err := d.l.bound.Accept()
	if err != nil {
		d.l.short.Note(d.l.refused.log, "nobody can connect", err)
		return nil, err // the server tries again
	}
	w, conn := d.l.dress(accepted.(stream))
	if socket, ok := accepted.(*net.UnixConn); ok {
		if w.uid, err = unixsocket.Peer(socket); err != nil {
			w.uid = nobody // the upgrade says so
		}
	}
	if !d.l.lobby.Enter(conn, d.l.done) {
		_ = conn.Close() // it was not used yet
		return nil, net.ErrClosed
	}
	// running also counts the server, until it accepts no more. So the counter
	// cannot be zero here while Close is already waiting.
	d.l.running.Add(1)
	return conn, nil
}

// dress wraps a connection in the layers that the HTTP server needs.
func (l *Listener) dress(accepted stream) (*wire, net.Conn) {
	if l.config.TLS == nil {
		return newWire(accepted)
	}
	w, over := newSecureWire(accepted, l.config.TLS, tls.Server)
	over.shake = func() error {
		err := w.shakeHands()
		if err == nil {
			return nil
		}
		level := slog.LevelWarn
		if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, net.ErrClosed) {
			level = slog.LevelDebug // a scan, or a probe that connects and leaves
		}
		l.refused.add(RefusedTLS, level, w.client(), "TLS handshake: "+err.Error())
		l.config.Refused(RefusedTLS)
		return err
	}
	return w, over
}

func (d door) Close() error   { return d.l.bound.Close() }
func (d door) Addr() net.Addr { return d.l.bound.Addr() }
