package registry

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/execagent/execagent/registry/limits"
	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/rendezvous/notice"
	"github.com/execagent/execagent/registry/store"
	"github.com/execagent/execagent/registry/store/storetest"
	"github.com/execagent/execagent/registry/ticket"
	"github.com/execagent/execagent/registry/wire"
	"github.com/execagent/execagent/relay/socket"
)

// TestValidationsAreApart: however often harnesses make an executor ask about
// them, its key can still register. An executor ends at a 429.
func TestValidationsAreApart(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st, Limits: principal.Limits{Requests: 0.001, RequestBurst: 4}})
	key, _ := createKey(t, st, ticket.Executor, "*", principal.Limits{})
	id, _ := s.mustRegister(t, key, "env", storetest.Key(t))
	question := wire.ValidateRequest{ExecutorRegistrationID: id, HarnessPublicKey: storetest.Key(t), HarnessKeyAuthorization: "not one"}
	answers := map[int]int{}
	for range 10 {
		status, _, _ := s.post(t, "Bearer "+key, "/cloud/environment/env/validate", question)
		answers[status]++
	}
	if answers[http.StatusOK] != 4 || answers[http.StatusTooManyRequests] != 6 {
		t.Errorf("the questions were answered %v", answers)
	}
	s.mustRegister(t, key, "another", storetest.Key(t))
}

// TestHandshakesAreRequests: a handshake makes the executor ask the registry, so
// it counts as a request of the harness's principal.
func TestHandshakesAreRequests(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, Config{Limits: principal.Limits{Requests: 0.001, RequestBurst: 3}})
			e, h := first.executor(), last.harness()
			for i := range 3 {
				opened(h, e, fmt.Sprint(i), 0)
			}
			e.want(h.sendFrame(resume("3")))
			h.sendFrame(handshake("3"))
			e.wantReset("3", resetHandshakes)
			h.wantReset("3", resetHandshakes)
			exchange(h, e, "0", 0)
			other, _ := last.stranger()
			opened(other, e, "of another", 0)
		})
	}
}

// TestNewEnvironments: a principal that has registered too many new environments is
// refused another one, and keeps those that it has. Others are not refused.
func TestNewEnvironments(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	busy, id := createKey(t, st, ticket.Executor, "*", principal.Limits{})
	other, _ := createKey(t, st, ticket.Executor, "*", principal.Limits{})
	public := storetest.Key(t)
	a := s.limits.Allowance(principal.KeyPrefix + id)
	a.Created.SetLimit(0) // nothing comes back meanwhile
	for _, key := range []*wire.PublicKey{public, public, storetest.Key(t), public} {
		s.mustRegister(t, busy, "first", key)
		if left := a.Created.Tokens(); left != limits.MaxNewEnvironments-1 {
			t.Errorf("%v are left after the first", left)
		}
	}
	a.Created.AllowN(time.Now(), limits.MaxNewEnvironments-1)
	if status, code, _ := s.post(t, "Bearer "+busy, "/cloud/environment/more/register", registerBody(public)); status != http.StatusTooManyRequests || code != codeRateLimited {
		t.Errorf("got %d %s", status, code)
	}
	s.mustRegister(t, busy, "first", public)
	s.mustRegister(t, other, "more", public)
	s.mustRegister(t, busy, "more", storetest.Key(t))
}

// TestLines: a principal that causes too many lines in the log is told of by their
// number, and the lines of others are all there.
func TestLines(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st, Limits: principal.Limits{Connections: 2, RequestBurst: 2}})
	register := func(environmentID string) (lines *rate.Limiter, old string) {
		key, id := createKey(t, st, ticket.Executor, "*", principal.Limits{})
		lines = s.limits.Allowance(principal.KeyPrefix + id).Lines
		lines.SetLimit(0) // nothing comes back meanwhile
		_, old = s.mustRegister(t, key, environmentID, storetest.Key(t))
		s.mustRegister(t, key, environmentID, storetest.Key(t))
		return lines, old
	}
	refused := func(old string, times int) string {
		s.log.Reset()
		for range times {
			if _, err := socket.Dial(t.Context(), old, nil, socket.Config{}); err == nil {
				t.Fatal("a websocket of an old store.Registration is open")
			}
		}
		return s.log.String()
	}
	const message = `msg="websocket refused"`
	lines, old := register("busy")
	_, oldOfOther := register("other")
	if n := strings.Count(refused(old, 10), message); n != 2*limits.LinesPerConnection-2 {
		t.Errorf("%d of 10 lines are there", n)
	}
	if text := refused(oldOfOther, 1); strings.Count(text, message) != 1 || strings.Contains(text, "lines_left_out") {
		t.Errorf("the other's line is %q", text)
	}
	lines.SetLimit(rate.Inf)
	if text := refused(old, 2); strings.Count(text, message) != 2 || strings.Count(text, "lines_left_out=6\n") != 1 {
		t.Errorf("later lines are %q", text)
	}
}

// TestLinesOfTrouble: a store that fails is told of, but not for each who asks.
func TestLinesOfTrouble(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	start := time.Now()
	for range 1000 {
		s.broken("connect", "env", store.ErrUnavailable)
	}
	n, most := strings.Count(s.log.String(), "the store fails"), 101+int(time.Since(start)/time.Second)
	if n < 100 || n > most {
		t.Errorf("%d lines, want 100 to %d", n, most)
	}
}

// TestLimitBytesEnds: a websocket that waits for its principal's bytes ends at once
// when it is closed, and its environment is free.
func TestLimitBytesEnds(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	c := newClusterOn(t, st, dir, func() *store.Store { return st })
	s := c.server(Config{Limits: principal.Limits{Bytes: limits.MinByteBurst}})
	web := &testServer{Server: s.Server, url: s.http.URL}
	other, _ := createKey(t, st, ticket.Executor, "*", principal.Limits{})
	e := s.executor()
	a := s.limits.Allowance(c.executorKey)
	a.Bytes.SetLimit(0) // nothing comes back meanwhile
	a.Bytes.AllowN(time.Now(), int(a.Bytes.Tokens()))
	e.sendFrame(data("stream", 1, strings.Repeat("x", 60_000)))
	c.eventually("it waits", func() bool { return a.Bytes.Tokens() < 0 && len(a.Large) == 1 })
	if _, err := st.RevokeKey(t.Context(), strings.TrimPrefix(c.executorKey, principal.KeyPrefix)); err != nil {
		t.Fatal(err)
	}
	e.wantEnd()
	c.eventually("another key has the environment", func() bool {
		status, _, _ := web.post(t, "Bearer "+other, "/cloud/environment/env/register", registerBody(storetest.Key(t)))
		return status == http.StatusOK
	})
	if len(a.Large) != 0 {
		t.Error("its message still has a place")
	}
}

// TestNewEnvironmentsAtOnce: so is one that registers them all at once. What comes to
// nothing counts for nothing.
func TestNewEnvironmentsAtOnce(t *testing.T) {
	t.Parallel()
	st, _ := storetest.Open(t)
	s := startServer(t, Config{Store: st})
	key, id := createKey(t, st, ticket.Executor, "*", principal.Limits{})
	a := s.limits.Allowance(principal.KeyPrefix + id)
	a.Created.SetLimit(0) // nothing comes back meanwhile
	a.Created.AllowN(time.Now(), limits.MaxNewEnvironments-3)
	public := storetest.Key(t)
	statuses := make([]int, 100)
	var wg sync.WaitGroup
	for i := range statuses {
		wg.Go(func() {
			statuses[i], _, _ = s.post(t, "Bearer "+key, fmt.Sprintf("/cloud/environment/env-%d/register", i), registerBody(public))
		})
	}
	wg.Wait()
	registered := 0
	for _, status := range statuses {
		if status == http.StatusOK {
			registered++
		}
	}
	creating := s.limits.Usage(principal.KeyPrefix + id).Creating
	if registered > 3 || creating != 0 || a.Created.Tokens() != float64(3-registered) {
		t.Errorf("%d are registered, %d more under way, %v are left", registered, creating, a.Created.Tokens())
	}
}

// logged counts the lines of a log by their messages.
type logged struct {
	slog.Handler
	mu    sync.Mutex
	lines map[string]int
}

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }

func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[r.Message]++
	return nil
}

func (l *logged) count(message string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[message]
}

// TestLinesWhileAway: executors that come, go and are looked for while the store is
// away are no line each.
func TestLinesWhileAway(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	log := &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)}
	s := startServer(t, Config{Store: storetest.Beside(t, dir), Logger: slog.New(log)})
	reg, _, err := st.Register(t.Context(), "env", storetest.Key(t), "key:x", always, never)
	if err != nil {
		t.Fatal(err)
	}
	m := s.routes.enter("env", reg.ID)
	defer s.routes.leave(m)
	start := time.Now()
	s.store.Conn().Close()
	for range 300 {
		m.published = 1
		if m.goOffline(t.Context(), false) || !s.routes.locateOrLog(m) {
			t.Fatal("the store is there")
		}
	}
	n := log.count("executor's presence stays in the store") + log.count("looking for an executor") + log.count("another server was not told")
	if most := 101 + int(time.Since(start)/time.Second); n < 100 || n > most {
		t.Errorf("%d lines, want 100 to %d: %v", n, most, log.lines)
	}
	m.published = 0
}

// TestOfflineOnce: while the store does not answer, the other servers are not told
// again and again that an executor has gone.
func TestOfflineOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	log := &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)}
	s := c.server(Config{Logger: slog.New(log)})
	e := s.executor()
	nc := c.nats()
	notices, err := nc.SubscribeSync(hopSubject)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), storetest.Bucket(t, nc, "presence").Bucket()); err != nil {
		t.Fatal(err)
	}
	e.socket.Close()
	c.eventually("it was tried three times", func() bool { return log.count("executor's presence stays in the store") >= 3 })
	for _, nc := range []*nats.Conn{s.store.Conn(), nc} {
		if err := nc.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	for n, _, _ := notices.Pending(); n > 0; n-- {
		message, err := notices.NextMsg(soon)
		if err != nil {
			t.Fatal(err)
		}
		if said, ok := decodeNotice(message); ok && said.Kind == notice.Offline {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the others were told %d times", told)
	}
}
