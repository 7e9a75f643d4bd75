package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/execagent/execagent/registry/limits"
	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/store"
	"github.com/execagent/execagent/registry/ticket"
)

// DefaultGrace is how long a stream whose ends acknowledge may be without one
// of its websockets (remote.md 8.1).
const DefaultGrace = 30 * time.Second

// DefaultClockSkew is how far the clock of an agent identity may be off.
const DefaultClockSkew = time.Minute

// maxClockSkew is bounded by how long the newest assertion of a task is
// remembered, see store.ReplayTTL.
const maxClockSkew = store.ReplayTTL / 2

// Config says what a [Server] serves with. All but Store may be left out.
type Config struct {
	// Store is where all state is. The server does not close it.
	Store *store.Store

	// PublicURL is the http or https URL that clients know this registry by,
	// the base of the rendezvous URLs that it hands out. Empty: what the
	// request came to.
	PublicURL string

	// TrustProxy believes X-Forwarded-Proto and X-Forwarded-Host, which the
	// proxy in front must then set or remove on every request.
	TrustProxy bool

	Logger *slog.Logger

	// Limits are those of a principal that has none of its own.
	Limits principal.Limits

	// Grace is how long a stream keeps its route without one of its websockets.
	// Zero means DefaultGrace.
	Grace time.Duration

	// ClockSkew is how far the timestamps of agent identities may be off, at
	// most 5 minutes. Zero means DefaultClockSkew.
	ClockSkew time.Duration
}

// Server is one registry with its rendezvous. It is an [http.Handler]; any
// number of servers on the same store, in one or many processes, are one
// registry to executors and harnesses.
type Server struct {
	store      *store.Store
	publicURL  *url.URL // nil: from the request
	trustProxy bool
	log        *slog.Logger
	grace      time.Duration
	clockSkew  time.Duration
	limits     *limits.Limiter
	signer     *ticket.Signer
	metrics    *metrics
	node       string // names this server to the others; never used again after it

	trouble rate.Sometimes // lines about a store that fails, of which there is one for each who needs it then

	draining atomic.Bool // readyz and upgrades are refused; set by Drain
	routes   *routes     // the websockets and streams here, see route.go

	aftermath aftermath // of many websockets at once

	cancel context.CancelFunc // ends the goroutines of wg
	wg     sync.WaitGroup
}

// New makes a server and announces its node to the others on the same store. The
// context bounds only that, as does a minute.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Store == nil {
		return nil, errors.New("a registry needs a store")
	}
	s := &Server{
		store:      cfg.Store,
		trustProxy: cfg.TrustProxy,
		log:        cfg.Logger,
		grace:      cfg.Grace,
		clockSkew:  cfg.ClockSkew,
		limits:     limits.New(cfg.Limits),
		metrics:    newMetrics(),
		node:       uuid.NewString(),
		trouble:    rate.Sometimes{First: 100, Interval: time.Second},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.grace == 0 {
		s.grace = DefaultGrace
	}
	if s.clockSkew == 0 {
		s.clockSkew = DefaultClockSkew
	}
	if s.clockSkew < 0 || s.clockSkew > maxClockSkew {
		return nil, fmt.Errorf("clock skew %v is not between 0 and %v", s.clockSkew, maxClockSkew)
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

	background, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	if err := s.start(ctx, background); err != nil {
		cancel()
		return nil, errors.Join(err, s.store.Withdraw(context.WithoutCancel(ctx), s.node))
	}
	return s, nil
}

// start starts what runs until background ends; ctx bounds only the start.
func (s *Server) start(ctx, background context.Context) error {
	if err := store.Persist(ctx, func() error { return s.store.Announce(ctx, s.node) }); err != nil {
		return err
	}
	var err error
	if s.routes, err = newRoutes(ctx, s); err != nil {
		return err
	}
	// The watch lives as long as the context that it is made with.
	stop := context.AfterFunc(ctx, s.cancel)
	var revoked *store.Revocations
	err = store.Persist(ctx, func() (err error) {
		revoked, err = s.store.WatchRevocations(background)
		return err
	})
	if err == nil && !stop() {
		err = errors.Join(context.Cause(ctx), revoked.Stop())
	}
	if err != nil {
		return errors.Join(err, s.routes.close())
	}
	s.wg.Go(func() { revoked.Run(background, func(id string) { s.routes.review(background, id) }) })
	s.wg.Go(func() { s.routes.audit(background) })
	s.wg.Go(func() { s.store.Heartbeat(background, s.node) })
	return nil
}

// parsePublicURL returns the base of rendezvous URLs.
func parsePublicURL(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("public URL is not a URL") // the error quotes it, with what it may hold
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, errors.New("public URL is neither http nor https")
	case u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return nil, errors.New("public URL has no host, or more than a host and a path")
	}
	return &url.URL{Scheme: strings.Replace(u.Scheme, "http", "ws", 1), Host: u.Host, Path: strings.TrimRight(u.Path, "/")}, nil
}

// base is what rendezvous URLs of the answer to r start with: ws or wss, host
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
	// A host in a header may be anything.
	u, err := url.Parse(scheme + "://" + host)
	if err != nil || u.Host != host || host == "" || u.User != nil {
		return nil, errors.New("the host of the request is not one")
	}
	return u, nil
}

// tell logs what a principal has caused, within what it may.
func (s *Server) tell(level slog.Level, message, environmentID, registrationID, principalID string, more ...any) {
	ctx := context.Background()
	if !s.log.Enabled(ctx, level) {
		return
	}
	unsaid, ok := s.limits.Line(principalID)
	if !ok {
		return
	}
	attrs := append([]any{"environment", environmentID, "registration", registrationID, "principal", principalID}, more...)
	if unsaid > 0 {
		attrs = append(attrs, "lines_left_out", unsaid)
	}
	s.log.Log(ctx, level, message, attrs...)
}

// Close ends all websockets and waits for what the server has started. It does
// not wait for requests, which the owner of the http.Server ends first. Streams
// move to other servers of the same store as after a crash; see [Server.Drain].
func (s *Server) Close() error {
	s.draining.Store(true)
	err := s.routes.close()
	s.aftermath.stop()
	s.cancel()
	s.wg.Wait()
	if err := s.store.Withdraw(context.Background(), s.node); err != nil {
		// The others find out by themselves, after nodeTTL.
		s.log.Warn("leaving the store", "error", err)
	}
	return err
}
