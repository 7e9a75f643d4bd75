// Package health answers health probes, such as those of systemd and Kubernetes, and the scrapes of
// Prometheus: [Listen] starts a [Server] at the address of [ListenFlags]. [Ask] probes such a server.
package health

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/unixsocket"
)

const (
	probePatience  = 2 * time.Second // to read a request, and to write its answer
	maxProbeHeader = 4 << 10         // bytes
	// maxProbes is how many connections of probes are open at once. A further connection closes the
	// oldest one. Probes are answered at once, so the oldest client is one that sends nothing. Such
	// clients must not keep probes out, because the server would be restarted.
	maxProbes = 64
)

// ListenFlags say where probes are answered.
type ListenFlags struct {
	HealthListen string `env:"AGENT_HEALTH_LISTEN" placeholder:"ADDRESS" help:"Answer probes at HOST:PORT or unix:///PATH, without authentication. GET /healthz answers 200; GET /readyz answers 200 while clients can connect, else 503 with the reason; GET /metrics answers for Prometheus. Nothing else is served there."`
}

// CheckHealth refuses an invalid address.
func (f *ListenFlags) CheckHealth() error {
	if f.HealthListen == "" {
		return nil
	}
	return Check("--health-listen", f.HealthListen)
}

// Check refuses an address at which no [Server] can listen. The error names the flag.
func Check(flag, address string) error {
	if unixsocket.Is(address) {
		if _, err := unixsocket.Path(address); err != nil {
			return fmt.Errorf("%s %s: %w", flag, address, err)
		}
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil || strings.Contains(address, "/") {
		return fmt.Errorf("%s %.100s: want HOST:PORT or unix:///PATH", flag, address)
	}
	return nil
}

// Server answers probes. The methods of a nil *Server do nothing.
type Server struct {
	server  *http.Server
	address net.Addr
	unready atomic.Pointer[func() string] // set by Follow
	metrics http.Handler
	running sync.WaitGroup
}

// Listen starts to answer probes at the address, and /metrics with the handler. /readyz is not
// ready until Follow is called. At a UNIX socket, this user, root and the users of allow may ask.
// The caller closes the result, which is nil if the address is empty.
func Listen(address string, allow []uint32, metrics http.Handler, log *slog.Logger) (*Server, error) {
	if address == "" {
		return nil, nil
	}
	listener, err := listen(address, len(allow) > 0)
	if err != nil {
		return nil, fmt.Errorf("listening for probes: %w", err)
	}
	p := &Server{address: listener.Addr(), metrics: metrics}
	p.Follow(func() string { return "the agent has not started yet" })
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	p.server = &http.Server{
		Protocols:      &protocols,
		Handler:        p,
		ReadTimeout:    probePatience, // it includes the header; there are no keep-alives
		WriteTimeout:   probePatience,
		MaxHeaderBytes: maxProbeHeader,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, stranger{}, conn.(*probing).stranger(allow))
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	p.server.SetKeepAlivesEnabled(false)
	few := &door{Listener: listener, lobby: conns.NewLobby(maxProbes, 0), done: make(chan struct{})}
	p.running.Go(func() {
		// Serve ends when Close closes the server. If it fails earlier, probes get no answer, which
		// shows the failure to the supervisor.
		_ = p.server.Serve(few)
	})
	log.Info("answering probes", "address", listener.Addr().String())
	return p, nil
}

// listen listens at a TCP address, or at a UNIX socket. Only this user and root can connect to the
// socket; with open, every user can.
func listen(address string, open bool) (net.Listener, error) {
	if !unixsocket.Is(address) {
		var lc net.ListenConfig
		return lc.Listen(context.Background(), "tcp", address)
	}
	path, err := unixsocket.Path(address)
	if err != nil {
		return nil, err
	}
	return unixsocket.Listen(path, open)
}

// Follow sets the function that /readyz calls. The function returns why clients cannot connect, or
// "".
func (p *Server) Follow(unready func() string) {
	if p != nil {
		p.unready.Store(&unready)
	}
}

// Addr returns the address of the server, or nil if there is no server.
func (p *Server) Addr() net.Addr {
	if p == nil {
		return nil
	}
	return p.address
}

// stranger is the key of a context value, which says that the client's user may not ask.
type stranger struct{}

// ServeHTTP answers one probe.
func (p *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Context().Value(stranger{}) == true:
		w.WriteHeader(http.StatusForbidden)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.URL.Path == "/healthz":
	case r.URL.Path == "/metrics":
		p.metrics.ServeHTTP(w, r)
	case r.URL.Path != "/readyz":
		w.WriteHeader(http.StatusNotFound)
	default:
		if reason := (*p.unready.Load())(); reason != "" {
			http.Error(w, reason, http.StatusServiceUnavailable)
		}
	}
}

// Close closes all connections, and waits for everything that the server has started.
func (p *Server) Close() {
	if p == nil {
		return
	}
	_ = p.server.Close() // a probe that is cut off loses nothing
	p.running.Wait()
}

// maxReason bounds the reason that a server gives, in bytes.
const maxReason = 4 << 10

// Ask requests /readyz from the server at an address. The error says why the server is not ready.
func Ask(ctx context.Context, address string) error {
	transport := &http.Transport{DisableKeepAlives: true} // no proxy, because the address is used as it is
	host := address
	if unixsocket.Is(address) {
		path, err := unixsocket.Path(address)
		if err != nil {
			return err
		}
		host = "localhost"
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return unixsocket.Dial(ctx, path) }
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxReason))
	if reason := strings.TrimSpace(string(text)); err == nil && response.StatusCode == http.StatusServiceUnavailable && reason != "" {
		return errors.New("not ready: " + reason)
	}
	return fmt.Errorf("%s: /readyz answers with status %d", address, response.StatusCode)
}

// door is a listener that closes the oldest connection when there are too many.
type door struct {
	net.Listener
	lobby *conns.Lobby
	stop  sync.Once
	done  chan struct{} // closed by Close
}

func (d *door) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !d.lobby.Enter(conn, d.done) {
		_ = conn.Close() // the connection was not used
		return nil, net.ErrClosed
	}
	return &probing{Conn: conn, leave: sync.OnceFunc(func() { d.lobby.Leave(conn) })}, nil
}

func (d *door) Close() error {
	d.stop.Do(func() { close(d.done) })
	return d.Listener.Close()
}

// probing is a connection that leaves the lobby when it is closed.
type probing struct {
	net.Conn
	leave func()
}

// stranger reports whether the peer of a UNIX socket is a user who may not ask. It returns true if
// the user is unknown.
func (p *probing) stranger(allow []uint32) bool {
	conn, ok := p.Conn.(*net.UnixConn)
	if !ok {
		return false
	}
	uid, err := unixsocket.Peer(conn)
	return err != nil || !unixsocket.May(uid, allow...)
}

func (p *probing) Close() error {
	defer p.leave()
	return p.Conn.Close()
}
