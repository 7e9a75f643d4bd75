package rendezvous

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/registry/internal/notice"
	"github.com/execagent/execagent/test/rig"
)

// TestHandshakesAreRequests: a handshake counts as a request of the harness's principal,
// since it makes the executor ask the registry.
func TestHandshakesAreRequests(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
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
		opened(last.stranger(), e, "of another", 0)
	})
}

// TestLimitBytesEnds: a websocket that is not read, because its principal has used up its
// bytes, ends at once when it is closed. Then its environment is free.
func TestLimitBytesEnds(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{Limits: store.Limits{Bytes: minByteBurst}})
		e := s.executor()
		a := s.limits.Allowance(c.executorKey)
		a.Bytes.SetLimit(0) // nothing comes back meanwhile
		a.Bytes.AllowN(time.Now(), int(a.Bytes.Tokens()))
		e.sendFrame(data("stream", 1, long))
		c.settles("it waits", func() bool { return a.Bytes.Tokens() < 0 && len(a.Large) == 1 })
		c.revoke(c.executorKey)
		e.wantEnd()
		c.settles("another key has the environment", func() bool {
			_, conflict, err := s.take("env", storetest.Key(c.t))
			return err == nil && !conflict
		})
		rig.Is(c.t, len(a.Large), 0, "messages that have a place")
	})
}

// logged counts the lines of a log by their messages.
type logged struct {
	slog.Handler
	mu    sync.Mutex
	lines map[string]int
}

func newLogged() *logged { return &logged{Handler: slog.DiscardHandler, lines: make(map[string]int)} }

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
	bubble(t, func(c *cluster) {
		log := newLogged()
		s := c.server(settings{Logger: slog.New(log)})
		m := s.enter("env", c.registration.ID)
		defer s.leave(m)
		c.fake.Away(true)
		defer c.fake.Away(false)
		for range 300 {
			m.published = 1
			if m.goOffline(c.t.Context(), false) || !s.locateOrLog(m) {
				c.t.Fatal("the store is there")
			}
		}
		n := log.count("executor's presence stays in the store") + log.count("looking for an executor") + log.count("another server was not told")
		rig.Is(c.t, n, 100, "lines: %v", log.lines)
		m.published = 0
	})
}

// TestOfflineOnce: while the store does not answer, the other servers are not told
// again and again that an executor has gone.
func TestOfflineOnce(t *testing.T) {
	bubble(t, func(c *cluster) {
		log := newLogged()
		s := c.server(settings{Logger: slog.New(log)})
		e := s.executor()
		told := 0
		stop := c.hears(func(n notice.Notice) {
			if n.Kind == notice.Offline {
				told++
			}
		})
		c.fake.Full(true)
		e.socket.Close()
		time.Sleep(time.Second)
		rig.Is(c.t, min(log.count("executor's presence stays in the store"), 3), 3, "tries, at least")
		stop()
		rig.Is(c.t, told, 1, "times that the others were told")
		c.fake.Full(false)
	})
}

// hears calls take with each notice to all servers until stop.
func (c *cluster) hears(take func(notice.Notice)) (stop func()) {
	c.t.Helper()
	post := rig.Value(c.st.OpenPost(c.t.Context(), "listener", 1<<20))
	ctx, cancel := context.WithCancel(c.t.Context())
	var listening sync.WaitGroup
	listening.Go(func() {
		post.ReceiveAll(ctx, func(letter store.Letter) {
			if n, ok := decodeNotice(letter); ok {
				take(n)
			}
		}, func(error) {})
	})
	return func() {
		cancel()
		listening.Wait()
		rig.Check(c.t, post.Close())
	}
}
