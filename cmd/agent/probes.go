package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/lobby"
)

const (
	probePatience  = 2 * time.Second // to read a request, and to write its answer
	maxProbeHeader = 4 << 10         // bytes
	// maxProbes is how many connections of probes are open at once. The oldest one is
	// closed for one more: a probe is answered as soon as it has come, and who connects
	// and sends nothing must not keep probes out, or the server would be restarted.
	maxProbes = 64
)

// probeFlags say where probes are answered.
type probeFlags struct {
	HealthListen string `env:"AGENT_HEALTH_LISTEN" placeholder:"HOST:PORT" help:"Answer GET /healthz with 200, GET /readyz with 200 while clients can come, else 503, and GET /metrics (Prometheus), all without authentication. Nothing else can be asked there."`
}

// probes answers the probes of whatever runs the server, such as Kubernetes, and the
// scrapes of Prometheus. A nil *probes answers none; its methods do nothing.
type probes struct {
	server  *http.Server
	address netip.AddrPort
	ready   atomic.Pointer[func() bool] // set by follow; nil: not ready
	metrics http.Handler
	running sync.WaitGroup
}

// listenProbes starts to answer probes at the address, and /metrics by that handler;
// /readyz says no until follow is called. The caller closes the result. It is nil if the
// address is empty.
func listenProbes(address string, metrics http.Handler, log *slog.Logger) (*probes, error) {
	if address == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for probes: %w", err)
	}
	p := &probes{address: listener.Addr().(*net.TCPAddr).AddrPort(), metrics: metrics}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	p.server = &http.Server{
		Protocols:      &protocols,
		Handler:        p,
		ReadTimeout:    probePatience, // of the header, too; keep-alives there are none
		WriteTimeout:   probePatience,
		MaxHeaderBytes: maxProbeHeader,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	p.server.SetKeepAlivesEnabled(false)
	few := &probesDoor{Listener: listener, lobby: lobby.New(maxProbes, 0), done: make(chan struct{})}
	p.running.Go(func() {
		// Serve ends when Close closes the server. If it fails earlier, probes get
		// no answer any more, and that is what they are for.
		_ = p.server.Serve(few)
	})
	log.Info("answering probes", "address", listener.Addr().String())
	return p, nil
}

// follow makes /readyz ask ready, from now on, whether clients can come.
func (p *probes) follow(ready func() bool) {
	if p != nil {
		p.ready.Store(&ready)
	}
}

// listening returns the address of the probes, which nothing confined may reach. It
// counts as authenticated, since nobody becomes a client there. Otherwise the
// agent would refuse confined commands with the network.
func (p *probes) listening() []agent.Listening {
	if p == nil {
		return nil
	}
	return []agent.Listening{{Addr: p.address, Authenticated: true}}
}

// ServeHTTP answers one probe.
func (p *probes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ready := p.ready.Load()
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.URL.Path == "/healthz":
	case r.URL.Path == "/metrics":
		p.metrics.ServeHTTP(w, r)
	case r.URL.Path != "/readyz":
		w.WriteHeader(http.StatusNotFound)
	case ready == nil || !(*ready)():
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// Close ends all connections of probes and returns when nothing runs any more.
func (p *probes) Close() {
	if p == nil {
		return
	}
	_ = p.server.Close() // a probe that is cut off loses nothing
	p.running.Wait()
}

// probesDoor is a listener that ends the oldest connection when there are too many.
type probesDoor struct {
	net.Listener
	lobby *lobby.Lobby
	stop  sync.Once
	done  chan struct{} // closed by Close
}

func (d *probesDoor) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if !d.lobby.Enter(conn, d.done) {
		_ = conn.Close() // nobody has used it
		return nil, net.ErrClosed
	}
	return &probing{Conn: conn, leave: sync.OnceFunc(func() { d.lobby.Leave(conn) })}, nil
}

func (d *probesDoor) Close() error {
	d.stop.Do(func() { close(d.done) })
	return d.Listener.Close()
}

// probing is a connection that gives its seat back when it is closed.
type probing struct {
	net.Conn
	leave func()
}

func (p *probing) Close() error {
	defer p.leave()
	return p.Conn.Close()
}
