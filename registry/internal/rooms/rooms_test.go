package rooms

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// patience is how long something may take on however busy a machine.
const patience = 2 * time.Minute

// site is rooms behind an HTTP server, with the keys of an executor and of a harness.
type site struct {
	t       *testing.T
	rooms   *Rooms
	store   *store.Store
	url     *url.URL
	keys    map[ticket.Role]string // their principals
	reg     string                 // the id of the registration
	refused chan string            // reasons
}

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, keys: map[ticket.Role]string{}, refused: make(chan string, 64)}
	s.store, _ = storetest.Open(t)
	for _, role := range []ticket.Role{ticket.Executor, ticket.Harness} {
		err := store.Persist(t.Context(), func() error {
			_, key, err := s.store.CreateKey(t.Context(), store.Key{Role: string(role), Environments: "*"})
			s.keys[role] = store.KeyPrefix + key.ID
			return err
		})
		rig.Must(t, err)
	}
	limiter := limits.New(store.Limits{}, 0)
	s.rooms = New(Config{
		Store: s.store, Signer: ticket.NewSigner(make([]byte, 32)), Limits: limiter, Log: limits.NewLog(slog.New(slog.DiscardHandler), limiter), Node: "n",
		Allows: func(id string) bool { return id != "not" },
		Verify: func(*http.Request, string) (bool, error) { return false, nil },
		Metrics: Metrics{Executors: new(atomic.Int64), Harnesses: new(atomic.Int64), Bytes: new(atomic.Uint64), Refused: func(reason string) {
			s.refused <- reason
		}},
	})
	server := httptest.NewServer(s.rooms)
	t.Cleanup(server.Close)
	t.Cleanup(s.rooms.Close)
	s.url = rig.Value(url.Parse("ws" + strings.TrimPrefix(server.URL, "http")))
	reg, conflict, err := s.store.RegisterDirect(t.Context(), "e", "", s.keys[ticket.Executor], func() bool { return true }, s.rooms.HasExecutor)
	if err != nil || conflict {
		t.Fatal(conflict, err)
	}
	s.reg = reg.ID
	return s
}

// ticket returns one that is good, for that role.
func (s *site) ticket(role ticket.Role) ticket.Ticket {
	return ticket.Ticket{Role: role, EnvironmentID: "e", RegistrationID: s.reg, Principal: s.keys[role], Expires: time.Now().Add(time.Hour), Direct: true}
}

// dial opens a websocket. With an error there is the status that has refused it.
func (s *site) dial(t ticket.Ticket) (*websocket.Conn, int, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	ws, answer, err := websocket.DefaultDialer.DialContext(ctx, s.rooms.cfg.Signer.URL(s.url, t), nil)
	if err != nil {
		if answer == nil {
			return nil, 0, err
		}
		return nil, answer.StatusCode, fmt.Errorf("%d %s: %w", answer.StatusCode, answer.Header.Get(wire.HeaderRejectionReason), err)
	}
	s.t.Cleanup(func() { _ = ws.Close() })
	_ = ws.SetReadDeadline(time.Now().Add(patience))
	return ws, answer.StatusCode, nil
}

func (s *site) open(role ticket.Role) *websocket.Conn {
	s.t.Helper()
	ws, _, err := s.dial(s.ticket(role))
	rig.Must(s.t, err)
	return ws
}

func (s *site) counts() (executors, harnesses int64) {
	return s.rooms.cfg.Metrics.Executors.Load(), s.rooms.cfg.Metrics.Harnesses.Load()
}

// TestRefused: who gets no websocket is told why, with the status that says what to do.
func TestRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, tt := range map[string]struct {
		role   ticket.Role
		change func(*ticket.Ticket)
		status int
		reason string
	}{
		"an expired URL of an executor": {ticket.Executor, func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Minute) }, http.StatusConflict, ticket.RejectExpired},
		"an expired URL of a harness":   {ticket.Harness, func(t *ticket.Ticket) { t.Expires = time.Now().Add(-time.Minute) }, http.StatusUnauthorized, ticket.RejectExpired},
		"a key of the other role":       {ticket.Executor, func(t *ticket.Ticket) { t.Principal = s.keys[ticket.Harness] }, http.StatusForbidden, ticket.RejectInvalidRole},
		"no such key":                   {ticket.Executor, func(t *ticket.Ticket) { t.Principal = store.KeyPrefix + "0123456789abcdef" }, http.StatusForbidden, ticket.RejectInvalidRole},
		"where it is not allowed":       {ticket.Executor, func(t *ticket.Ticket) { t.EnvironmentID = "not" }, http.StatusForbidden, ticket.RejectInvalidRole},
		"without the signature":         {ticket.Executor, func(t *ticket.Ticket) { t.Signed = true }, http.StatusForbidden, rejectUnsigned},
		"another executor registered":   {ticket.Executor, func(t *ticket.Ticket) { t.RegistrationID = "reg_1" }, http.StatusConflict, rejectUnknown},
		"a harness of the one before":   {ticket.Harness, func(t *ticket.Ticket) { t.RegistrationID = "reg_1" }, http.StatusGone, rejectUnknown},
		"nobody is there":               {ticket.Harness, func(*ticket.Ticket) {}, http.StatusServiceUnavailable, rejectUnavailable},
	} {
		bad := s.ticket(tt.role)
		tt.change(&bad)
		_, status, err := s.dial(bad)
		rig.Is(t, status, tt.status, "%s: %v", name, err)
		rig.Is(t, <-s.refused, tt.reason, "%s", name)
	}
}

// TestJoined: a harness waits for a websocket of the executor; what either says the other hears,
// and the end of one is that of the other.
func TestJoined(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.rooms.joining = patience
	first := s.open(ticket.Executor)
	rig.Until(t, "the executor is there", func() bool { return s.rooms.HasExecutor(s.reg) })
	taken := s.open(ticket.Harness)
	type opened struct {
		ws  *websocket.Conn
		err error
	}
	waiting := make(chan opened, 1)
	go func() {
		ws, _, err := s.dial(s.ticket(ticket.Harness))
		waiting <- opened{ws, err}
	}()
	rig.Until(t, "the second harness waits", func() bool {
		s.rooms.mu.Lock()
		defer s.rooms.mu.Unlock()
		return len(s.rooms.rooms[s.reg].wanting) == 1
	})
	second := s.open(ticket.Executor)
	got := <-waiting
	rig.Must(t, got.err)
	for _, pair := range [][2]*websocket.Conn{{first, taken}, {got.ws, second}} {
		rig.Must(t, pair[0].WriteMessage(websocket.TextMessage, []byte("hello")))
		_, text, err := pair[1].ReadMessage()
		rig.Must(t, err)
		rig.Is(t, string(text), "hello", "what arrives")
		_ = pair[0].Close()
		_, _, err = pair[1].ReadMessage()
		rig.Is(t, err == nil, false, "the other end goes on")
	}
	rig.Until(t, "nobody is there any more", func() bool { e, h := s.counts(); return e == 0 && h == 0 && !s.rooms.HasExecutor(s.reg) })
}

// TestCrowded: an executor has as many websockets as it may, and then no more.
func TestCrowded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for range Websockets {
		s.open(ticket.Executor)
	}
	rig.Until(t, "all are there", func() bool { e, _ := s.counts(); return e == Websockets })
	extra, _, err := s.dial(s.ticket(ticket.Executor))
	if err == nil {
		_, _, err = extra.ReadMessage()
	}
	rig.Is(t, err == nil, false, "one too many is there")
	e, _ := s.counts()
	rig.Is(t, e, Websockets, "websockets")
}

// TestManyWait: only so many harnesses wait for an executor, half of them of one principal, and those
// beyond are told at once.
func TestManyWait(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	rm := newRoom("e", "r")
	s.rooms.rooms["r"] = rm
	ctx, cancel := context.WithCancel(t.Context())
	s.rooms.joining = patience
	find := func(principal string) error {
		_, _, err := s.rooms.find(ctx, "r", principal)
		return err
	}
	over := make(chan error, Websockets)
	waits := func(n int, principal func(i int) string) {
		before := rm.harnesses.Used()
		for i := range n {
			go func() { over <- find(principal(i)) }()
		}
		rig.Until(t, "all wait", func() bool { return rm.harnesses.Used() == before+int64(n) })
	}
	waits(Websockets/2, func(int) string { return "one" })
	rig.Is(t, find("one"), errAbsent, "one too many of one principal")
	waits(Websockets/2, func(i int) string { return fmt.Sprint(i) })
	rig.Is(t, find("another"), errAbsent, "one too many")
	cancel()
	for range Websockets {
		rig.Is(t, <-over, errAbsent, "")
	}
	rig.Is(t, rm.harnesses.Used(), 0, "still wait")
}

// TestClosed: Close ends what is open, and waits; an executor that comes then is sent away.
func TestClosed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ws := s.open(ticket.Executor)
	s.rooms.Close()
	_, _, err := ws.ReadMessage()
	rig.Is(t, err == nil, false, "a websocket is still open")
	rig.Is(t, fmt.Sprint(s.counts()), "0 0", "websockets of executors and harnesses")
	rig.Is(t, s.rooms.HasExecutor(s.reg), false, "the executor is there")
	_, status, err := s.dial(s.ticket(ticket.Executor))
	rig.Is(t, status, http.StatusServiceUnavailable, "%v", err)
	rig.Is(t, <-s.refused, rejectDraining, "the reason")
}
