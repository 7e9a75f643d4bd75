package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/registry/internal/rendezvous"
	"github.com/execagent/execagent/registry/internal/rooms"
)

// DefaultGrace is how long a stream whose ends acknowledge may lack one of its
// websockets (remote.md 8.1).
const DefaultGrace = 30 * time.Second

// DefaultClockSkew is how far the clock of an agent identity may be off, in either
// direction.
const DefaultClockSkew = time.Minute

// maxClockSkew is half of the time for which the newest assertion of a task is remembered.
// An assertion may be used from one skew before its time to one skew after. So when it is
// forgotten, it is too old to be used.
const maxClockSkew = store.ReplayTTL / 2

// Config configures a [Server]. Only Store is required.
type Config struct {
	// Store keeps all state. The server does not close it.
	Store *Store

	// PublicURL is the http or https URL of this registry for clients: rendezvous
	// URLs start with it. If it is empty, they start with the scheme and host of the
	// request.
	PublicURL string

	// TrustProxy makes the server believe X-Forwarded-Proto and X-Forwarded-Host,
	// which the proxy in front must then set or remove on every request.
	TrustProxy bool

	Logger *slog.Logger // nil: nothing is logged

	// Version is the version of the program, shown to operators.
	Version string

	// MetricsElsewhere removes /metrics from the server's own paths; [NewMetricsFront]
	// always has it.
	MetricsElsewhere bool

	// CertificateNotAfter returns the end of validity of the server's certificate.
	// It is nil if there is none.
	CertificateNotAfter func() time.Time

	// Limits apply to principals without limits of their own.
	Limits Limits

	// MemoryLimit is how much memory the process may take, in bytes; half of it may be
	// held for peers. Zero means no limit; then 512 MiB may be held for peers.
	MemoryLimit int64

	// Grace is how long a stream whose ends acknowledge keeps its route without one
	// of its websockets. Zero means DefaultGrace.
	Grace time.Duration

	// ExecutorURLs is how long the URL of an executor's websocket is valid, in
	// whole seconds. Zero means 24 hours.
	ExecutorURLs time.Duration

	// Direct is a pattern of the environments that may use the direct transport, whose messages the
	// registry can read. If it is empty, none may.
	Direct string

	// ClockSkew is how far the clocks of agent identities may be off, at most 5
	// minutes. Zero means DefaultClockSkew.
	ClockSkew time.Duration
}

// Server is one registry with its rendezvous. It is an [http.Handler]; any
// number of servers on the same store, in one or many processes, are one
// registry to executors and harnesses.
type Server struct {
	store      *store.Store
	publicURL  *url.URL // nil: from the request
	trustProxy bool
	log        *limits.Log
	clockSkew  time.Duration
	urlLife    time.Duration // of executors
	limits     *limits.Limiter
	signer     *ticket.Signer
	metrics    *metrics
	node       string // names this server for the others; a new name for each New
	rendezvous *rendezvous.Routes
	direct     *rooms.Rooms

	directPattern string
	directory     directory
	mounts        []mount
	forHealth     []mount // paths for operators, also on a port of their own
}

// New makes a server, announces its node to the other servers on the same store, and
// starts to listen to them. This must succeed within ctx and within a minute. The caller
// closes the server.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Store == nil {
		return nil, errors.New("a registry needs a store")
	}
	s := &Server{
		store:      cfg.Store,
		trustProxy: cfg.TrustProxy,
		clockSkew:  cfg.ClockSkew,
		urlLife:    cmp.Or(cfg.ExecutorURLs, executorTicketLife),
		limits:     limits.New(cfg.Limits, cfg.MemoryLimit),
		node:       uuid.NewString(),
	}
	log := cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	s.metrics = newMetrics(cfg, s.limits, func(ctx context.Context) error { return s.store.Ready(ctx, s.node) }, log)
	s.log = limits.NewLog(log, s.limits)
	grace := cmp.Or(cfg.Grace, DefaultGrace)
	s.clockSkew = cmp.Or(s.clockSkew, DefaultClockSkew)
	if s.clockSkew < 0 || s.clockSkew > maxClockSkew {
		return nil, fmt.Errorf("clock skew %v is not between 0 and %v", s.clockSkew, maxClockSkew)
	}
	if cfg.Direct != "" {
		if err := store.CheckPattern(cfg.Direct); err != nil {
			return nil, fmt.Errorf("direct transport: %w", err)
		}
	}
	if cfg.PublicURL != "" {
		public, err := parsePublicURL(cfg.PublicURL)
		if err != nil {
			return nil, err
		}
		s.publicURL = public
	}
	ctx, stop := context.WithTimeout(ctx, store.OpenTimeout)
	defer stop()
	var key []byte
	err := store.Persist(ctx, func() (err error) {
		key, err = s.store.SharedKey(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.signer = ticket.NewSigner(key)
	clear(key)

	s.directPattern = cfg.Direct
	s.direct = rooms.New(rooms.Config{
		Store: s.store, Signer: s.signer, Limits: s.limits, Log: s.log, Node: s.node, Allows: s.allowsDirect, Verify: s.signedBy,
		Metrics: rooms.Metrics{Executors: &s.metrics.Executors, Harnesses: &s.metrics.Harnesses, Bytes: &s.metrics.Bytes, Refused: s.metrics.Refused},
	})
	s.rendezvous, err = rendezvous.New(ctx, rendezvous.Config{
		Review: s.direct.Review,

		Store: s.store, Signer: s.signer, Limits: s.limits, Metrics: &s.metrics.Metrics, Log: s.log, Grace: grace,
		Self: store.Server{
			Node: s.node, Version: cfg.Version, Started: time.Now().UTC(), Limits: s.limits.Defaults(), Grace: grace.String(), Skew: s.clockSkew.String(),
		},
	})
	if err != nil {
		s.direct.Close()
		return nil, err
	}
	s.mount(cfg.MetricsElsewhere)
	return s, nil
}

// ServeHTTP answers requests to the API, to the rendezvous, and about health.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.serve(s.mounts, w, r) }

// serveOperator answers requests about health alone.
func (s *Server) serveOperator(w http.ResponseWriter, r *http.Request) { s.serve(s.forHealth, w, r) }

func (s *Server) serve(mounts []mount, w http.ResponseWriter, r *http.Request) {
	seat, h := seatOf(r), w.Header()
	seat.attend()
	h.Set("Connection", "close") // perform removes it when a credential was accepted
	defer func() {
		if h.Get("Connection") != "" {
			seat.dismiss(w)
		}
	}()
	for _, m := range mounts {
		if r.URL.Path == m.path || strings.HasSuffix(m.path, "/") && strings.HasPrefix(r.URL.Path, m.path) {
			m.serve(w, r)
			return
		}
	}
	s.fail(w, "other", &apiError{status: http.StatusNotFound, code: codeNotFound, message: "no such path"})
}

// mount is the handler of a path or, if the path ends in a slash, of all paths below it.
// An http.ServeMux would redirect paths that contain // or .., but clients expect an
// error of the API instead.
type mount struct {
	path  string
	serve http.HandlerFunc
}

// mount makes the server's tables of paths.
func (s *Server) mount(metricsElsewhere bool) {
	s.forHealth = []mount{{pathHealth, s.serveHealth}, {pathReady, s.serveHealth}, {pathMetrics, s.serveHealth}}
	s.mounts = append([]mount{
		{ticket.RendezvousPath, s.rendezvous.ServeHTTP},
		{ticket.DirectPath, s.direct.ServeHTTP},
		{wire.PathPrefix, s.serveAPI},
		{wire.PathEnvironments, s.serveEnvironments},
	}, s.forHealth...)
	if metricsElsewhere {
		s.mounts = s.mounts[:len(s.mounts)-1]
	}
}

// parsePublicURL returns the beginning of rendezvous URLs for the public URL of an
// operator.
func parsePublicURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("public URL is not a URL") // err quotes it, and it may hold a password
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("public URL is neither http nor https")
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("public URL has no host, or more than a host and a path")
	}
	return &url.URL{Scheme: strings.Replace(u.Scheme, "http", "ws", 1), Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

// base returns the beginning of rendezvous URLs in the answer to r: ws or wss, host
// and perhaps a path.
func (s *Server) base(r *http.Request) (*url.URL, error) {
	if s.publicURL != nil {
		return s.publicURL, nil
	}
	scheme, host := "ws", r.Host
	if r.TLS != nil {
		scheme = "wss"
	}
	if s.trustProxy {
		if forwarded := r.Header.Get("X-Forwarded-Host"); forwarded != "" {
			host = forwarded
		}
		switch strings.ToLower(r.Header.Get("X-Forwarded-Proto")) {
		case "https", "wss":
			scheme = "wss"
		case "http", "ws":
			scheme = "ws"
		}
	}
	// A host from a header may be any text.
	u, err := url.Parse(scheme + "://" + host)
	if err != nil || u.Host != host || host == "" || u.User != nil {
		return nil, errors.New("the host of the request is not one")
	}
	return u, nil
}

// Drain lets executors and harnesses move to other servers. From now on upgrades are
// refused and readyz answers 503; see [rendezvous.Routes.Drain]. Call Close after it.
func (s *Server) Drain(ctx context.Context) error {
	s.direct.Close() // its sessions come back by themselves
	return s.rendezvous.Drain(ctx)
}

// Close ends all websockets and waits for the goroutines that the server has started. It
// does not wait for requests: end the HTTP server first, as with [Front.Shutdown]. Streams
// move to other servers of the same store as after a crash; see [Server.Drain].
func (s *Server) Close() error {
	s.direct.Close()
	return s.rendezvous.Close()
}
