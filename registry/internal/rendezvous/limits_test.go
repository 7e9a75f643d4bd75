package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/registry/internal/notice"
)

// TestHandshakesAreRequests: a handshake counts as a request of the harness's principal,
// since it makes the executor ask the registry.
func TestHandshakesAreRequests(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			first, last := c.pair(servers, settings{Limits: store.Limits{Requests: 0.001, RequestBurst: 3}})
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

// TestLimitBytesEnds: a websocket that is not read, because its principal has used up its
// bytes, ends at once when it is closed. Then its environment is free.
func TestLimitBytesEnds(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	c := newClusterOn(t, st, dir, func() *store.Store { return st })
	s := c.server(settings{Limits: store.Limits{Bytes: minByteBurst}})
	e := s.executor()
	a := s.limits.Allowance(c.executorKey)
	a.Bytes.SetLimit(0) // nothing comes back meanwhile
	a.Bytes.AllowN(time.Now(), int(a.Bytes.Tokens()))
	e.sendFrame(data("stream", 1, strings.Repeat("x", 60_000)))
	c.eventually("it waits", func() bool { return a.Bytes.Tokens() < 0 && len(a.Large) == 1 })
	if _, err := st.RevokeKey(t.Context(), strings.TrimPrefix(c.executorKey, store.KeyPrefix)); err != nil {
		t.Fatal(err)
	}
	e.wantEnd()
	c.eventually("another key has the environment", func() bool {
		_, conflict, err := s.take("env", storetest.Key(t))
		return err == nil && !conflict
	})
	if len(a.Large) != 0 {
		t.Error("its message still has a place")
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

// TestLinesWhileAway: while the store does not answer, not every executor that comes, goes
// or is looked for writes a line to the log.
func TestLinesWhileAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	log := &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)}
	s := c.server(settings{Logger: slog.New(log)})
	m := s.enter("env", c.registration.ID)
	defer s.leave(m)
	start := time.Now()
	if err := s.store.Close(); err != nil {
		t.Fatal(err)
	}
	for range 300 {
		m.published = 1
		if m.goOffline(t.Context(), false) || !s.locateOrLog(m) {
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
	s := c.server(settings{Logger: slog.New(log)})
	e := s.executor()
	nc := c.nats()
	notices := storetest.Subscribe(t, nc, toAll)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(t.Context(), storetest.Bucket(t, nc, "presence").Bucket()); err != nil {
		t.Fatal(err)
	}
	e.socket.Close()
	c.eventually("it was tried three times", func() bool { return log.count("executor's presence stays in the store") >= 3 })
	// The answer comes behind all notices that the server has sent before.
	if _, err := s.store.Keys(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	told := 0
	for n, _, _ := notices.Pending(); n > 0; n-- {
		message, err := notices.NextMsg(soon)
		if err != nil {
			t.Fatal(err)
		}
		if said, ok := decodeNotice(letter(message)); ok && said.Kind == notice.Offline {
			told++
		}
	}
	if told != 1 {
		t.Errorf("the others were told %d times", told)
	}
}
