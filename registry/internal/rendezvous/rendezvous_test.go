package rendezvous

import (
	"cmp"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/nats-io/nats.go"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// soon is how long a test waits for what must happen, on however busy a machine.
const soon = 3 * time.Minute

// unread is how long a websocket lives that nobody reads, on however busy a machine: longer than a
// test.
const unread = time.Hour

// cluster is what servers on one NATS have in common.
type cluster struct {
	t     testing.TB
	open  func() *store.Store // another process's store on it
	st    *store.Store        // for the test itself
	where string              // the URL or the folder of its NATS, see storetest.Connect

	environmentID string
	registration  store.Registration
	executorKey   string // principal ids
	harnessKey    string
	servers       []*relayServer
}

// newCluster has one environment, env, with a registered executor.
func newCluster(t testing.TB) *cluster {
	ns := storetest.NATS(t, t.TempDir(), nil)
	t.Cleanup(func() { storetest.Stop(ns) })
	url := ns.ClientURL()
	return newClusterOn(t, storetest.At(t, url), url, func() *store.Store { return storetest.At(t, url) })
}

// newClusterOn is newCluster on a NATS of the test: st is the test's own store there,
// open makes one for each server, and where is the URL or the folder.
func newClusterOn(t testing.TB, st *store.Store, where string, open func() *store.Store) *cluster {
	c := &cluster{t: t, st: st, where: where, open: open, environmentID: "env"}
	c.executorKey = c.principal(store.Key{Role: string(ticket.Executor), Environments: "*"})
	c.harnessKey = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
	c.registration = c.register("env")
	return c
}

// nats is a connection beside those of the stores.
func (c *cluster) nats() *nats.Conn {
	c.t.Helper()
	return storetest.Connect(c.t, c.where)
}

// toAll is the subject of what servers write to all.
const toAll = "execagent.rendezvous"

// letter is a message to all as a server gets it.
func letter(message *nats.Msg) store.Letter {
	return store.Letter{From: message.Reply, Data: message.Data}
}

// forget makes the store forget who is online, as when it was opened again.
func (c *cluster) forget(environmentID string) {
	c.t.Helper()
	if err := storetest.Bucket(c.t, c.nats(), "presence").Purge(c.t.Context(), environmentID); err != nil {
		c.t.Error(err)
	}
}

func (c *cluster) principal(k store.Key) string {
	c.t.Helper()
	err := store.Persist(c.t.Context(), func() (err error) {
		_, k, err = c.st.CreateKey(c.t.Context(), k)
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return store.KeyPrefix + k.ID
}

func (c *cluster) register(environmentID string) store.Registration {
	c.t.Helper()
	var reg store.Registration
	var conflict bool
	key := storetest.Key(c.t)
	err := store.Persist(c.t.Context(), func() (err error) {
		reg, conflict, err = c.st.Register(c.t.Context(), environmentID, key, c.executorKey, always, never)
		return err
	})
	if err != nil || conflict {
		c.t.Fatal(conflict, err)
	}
	return reg
}

// dropped is how many frames all servers have dropped.
func (c *cluster) dropped() (n uint64) {
	for _, ts := range c.servers {
		n += ts.metrics.Dropped.Load()
	}
	return n
}

// pair starts n servers, one or two, and returns the first and the last.
func (c *cluster) pair(n int, cfg settings) (first, last *relayServer) {
	c.t.Helper()
	first = c.server(cfg)
	if n == 1 {
		return first, first
	}
	return first, c.server(cfg)
}

// relayServer stands for one registry process: a rendezvous with a store and an HTTP
// server of its own.
type relayServer struct {
	*Routes
	c    *cluster
	http *httptest.Server
}

// settings are what servers of a test differ in.
type settings struct {
	Logger *slog.Logger
	Limits store.Limits
	Memory int64         // that a server may take; zero: no limit
	Grace  time.Duration // zero: soon
	// Silence is how long nothing is heard of a server that is dead; zero: soon, since on a busy
	// machine others may say nothing for a while.
	Silence time.Duration
}

// server starts another server with a store of its own. Close may come before
// the end of the test.
func (c *cluster) server(cfg settings) *relayServer {
	c.t.Helper()
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
		if testing.Verbose() {
			logger = slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("server", len(c.servers))
		}
	}
	st := c.open()
	var key []byte
	err := store.Persist(c.t.Context(), func() (err error) {
		key, err = st.SharedKey(c.t.Context())
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	l := limits.New(cfg.Limits, cfg.Memory)
	s, err := New(c.t.Context(), Config{
		Store: st, Signer: ticket.NewSigner(key), Limits: l, Log: limits.NewLog(logger, l), Metrics: new(Metrics),
		Self: store.Server{Node: rand.Text()}, Grace: cmp.Or(cfg.Grace, soon),
	})
	if err != nil {
		c.t.Fatal(err)
	}
	s.opening = soon // whatever a test does first
	s.hop.mu.Lock()
	s.silence = cmp.Or(cfg.Silence, soon)
	s.hop.mu.Unlock()
	ts := &relayServer{Routes: s, c: c, http: httptest.NewServer(s)}
	c.servers = append(c.servers, ts)
	c.t.Cleanup(func() {
		ts.http.Close()
		if err := s.Close(); err != nil {
			c.t.Error(err)
		}
	})
	return ts
}

// take registers another key for an environment at a server, as its API does, and
// tells whether the environment has an executor that is in the way.
func (ts *relayServer) take(environmentID string, key *wire.PublicKey) (reg store.Registration, conflict bool, err error) {
	return ts.store.Register(ts.c.t.Context(), environmentID, key, "key:another", always, ts.HasExecutor)
}

// wantOnline asks a server what its API asks before it gives a harness a URL.
func (ts *relayServer) wantOnline(want bool) {
	ts.c.t.Helper()
	online, err := ts.Online(ts.c.t.Context(), ts.c.environmentID, ts.c.registration.ID)
	if err != nil || online != want {
		ts.c.t.Errorf("online is %v, %v, want %v", online, err, want)
	}
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

func (ts *relayServer) ticket(role ticket.Role) ticket.Ticket {
	t := ticket.Ticket{Role: role, EnvironmentID: ts.c.environmentID, RegistrationID: ts.c.registration.ID, Principal: ts.c.harnessKey, Expires: time.Now().Add(time.Hour)}
	if role == ticket.Executor {
		t.Principal = ts.c.executorKey
	}
	return t
}

func (ts *relayServer) url(t ticket.Ticket) string { return ts.signer.URL(ts.base(), t) }

func TestRejection(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	draining := c.server(settings{})
	if err := draining.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	full := c.server(settings{Limits: store.Limits{Connections: 1}})
	full.dial(full.ticket(ticket.Executor))
	c.waitOnline(full.node)
	full.harness()

	change := func(change func(*ticket.Ticket)) string {
		k := s.ticket(ticket.Executor)
		change(&k)
		return s.url(k)
	}
	query := func(change func(url.Values)) string {
		u, err := url.Parse(s.url(s.ticket(ticket.Executor)))
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		change(q)
		u.RawQuery = q.Encode()
		return u.String()
	}
	other := c.register("other")
	narrow := c.principal(store.Key{Role: string(ticket.Executor), Environments: "prod-*"})
	revoked := c.principal(store.Key{Role: string(ticket.Executor), Environments: "*"})
	if _, err := c.st.RevokeKey(t.Context(), strings.TrimPrefix(revoked, store.KeyPrefix)); err != nil {
		t.Fatal(err)
	}
	offline := s.ticket(ticket.Harness)
	offline.EnvironmentID, offline.RegistrationID = "other", other.ID

	tests := []struct {
		name   string
		url    string
		status int
		reason string
	}{
		{"expired", change(func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Second) }), 401, ticket.RejectExpired},
		{"no query", s.base().String() + ticket.RendezvousPath, 400, ticket.RejectMissingRole},
		{"malformed query", s.url(s.ticket(ticket.Executor)) + "&%zz", 400, ticket.RejectMalformedQuery},
		{"semicolon", s.url(s.ticket(ticket.Executor)) + ";x=1", 400, ticket.RejectMalformedQuery},
		{"no role", query(func(q url.Values) { q.Del("role") }), 400, ticket.RejectMissingRole},
		{"no expiry", query(func(q url.Values) { q.Del("expiry") }), 400, ticket.RejectMissingExpiry},
		{"no signature", query(func(q url.Values) { q.Del("signature") }), 400, ticket.RejectMissingSignature},
		{"no version", query(func(q url.Values) { q.Del("version") }), 400, ticket.RejectMissingVersion},
		{"no registration", query(func(q url.Values) { q.Del("executor_registration_id") }), 400, ticket.RejectMissingRegistration},
		{"no environment", query(func(q url.Values) { q.Del("environment_id") }), 400, ticket.RejectMalformedQuery},
		{"twice", query(func(q url.Values) { q.Add("role", "harness") }), 400, ticket.RejectMalformedQuery},
		{"extra", query(func(q url.Values) { q.Set("x", "1") }), 400, ticket.RejectExtraParam},
		{"other version", query(func(q url.Values) { q.Set("version", "2") }), 400, ticket.RejectMalformedQuery},
		{"unknown role", query(func(q url.Values) { q.Set("role", "registry") }), 400, ticket.RejectInvalidRole},
		{"bad expiry", query(func(q url.Values) { q.Set("expiry", "tomorrow") }), 400, ticket.RejectInvalidExpiry},
		{"later expiry", query(func(q url.Values) { q.Set("expiry", "99999999999") }), 401, ticket.RejectInvalidSignature},
		{"other role", query(func(q url.Values) { q.Set("role", "harness") }), 401, ticket.RejectInvalidSignature},
		{"other registration", query(func(q url.Values) { q.Set("executor_registration_id", other.ID) }), 401, ticket.RejectInvalidSignature},
		{"bad signature", query(func(q url.Values) { q.Set("signature", "AAAA") }), 401, ticket.RejectInvalidSignature},
		{"bad environment id", change(func(t *ticket.Ticket) { t.EnvironmentID = "a/b" }), 400, ticket.RejectMalformedQuery},
		{"bad registration id", change(func(t *ticket.Ticket) { t.RegistrationID = "a.>" }), 400, ticket.RejectMalformedQuery},
		{"unknown environment", change(func(t *ticket.Ticket) { t.EnvironmentID = "nobody" }), 410, rejectUnknownRoute},
		{"replaced registration", change(func(t *ticket.Ticket) { t.RegistrationID = "reg_old" }), 410, rejectUnknownRoute},
		{"unknown principal", change(func(t *ticket.Ticket) { t.Principal = "key:0000" }), 403, ticket.RejectInvalidRole},
		{"revoked principal", change(func(t *ticket.Ticket) { t.Principal = revoked }), 403, ticket.RejectInvalidRole},
		{"role of another principal", change(func(t *ticket.Ticket) { t.Principal = c.harnessKey }), 403, ticket.RejectInvalidRole},
		{"environment of another principal", change(func(t *ticket.Ticket) { t.Principal = narrow }), 403, ticket.RejectInvalidRole},
		{"harness without executor", s.url(offline), 503, rejectRouteUnavailable},
		{"draining executor", draining.url(draining.ticket(ticket.Executor)), 503, rejectDraining},
		{"draining harness", draining.url(draining.ticket(ticket.Harness)), 503, rejectDraining},
		{"too many executors", full.url(full.ticket(ticket.Executor)), 503, rejectRouteUnavailable},
		{"too many harnesses", full.url(full.ticket(ticket.Harness)), 429, rejectRouteUnavailable},
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
		resp, err := s.get(strings.Replace(s.url(s.ticket(ticket.Executor)), "ws", "http", 1))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("got %d, want 400", resp.StatusCode)
		}
	})
	t.Run("header", func(t *testing.T) {
		resp, err := s.get(s.http.URL + ticket.RendezvousPath)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got := resp.Header.Get(wire.HeaderRejectionReason); got != ticket.RejectMissingRole {
			t.Errorf("got reason %q", got)
		}
	})
}

// TestTicketIsReusable: the reference connects with one URL again and again.
func TestTicketIsReusable(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	u := s.url(s.ticket(ticket.Executor))
	for range 3 {
		e := s.dialURL(u)
		c.waitOnline(s.node)
		h := s.harness()
		opened(h, e, "stream", 0)
		e.socket.Close()
		h.wantEnd()
	}
}

// TestWebsocketsComeAndGo: a principal whose websockets end as soon as they are open
// is refused after as many as it may have; others are not.
func TestWebsocketsComeAndGo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const most = 5
	s := c.server(settings{Limits: store.Limits{Connections: most, RequestBurst: most, Requests: 1e-6}})
	e := s.executor()
	busy := s.ticket(ticket.Harness)
	busy.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
	for range most {
		s.dial(busy).socket.Close()
	}
	for range 3 {
		c.eventually("its websockets have ended", func() bool { return s.metrics.Harnesses.Load() == 0 })
		_, err := socket.Dial(t.Context(), s.url(busy), nil, socket.Config{})
		refused, ok := errors.AsType[*socket.RefusedError](err)
		if !ok || refused.Status != http.StatusTooManyRequests || refused.Reason != rejectRouteUnavailable {
			t.Errorf("got %v", err)
		}
	}
	opened(s.harness(), e, "of others", 0)
}

// minByteBurst is how many bytes a principal may relay at once, however low its rate:
// the constant of this name in package limits.
const minByteBurst = 1 << 20

// TestFramesCount: a principal that sends tiny frames or text messages pays for them with
// more than their length of its bytes a second, since they cost the processor more.
func TestFramesCount(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{Limits: store.Limits{Bytes: 1}}) // and minByteBurst at once
	e := s.executor()
	left := func(id string) int {
		return int(s.limits.Allowance(id).Bytes.Tokens())
	}
	h := s.harness()
	opened(h, e, "stream", 0)
	const frames = 100
	for n := range uint32(frames) {
		e.want(h.sendFrame(data("stream", n, "x")))
	}
	if n := left(c.harnessKey); n > minByteBurst-frames*limits.FrameCost {
		t.Errorf("%d frames have left %d of %d bytes", frames, n, minByteBurst)
	}

	k := s.ticket(ticket.Harness)
	k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
	ws, _, err := websocket.DefaultDialer.Dial(s.url(k), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	const texts = 3
	for range texts {
		if err := ws.WriteMessage(websocket.TextMessage, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	last := resume("last")
	if err := ws.WriteMessage(websocket.BinaryMessage, last.Append(nil)); err != nil {
		t.Fatal(err)
	}
	e.want(last.Append(nil))
	if n := left(k.Principal); n > minByteBurst-texts*socket.MaxMessage {
		t.Errorf("%d texts have left %d of %d bytes", texts, n, minByteBurst)
	}
}

// TestHalfMessages: a principal that has sent too many large messages by half has to wait
// with the next one. Other principals need not.
func TestHalfMessages(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e, h := s.executor(), s.harness()
	opened(h, e, "stream", 0)
	large := s.limits.Large(&store.Principal{ID: c.harnessKey})
	for range cap(large) { // as halves of messages do
		large <- struct{}{}
	}
	long := strings.Repeat("x", 60_000)
	late := h.sendFrame(data("stream", 1, long))
	k := s.ticket(ticket.Harness)
	k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
	other := s.dial(k)
	opened(other, e, "of others", 0)
	e.want(other.sendFrame(data("of others", 1, long)))
	<-large
	e.want(late)
}

func always() bool { return true }

func never(string) bool { return false }
