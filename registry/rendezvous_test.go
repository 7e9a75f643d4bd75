package registry

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/relay/socket"
)

// soon is how long a test waits for what must happen.
const soon = 30 * time.Second

// cluster is what servers on one NATS have in common.
type cluster struct {
	t    testing.TB
	open func() *Store // another process's store on it
	st   *Store        // for the test itself

	environmentID string
	registration  registration
	executorKey   string // principal ids
	harnessKey    string
	servers       []*relayServer
}

// newCluster has one environment, env, with a registered executor.
func newCluster(t testing.TB) *cluster {
	st, dir := openTestStore(t)
	return newClusterOn(t, st, func() *Store { return openBeside(t, dir) })
}

func newClusterOn(t testing.TB, st *Store, open func() *Store) *cluster {
	c := &cluster{t: t, st: st, open: open, environmentID: "env"}
	c.executorKey = c.principal(Key{Role: string(roleExecutor), Environments: "*"})
	c.harnessKey = c.principal(Key{Role: string(roleHarness), Environments: "*"})
	c.registration = c.register("env")
	return c
}

func (c *cluster) principal(k Key) string {
	c.t.Helper()
	_, key, err := c.st.CreateKey(c.t.Context(), k)
	if err != nil {
		c.t.Fatal(err)
	}
	return keyPrincipal + key.ID
}

func (c *cluster) register(environmentID string) registration {
	c.t.Helper()
	reg, conflict, err := c.st.register(c.t.Context(), environmentID, testKey(c.t), c.executorKey)
	if err != nil || conflict {
		c.t.Fatal(conflict, err)
	}
	return reg
}

// pair starts n servers, one or two, and returns the first and the last.
func (c *cluster) pair(n int, cfg Config) (first, last *relayServer) {
	c.t.Helper()
	first = c.server(cfg)
	if n == 1 {
		return first, first
	}
	return first, c.server(cfg)
}

// relayServer is one registry process, as far as others can tell.
type relayServer struct {
	*Server
	c    *cluster
	http *httptest.Server
}

// server starts another server with a store of its own. Close may come before
// the end of the test.
func (c *cluster) server(cfg Config) *relayServer {
	c.t.Helper()
	cfg.Store = c.open()
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("server", len(c.servers))
	}
	s, err := New(c.t.Context(), cfg)
	if err != nil {
		c.t.Fatal(err)
	}
	ts := &relayServer{Server: s, c: c, http: httptest.NewServer(s)}
	c.servers = append(c.servers, ts)
	c.t.Cleanup(func() {
		ts.http.Close()
		if err := s.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return ts
}

// get is a plain request.
func (ts *relayServer) get(url string) (*http.Response, error) {
	client := http.Client{Timeout: soon}
	return client.Get(url)
}

func (ts *relayServer) base() *url.URL {
	u, err := url.Parse(strings.Replace(ts.http.URL, "http", "ws", 1))
	if err != nil {
		ts.c.t.Fatal(err)
	}
	return u
}

func (ts *relayServer) ticket(role role) ticket {
	t := ticket{role: role, environmentID: ts.c.environmentID, registrationID: ts.c.registration.ID, principal: ts.c.harnessKey, expires: time.Now().Add(time.Hour)}
	if role == roleExecutor {
		t.principal = ts.c.executorKey
	}
	return t
}

func (ts *relayServer) url(t ticket) string { return ts.signer.ticketURL(ts.base(), t) }

func TestRejection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(Config{})
	draining := c.server(Config{})
	if err := draining.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := c.server(Config{Limits: Limits{Connections: 1}})
	full.dial(full.ticket(roleExecutor))
	c.waitOnline(full.node)
	full.harness()

	change := func(change func(*ticket)) string {
		k := s.ticket(roleExecutor)
		change(&k)
		return s.url(k)
	}
	query := func(change func(url.Values)) string {
		u, err := url.Parse(s.url(s.ticket(roleExecutor)))
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		change(q)
		u.RawQuery = q.Encode()
		return u.String()
	}
	other := c.register("other")
	narrow := c.principal(Key{Role: string(roleExecutor), Environments: "prod-*"})
	revoked := c.principal(Key{Role: string(roleExecutor), Environments: "*"})
	if _, err := c.st.RevokeKey(t.Context(), strings.TrimPrefix(revoked, keyPrincipal)); err != nil {
		t.Fatal(err)
	}
	offline := s.ticket(roleHarness)
	offline.environmentID, offline.registrationID = "other", other.ID

	tests := []struct {
		name   string
		url    string
		status int
		reason string
	}{
		{"expired", change(func(t *ticket) { t.expires = time.Now().Add(-time.Second) }), 401, rejectExpired},
		{"no query", s.base().String() + RendezvousPath, 400, rejectMissingRole},
		{"malformed query", s.url(s.ticket(roleExecutor)) + "&%zz", 400, rejectMalformedQuery},
		{"semicolon", s.url(s.ticket(roleExecutor)) + ";x=1", 400, rejectMalformedQuery},
		{"no role", query(func(q url.Values) { q.Del(paramRole) }), 400, rejectMissingRole},
		{"no expiry", query(func(q url.Values) { q.Del(paramExpiry) }), 400, rejectMissingExpiry},
		{"no signature", query(func(q url.Values) { q.Del(paramSignature) }), 400, rejectMissingSignature},
		{"no version", query(func(q url.Values) { q.Del(paramVersion) }), 400, rejectMissingVersion},
		{"no registration", query(func(q url.Values) { q.Del(paramRegistration) }), 400, rejectMissingRegistration},
		{"no environment", query(func(q url.Values) { q.Del(paramEnvironment) }), 400, rejectMalformedQuery},
		{"twice", query(func(q url.Values) { q.Add(paramRole, "harness") }), 400, rejectMalformedQuery},
		{"extra", query(func(q url.Values) { q.Set("x", "1") }), 400, rejectExtraParam},
		{"other version", query(func(q url.Values) { q.Set(paramVersion, "2") }), 400, rejectMalformedQuery},
		{"unknown role", query(func(q url.Values) { q.Set(paramRole, "registry") }), 400, rejectInvalidRole},
		{"bad expiry", query(func(q url.Values) { q.Set(paramExpiry, "tomorrow") }), 400, rejectInvalidExpiry},
		{"later expiry", query(func(q url.Values) { q.Set(paramExpiry, "99999999999") }), 401, rejectInvalidSignature},
		{"other role", query(func(q url.Values) { q.Set(paramRole, "harness") }), 401, rejectInvalidSignature},
		{"other registration", query(func(q url.Values) { q.Set(paramRegistration, other.ID) }), 401, rejectInvalidSignature},
		{"bad signature", query(func(q url.Values) { q.Set(paramSignature, "AAAA") }), 401, rejectInvalidSignature},
		{"bad environment id", change(func(t *ticket) { t.environmentID = "a/b" }), 400, rejectMalformedQuery},
		{"bad registration id", change(func(t *ticket) { t.registrationID = "a.>" }), 400, rejectMalformedQuery},
		{"unknown environment", change(func(t *ticket) { t.environmentID = "nobody" }), 410, rejectUnknownRoute},
		{"replaced registration", change(func(t *ticket) { t.registrationID = "reg_old" }), 410, rejectUnknownRoute},
		{"unknown principal", change(func(t *ticket) { t.principal = "key:0000" }), 403, rejectInvalidRole},
		{"revoked principal", change(func(t *ticket) { t.principal = revoked }), 403, rejectInvalidRole},
		{"role of another principal", change(func(t *ticket) { t.principal = c.harnessKey }), 403, rejectInvalidRole},
		{"environment of another principal", change(func(t *ticket) { t.principal = narrow }), 403, rejectInvalidRole},
		{"harness without executor", s.url(offline), 503, rejectRouteUnavailable},
		{"draining executor", draining.url(draining.ticket(roleExecutor)), 503, rejectDraining},
		{"draining harness", draining.url(draining.ticket(roleHarness)), 503, rejectDraining},
		{"too many executors", full.url(full.ticket(roleExecutor)), 503, rejectRouteUnavailable},
		{"too many harnesses", full.url(full.ticket(roleHarness)), 429, rejectRouteUnavailable},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := socket.Dial(t.Context(), tt.url, nil, socket.Config{})
			refused, ok := errors.AsType[*socket.RefusedError](err)
			if !ok || refused.Status != tt.status || refused.Reason != tt.reason {
				t.Errorf("got %v, want %d %s", err, tt.status, tt.reason)
			}
		})
	}
	t.Run("no upgrade", func(t *testing.T) {
		resp, err := s.get(strings.Replace(s.url(s.ticket(roleExecutor)), "ws", "http", 1))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("got %d, want 400", resp.StatusCode)
		}
	})
	t.Run("header", func(t *testing.T) {
		resp, err := s.get(s.http.URL + RendezvousPath)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get(protocol.HeaderRejectionReason); got != rejectMissingRole {
			t.Errorf("got reason %q", got)
		}
	})
}

// TestTicketIsReusable: the reference connects with one URL again and again.
func TestTicketIsReusable(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(Config{})
	u := s.url(s.ticket(roleExecutor))
	for range 3 {
		e := s.dialURL(u)
		c.waitOnline(s.node)
		h := s.harness()
		opened(h, e, "stream", 0)
		e.socket.Close()
		h.wantEnd()
	}
}
