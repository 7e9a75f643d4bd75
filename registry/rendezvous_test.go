package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
)

// soon is how long a test waits for what must happen.
const soon = 10 * time.Second

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

// end is one end of the relay, as the test plays it.
type end struct {
	t        testing.TB
	socket   *socket.Socket
	lane     *socket.Lane
	messages chan []byte     // closed with the socket
	resets   map[string]bool // of streams, that were dropped
}

func (ts *relayServer) dial(t ticket) *end {
	ts.c.t.Helper()
	return ts.dialURL(ts.url(t))
}

func (ts *relayServer) dialURL(rawURL string) *end {
	ts.c.t.Helper()
	return ts.dialBuffered(rawURL, 1<<16)
}

// dialBuffered connects an end that reads so many messages ahead of the test.
func (ts *relayServer) dialBuffered(rawURL string, ahead int) *end {
	t := ts.c.t
	t.Helper()
	s, err := socket.Dial(t.Context(), rawURL, nil, socket.Config{})
	if err != nil {
		t.Fatal(err)
	}
	e := &end{t: t, socket: s, lane: s.NewLane(64 << 20), messages: make(chan []byte, ahead), resets: make(map[string]bool)}
	go func() {
		defer close(e.messages)
		for {
			m, err := s.Read()
			if err != nil {
				return
			}
			e.messages <- bytes.Clone(m.Bytes)
			m.Release()
		}
	}()
	t.Cleanup(func() {
		s.Close()
		for range e.messages { // the reader may wait for room
		}
	})
	return e
}

// executor connects one and waits until the store and the server know it.
func (ts *relayServer) executor() *end {
	ts.c.t.Helper()
	e := ts.dial(ts.ticket(roleExecutor))
	ts.c.waitOnline(ts.node)
	return e
}

func (ts *relayServer) harness() *end {
	ts.c.t.Helper()
	return ts.dial(ts.ticket(roleHarness))
}

func (c *cluster) waitOnline(node string) {
	c.t.Helper()
	c.eventually("the executor is online", func() bool {
		p, ok, err := c.st.online(c.t.Context(), c.environmentID)
		return err == nil && ok && p.Node == node
	})
}

// eventually asks until condition is true.
func (c *cluster) eventually(what string, condition func() bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), soon)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			c.t.Fatalf("not within %v: %s", soon, what)
		case <-tick.C:
		}
	}
}

func (e *end) send(message []byte) {
	e.t.Helper()
	m := socket.NewMessage(len(message))
	m.Bytes = append(m.Bytes, message...)
	if err := e.lane.Send(m); err != nil {
		e.t.Fatal(err)
	}
}

// trySend is for a websocket that may have ended.
func (e *end) trySend(f frame.Frame) {
	m := socket.NewMessage(0)
	m.Bytes = f.Append(m.Bytes)
	e.lane.TrySend(m)
}

func (e *end) sendFrame(f frame.Frame) []byte {
	e.t.Helper()
	b := f.Append(nil)
	e.send(b)
	return b
}

func (e *end) receive() []byte {
	e.t.Helper()
	select {
	case m, ok := <-e.messages:
		if !ok {
			e.t.Fatalf("websocket has ended: %v", e.socket.Err())
		}
		return m
	case <-time.After(soon):
		e.t.Fatal("nothing came")
	}
	return nil
}

func (e *end) want(message []byte) {
	e.t.Helper()
	if got := e.receive(); !bytes.Equal(got, message) {
		e.t.Fatalf("got %q, want %q", printable(got), printable(message))
	}
}

func printable(message []byte) string {
	var f frame.Frame
	if err := frame.Decode(message, &f); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %d ack %d seq %d %.64q %s", f.StreamID, f.Body, f.Ack, f.Seq, f.Payload, f.Reason)
}

func (e *end) wantReset(stream, reason string) {
	e.t.Helper()
	f := frame.Frame{StreamID: []byte(stream), Body: frame.Reset, Reason: []byte(reason)}
	e.want(f.Append(nil))
}

// wantAnyReset is wantReset with any of the reasons.
func (e *end) wantAnyReset(stream string, reasons ...string) {
	e.t.Helper()
	var f frame.Frame
	got := e.receive()
	if err := frame.Decode(got, &f); err != nil || f.Body != frame.Reset || string(f.StreamID) != stream || !slices.Contains(reasons, string(f.Reason)) {
		e.t.Fatalf("got %q, want a reset of %s for one of %q", printable(got), stream, reasons)
	}
}

// until drops messages until the wanted one comes, which is sent again and again.
func (e *end) until(message []byte, send func()) {
	e.t.Helper()
	if !e.drop(func(got []byte) bool { return bytes.Equal(got, message) }, send) {
		e.t.Fatalf("websocket has ended: %v", e.socket.Err())
	}
}

// untilReset drops messages until the stream is reset or the websocket ends,
// which send brings about in the end. What was dropped before counts.
func (e *end) untilReset(stream string, send func()) {
	e.t.Helper()
	if !e.resets[stream] {
		e.drop(func([]byte) bool { return e.resets[stream] }, send)
	}
}

// drop drops messages until a wanted one comes, and reports false if the
// websocket ends before. It sends again and again.
func (e *end) drop(wanted func(message []byte) bool, send func()) bool {
	e.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(soon)
	send()
	for {
		select {
		case got, ok := <-e.messages:
			var f frame.Frame
			if ok && frame.Decode(got, &f) == nil && f.Body == frame.Reset {
				e.resets[string(f.StreamID)] = true
			}
			if !ok || wanted(got) {
				return ok
			}
		case <-tick.C:
			send()
		case <-deadline:
			e.t.Fatal("it never came")
		}
	}
}

// wantEnd waits for the end of the websocket; frames before it are dropped.
func (e *end) wantEnd() {
	e.t.Helper()
	timeout := time.After(soon)
	for {
		select {
		case _, ok := <-e.messages:
			if !ok {
				return
			}
		case <-timeout:
			e.t.Fatal("the websocket is still open")
		}
	}
}

// wantNothing comes after something that would have arrived later.
func (e *end) wantNothing() {
	e.t.Helper()
	select {
	case m, ok := <-e.messages:
		e.t.Fatalf("got %q, %v", printable(m), ok)
	default:
	}
}

func data(stream string, seq uint32, payload string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Data, Seq: seq, Payload: []byte(payload)}
}

func acked(f frame.Frame, ack uint32) frame.Frame {
	f.Ack = ack
	return f
}

func resume(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Resume}
}

func handshake(stream string) frame.Frame {
	return frame.Frame{StreamID: []byte(stream), Body: frame.Handshake, Payload: []byte("message 1")}
}

// opened opens a stream and lets both ends say something; with ack they show that
// they acknowledge.
func opened(h, e *end, stream string, ack uint32) {
	h.t.Helper()
	e.want(h.sendFrame(resume(stream)))
	e.want(h.sendFrame(handshake(stream)))
	h.want(e.sendFrame(handshake(stream)))
	exchange(h, e, stream, ack)
}

func exchange(h, e *end, stream string, ack uint32) {
	h.t.Helper()
	e.want(h.sendFrame(acked(data(stream, 0, "to the executor"), ack)))
	h.want(e.sendFrame(acked(data(stream, 0, "to the harness"), ack)))
}

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
		resp, err := http.Get(strings.Replace(s.url(s.ticket(roleExecutor)), "ws", "http", 1))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("got %d, want 400", resp.StatusCode)
		}
	})
	t.Run("header", func(t *testing.T) {
		resp, err := http.Get(s.http.URL + RendezvousPath)
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
