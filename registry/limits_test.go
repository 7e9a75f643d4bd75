package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/time/rate"

	"github.com/execagent/execagent/registry/rendezvous/notice"
	"github.com/execagent/execagent/registry/ticket"
	"github.com/execagent/execagent/registry/wire"
	"github.com/execagent/execagent/relay/socket"
)

func TestLimitRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{Requests: 2, RequestBurst: 3})
		p, other := &principal{ID: "key:1"}, &principal{ID: "key:2"}
		for i := range 3 {
			if _, ok := l.request(p); !ok {
				t.Fatalf("request %d of the burst is refused", i)
			}
		}
		for range 5 { // what is refused costs nothing
			if wait, ok := l.request(p); ok || wait <= 0 || wait > 500*time.Millisecond {
				t.Fatalf("got %v, %v after the burst", wait, ok)
			}
		}
		if _, ok := l.request(other); !ok {
			t.Error("another principal is refused")
		}
		time.Sleep(500 * time.Millisecond)
		if _, ok := l.request(p); !ok {
			t.Error("refused after the wait")
		}
		if _, ok := l.request(p); ok {
			t.Error("two are allowed after the wait for one")
		}
		// Other limits count from the next request on.
		p = &principal{ID: "key:1", Limits: Limits{Requests: -1}}
		for range 1000 {
			if _, ok := l.request(p); !ok {
				t.Fatal("refused without a limit")
			}
		}
	})
}

// TestValidationsAreApart: however often harnesses make an executor ask about
// them, its key can still register. An executor ends at a 429.
func TestValidationsAreApart(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st, Limits: Limits{Requests: 0.001, RequestBurst: 4}})
	key, _ := createKey(t, st, ticket.Executor, "*", Limits{})
	id, _ := s.mustRegister(t, key, "env", testKey(t))
	question := wire.ValidateRequest{ExecutorRegistrationID: id, HarnessPublicKey: testKey(t), HarnessKeyAuthorization: "not one"}
	answers := map[int]int{}
	for range 10 {
		status, _, _ := s.post(t, "Bearer "+key, "/cloud/environment/env/validate", question)
		answers[status]++
	}
	if answers[http.StatusOK] != 4 || answers[http.StatusTooManyRequests] != 6 {
		t.Errorf("the questions were answered %v", answers)
	}
	s.mustRegister(t, key, "another", testKey(t))
}

// TestHandshakesAreRequests: a handshake makes the executor ask the registry, so
// it counts as a request of the harness's principal.
func TestHandshakesAreRequests(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, Config{Limits: Limits{Requests: 0.001, RequestBurst: 3}})
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

func TestLimitOpen(t *testing.T) {
	t.Parallel()
	l := newLimiter(Limits{Connections: 2, Streams: 1})
	p := &principal{ID: "key:1"}
	for name, take := range map[string]func(*principal) (func(), bool){"connect": l.connect, "stream": l.stream} {
		limit := map[string]int{"connect": 2, "stream": 1}[name]
		var releases []func()
		for range limit {
			release, ok := take(p)
			if !ok {
				t.Fatalf("%s is refused below the limit", name)
			}
			releases = append(releases, release)
		}
		if _, ok := take(p); ok {
			t.Errorf("%s is allowed above the limit", name)
		}
		if _, ok := take(&principal{ID: "key:2"}); !ok {
			t.Errorf("%s of another principal is refused", name)
		}
		releases[0]()
		if _, ok := take(p); !ok {
			t.Errorf("%s is refused after one was released", name)
		}
		more := &principal{ID: "key:1", Limits: Limits{Connections: -1, Streams: -1}}
		for range 100 {
			if _, ok := take(more); !ok {
				t.Fatalf("%s is refused without a limit", name)
			}
		}
	}
}

func TestLimitBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{Bytes: 1 << 20})
		p := &principal{ID: "key:1"}
		start := time.Now()
		for range 8 {
			if err := l.bytes(nil, p, 512<<10); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 3*time.Second-time.Millisecond || took > 3*time.Second+time.Millisecond {
			t.Errorf("4 MiB at 1 MiB/s after a burst of 1 MiB took %v", took)
		}
		if err := l.bytes(nil, p, 5<<20); err != nil {
			t.Errorf("more than the burst at once: %v", err)
		}
		done := make(chan struct{})
		time.AfterFunc(time.Millisecond, func() { close(done) })
		if err := l.bytes(done, p, 1<<20); err == nil {
			t.Error("it does not end with its websocket")
		}
		if err := l.bytes(nil, &principal{ID: "key:2", Limits: Limits{Bytes: -1}}, 1<<40); err != nil {
			t.Errorf("without a limit: %v", err)
		}
	})
}

// TestLimiterBounded: principals that come and go do not add up, those with something open stay.
func TestLimiterBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{})
		release, ok := l.connect(&principal{ID: "open"})
		if !ok {
			t.Fatal("refused")
		}
		for i := range maxAllowances - 1 {
			if _, ok := l.request(&principal{ID: fmt.Sprint(i)}); !ok {
				t.Fatalf("principal %d is refused", i)
			}
		}
		if _, ok := l.request(&principal{ID: "more"}); ok || len(l.allowances) != maxAllowances {
			t.Errorf("allowed %v with %d allowances", ok, len(l.allowances))
		}
		if err := l.bytes(nil, &principal{ID: "more"}, 1); err == nil {
			t.Error("bytes are allowed without an allowance")
		}
		time.Sleep(idleAllowance)
		if _, ok := l.request(&principal{ID: "more"}); !ok || len(l.allowances) != 2 {
			t.Errorf("allowed %v with %d allowances after a while", ok, len(l.allowances))
		}
		if l.allowances["open"].connections != 1 {
			t.Error("what is open was forgotten")
		}
		busy := &principal{ID: "busy"}
		l.created(busy)
		l.allowances["busy"].lines.AllowN(time.Now(), 10_000)
		l.forget(time.Now().Add(idleAllowance))
		if l.allowances["busy"] == nil {
			t.Error("what is used up was forgotten")
		}
		l.forget(time.Now().Add(10_000 / linesPerSecond * time.Second))
		if l.allowances["busy"] != nil {
			t.Error("it was not forgotten once all is back")
		}
		release()
		if l.allowances["open"].connections != 0 {
			t.Error("what was released is still open")
		}
	})
}

func BenchmarkLimitBytes(b *testing.B) {
	l, p := newLimiter(Limits{Bytes: 1 << 50}), &principal{ID: "key:1"}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.bytes(b.Context().Done(), p, 61_500); err != nil && !errors.Is(err, net.ErrClosed) {
			b.Fatal(err)
		}
	}
}

// TestLimitChangedBack: a websocket that says its principal's old limits while
// new requests say others does not refill what is used up.
func TestLimitChangedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(Limits{Requests: 1, RequestBurst: 3})
		old, now := &principal{ID: "agent:1"}, &principal{ID: "agent:1", Limits: Limits{Requests: 2, RequestBurst: 4}}
		allowed := 0
		for range 100 {
			for _, p := range []*principal{old, now} {
				if _, ok := l.request(p); ok {
					allowed++
				}
			}
		}
		if allowed > 4 {
			t.Errorf("%d requests are allowed at once", allowed)
		}
	})
}

// TestNewEnvironments: a principal that has registered too many new environments is
// refused another one, and keeps those that it has. Others are not refused.
func TestNewEnvironments(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st})
	busy, id := createKey(t, st, ticket.Executor, "*", Limits{})
	other, _ := createKey(t, st, ticket.Executor, "*", Limits{})
	public := testKey(t)
	s.limits.mu.Lock()
	a := s.limits.account(keyPrincipal + id)
	a.created.SetLimit(0) // nothing comes back meanwhile
	s.limits.mu.Unlock()
	for _, key := range []*wire.PublicKey{public, public, testKey(t), public} {
		s.mustRegister(t, busy, "first", key)
		if left := a.created.Tokens(); left != maxNewEnvironments-1 {
			t.Errorf("%v are left after the first", left)
		}
	}
	a.created.AllowN(time.Now(), maxNewEnvironments-1)
	if status, code, _ := s.post(t, "Bearer "+busy, "/cloud/environment/more/register", registerBody(public)); status != http.StatusTooManyRequests || code != codeRateLimited {
		t.Errorf("got %d %s", status, code)
	}
	s.mustRegister(t, busy, "first", public)
	s.mustRegister(t, other, "more", public)
	s.mustRegister(t, busy, "more", testKey(t))
}

// TestLines: a principal that causes too many lines in the log is told of by their
// number, and the lines of others are all there.
func TestLines(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st, Limits: Limits{Connections: 2, RequestBurst: 2}})
	register := func(environmentID string) (lines *rate.Limiter, old string) {
		key, id := createKey(t, st, ticket.Executor, "*", Limits{})
		s.limits.mu.Lock()
		lines = s.limits.account(keyPrincipal + id).lines
		lines.SetLimit(0) // nothing comes back meanwhile
		s.limits.mu.Unlock()
		_, old = s.mustRegister(t, key, environmentID, testKey(t))
		s.mustRegister(t, key, environmentID, testKey(t))
		return lines, old
	}
	refused := func(old string, times int) string {
		s.log.Reset()
		for range times {
			if _, err := socket.Dial(t.Context(), old, nil, socket.Config{}); err == nil {
				t.Fatal("a websocket of an old registration is open")
			}
		}
		return s.log.String()
	}
	const message = `msg="websocket refused"`
	lines, old := register("busy")
	_, oldOfOther := register("other")
	if n := strings.Count(refused(old, 10), message); n != 2*linesPerConnection-2 {
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
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st})
	start := time.Now()
	for range 1000 {
		s.broken("connect", "env", errUnavailable)
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
	st, _ := openTestStore(t)
	c := newClusterOn(t, st, func() *Store { return st })
	s := c.server(Config{Limits: Limits{Bytes: minByteBurst}})
	web := &testServer{Server: s.Server, url: s.http.URL}
	other, _ := createKey(t, st, ticket.Executor, "*", Limits{})
	e := s.executor()
	s.limits.mu.Lock()
	a := s.limits.account(c.executorKey)
	s.limits.mu.Unlock()
	a.bytes.SetLimit(0) // nothing comes back meanwhile
	a.bytes.AllowN(time.Now(), int(a.bytes.Tokens()))
	e.sendFrame(data("stream", 1, strings.Repeat("x", 60_000)))
	c.eventually("it waits", func() bool { return a.bytes.Tokens() < 0 && len(a.large) == 1 })
	if _, err := st.RevokeKey(t.Context(), strings.TrimPrefix(c.executorKey, keyPrincipal)); err != nil {
		t.Fatal(err)
	}
	e.wantEnd()
	c.eventually("another key has the environment", func() bool {
		status, _, _ := web.post(t, "Bearer "+other, "/cloud/environment/env/register", registerBody(testKey(t)))
		return status == http.StatusOK
	})
	if len(a.large) != 0 {
		t.Error("its message still has a place")
	}
}

// TestNewEnvironmentsAtOnce: so is one that registers them all at once. What comes to
// nothing counts for nothing.
func TestNewEnvironmentsAtOnce(t *testing.T) {
	t.Parallel()
	st, _ := openTestStore(t)
	s := startServer(t, Config{Store: st})
	key, id := createKey(t, st, ticket.Executor, "*", Limits{})
	s.limits.mu.Lock()
	a := s.limits.account(keyPrincipal + id)
	a.created.SetLimit(0) // nothing comes back meanwhile
	s.limits.mu.Unlock()
	a.created.AllowN(time.Now(), maxNewEnvironments-3)
	public := testKey(t)
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
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	if registered > 3 || a.creating != 0 || a.created.Tokens() != float64(3-registered) {
		t.Errorf("%d are registered, %d more under way, %v are left", registered, a.creating, a.created.Tokens())
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
	st, dir := openTestStore(t)
	log := &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)}
	s := startServer(t, Config{Store: openBeside(t, dir), Logger: slog.New(log)})
	reg, _, err := st.register(t.Context(), "env", testKey(t), "key:x", always, never)
	if err != nil {
		t.Fatal(err)
	}
	m := s.routes.enter("env", reg.ID)
	defer s.routes.leave(m)
	start := time.Now()
	s.store.nc.Close()
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
	notices, err := c.st.conn().SubscribeSync(hopSubject)
	if err != nil {
		t.Fatal(err)
	}
	js, err := jetstream.New(c.st.conn())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), c.st.presence.Bucket()); err != nil {
		t.Fatal(err)
	}
	e.socket.Close()
	c.eventually("it was tried three times", func() bool { return log.count("executor's presence stays in the store") >= 3 })
	for _, nc := range []*nats.Conn{s.store.conn(), c.st.conn()} {
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
