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
)

const (
	probePatience  = 5 * time.Second // to read a request, and to write its answer
	maxProbeHeader = 4 << 10         // bytes
	// maxProbes is how many connections of probes are open at once. Others wait in
	// the kernel's queue.
	maxProbes = 16
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
		ReadTimeout:    probePatience,
		WriteTimeout:   probePatience,
		MaxHeaderBytes: maxProbeHeader,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	p.server.SetKeepAlivesEnabled(false)
	few := &bounded{Listener: listener, seats: make(chan struct{}, maxProbes), done: make(chan struct{})}
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

// bounded is a listener whose Accept waits while cap(seats) connections are open.
type bounded struct {
	net.Listener
	seats chan struct{} // holds one element for each open connection
	stop  sync.Once
	done  chan struct{} // closed by Close
}

func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.seats <- struct{}{}:
	case <-b.done:
		return nil, net.ErrClosed
	}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.seats
		return nil, err
	}
	return &seated{Conn: conn, leave: sync.OnceFunc(func() { <-b.seats })}, nil
}

func (b *bounded) Close() error {
	b.stop.Do(func() { close(b.done) })
	return b.Listener.Close()
}

// seated is a connection that gives its seat back when it is closed.
type seated struct {
	net.Conn
	leave func()
}

func (s *seated) Close() error {
	defer s.leave()
	return s.Conn.Close()
}
