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
	healthPatience  = 5 * time.Second // for one request
	maxHealthHeader = 4 << 10         // bytes
	// maxProbes is how many probes are answered at once; one more waits.
	maxProbes = 16
)

// healthFlags say where to tell how the server is.
type healthFlags struct {
	HealthListen string `env:"AGENT_HEALTH_LISTEN" placeholder:"HOST:PORT" help:"Answer GET /healthz with 200, and GET /readyz with 200 while clients can come, else 503. Nothing else can be asked there."`
}

// health answers the probes of whatever runs the server, such as Kubernetes. The
// nil one answers none.
type health struct {
	server  *http.Server
	address netip.AddrPort
	ready   atomic.Pointer[func() bool] // nil: not yet
	running sync.WaitGroup
}

// listenHealth starts to answer; the caller closes it. Nil without an address.
func listenHealth(address string, log *slog.Logger) (*health, error) {
	if address == "" {
		return nil, nil
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listening for probes: %w", err)
	}
	h := &health{address: listener.Addr().(*net.TCPAddr).AddrPort()}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	h.server = &http.Server{
		Protocols:      &protocols,
		Handler:        h,
		ReadTimeout:    healthPatience,
		WriteTimeout:   healthPatience,
		MaxHeaderBytes: maxHealthHeader,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	h.server.SetKeepAlivesEnabled(false)
	probes := &bounded{Listener: listener, seats: make(chan struct{}, maxProbes), done: make(chan struct{})}
	h.running.Go(func() {
		// It ends when it is closed. If it fails otherwise, probes find out by
		// getting no answers, and nobody else asks.
		_ = h.server.Serve(probes)
	})
	log.Info("answering probes", "address", listener.Addr().String())
	return h, nil
}

// follow has ready say from now on whether clients can come.
func (h *health) follow(ready func() bool) {
	if h != nil {
		h.ready.Store(&ready)
	}
}

// listening returns the address of the probes. The agent takes it for one where
// nobody becomes a client without authentication, since nobody does at all.
func (h *health) listening() []agent.Listening {
	if h == nil {
		return nil
	}
	return []agent.Listening{{Addr: h.address, Authenticated: true}}
}

// ServeHTTP answers one probe.
func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ready := h.ready.Load()
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		w.WriteHeader(http.StatusMethodNotAllowed)
	case r.URL.Path == "/healthz":
	case r.URL.Path != "/readyz":
		w.WriteHeader(http.StatusNotFound)
	case ready == nil || !(*ready)():
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

func (h *health) Close() {
	if h == nil {
		return
	}
	_ = h.server.Close() // nothing is lost with a probe
	h.running.Wait()
}

// bounded is a listener that has at most so many connections open at once.
type bounded struct {
	net.Listener
	seats chan struct{}
	stop  sync.Once
	done  chan struct{}
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

type seated struct {
	net.Conn
	leave func()
}

func (s *seated) Close() error {
	defer s.leave()
	return s.Conn.Close()
}
