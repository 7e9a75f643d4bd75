package rendezvous

import (
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/registry/internal/notice"
	"github.com/execagent/execagent/test/rig"
)

// single is a server that has the store for itself, as with an embedded one.
func (c *cluster) single() *relayServer {
	open := c.open
	defer func() { c.open = open }()
	c.open = func() state {
		alone := *c.fake
		alone.Single = true
		return &alone
	}
	return c.server(settings{})
}

// TestOnlineAtOnce: at a server that is alone, harnesses find an executor as soon as its
// websocket is open, however long the store takes to note it. Another server takes it to
// be online once the store has noted it.
func TestOnlineAtOnce(t *testing.T) {
	bubble(t, func(c *cluster) {
		s, other := c.single(), c.server(settings{})
		note := c.fake.Hold()
		e := s.end(s.ticket(ticket.Executor))
		c.settles("the executor has a seat", s.isThere)
		s.wantOnline(true)
		h := s.harness()
		opened(h, e, "stream", 1)
		other.wantOnline(false)
		note()
		c.waitOnline(s)
		other.wantOnline(true)
		opened(other.harness(), e, "other", 1)
		exchange(h, e, "stream", 1)
	})
}

// TestOnlineExchanges: for an executor's websocket the store is read three times, at once
// and before the websocket opens. Then it is written twice, and not read any more.
func TestOnlineExchanges(t *testing.T) {
	t.Parallel()
	c, url := natsCluster(t)
	s := c.server(settings{})
	all := storetest.Subscribe(t, storetest.Connect(t, url), ">")
	s.end(s.ticket(ticket.Executor))
	var exchanges []string
	for { // until the server has said that the executor is online
		message := rig.Value(all.NextMsg(soon))
		if n, ok := decodeNotice(store.Letter{From: message.Reply, Data: message.Data}); ok && n.Kind == notice.Online {
			break
		}
		for _, bucket := range []string{"keys", "registrations", "presence"} {
			if strings.HasPrefix(message.Subject, "$JS.API.DIRECT.GET.KV_execagent_"+bucket) || strings.HasPrefix(message.Subject, "$KV.execagent_"+bucket) {
				exchanges = append(exchanges, message.Subject)
			}
		}
	}
	reads := 0
	for reads < len(exchanges) && strings.HasPrefix(exchanges[reads], "$JS") {
		reads++
	}
	if writes := exchanges[reads:]; reads != 3 || len(writes) != 2 ||
		!strings.HasPrefix(writes[0], "$KV.execagent_presence.") || !strings.HasPrefix(writes[1], "$KV.execagent_registrations.") {
		t.Errorf("the store was asked %q", exchanges)
	}
}

// TestTaken: no other key can be registered for the environment of an executor whose
// websocket is open, even if the store has not noted the executor yet or has forgotten
// it.
func TestTaken(t *testing.T) {
	bubble(t, func(c *cluster) {
		for _, s := range []*relayServer{c.single(), c.server(settings{})} {
			refused := func(when string) {
				c.t.Helper()
				_, conflict, err := s.take(c.environmentID, storetest.Key(c.t))
				rig.Is(c.t, err != nil || !conflict, false, "another key registers %s: conflict %v, %v", when, conflict, err)
			}
			note := c.fake.Hold()
			e := s.end(s.ticket(ticket.Executor))
			c.settles("the executor has a seat", s.isThere)
			refused("before the store knows of the executor")
			note()
			c.waitOnline(s)
			c.fake.Forget(c.environmentID)
			refused("after the store has forgotten the executor")
			opened(s.harness(), e, "stream", 0)
			e.socket.Close()
		}
	})
}

// seated is the executor that a server has.
func (ts *relayServer) seated() *executor {
	m := ts.find(ts.c.registration.ID)
	defer ts.leave(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.executor
}

// TestTakenOver: reassert closes an executor that the store has forgotten, if another
// registration has the environment by now.
func TestTakenOver(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		old := s.executor()
		seated := s.seated()
		c.fake.Forget(c.environmentID)
		c.registration = c.register(c.environmentID)
		s.executor()
		seated.meeting.reassert(c.t.Context(), seated)
		old.wantEnd()
	})
}

// TestRestarted: the streams of an executor that is gone end as soon as another executor has
// registered for its environment, and not after the grace time.
func TestRestarted(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		e, h := s.executor(), other.harness()
		opened(h, e, "stream", 1)
		e.socket.Close()
		c.settles("the store knows", func() bool {
			_, online, err := c.st.Online(c.t.Context(), c.environmentID)
			return err == nil && !online
		})
		began := time.Now()
		c.registration = c.register(c.environmentID)
		s.executor()
		h.wantEnd()
		rig.Is(c.t, time.Since(began) < s.grace, true, "the stream has ended after %v", time.Since(began))
	})
}

// TestTooBusyToNote: an executor that the store has forgotten stays, also if the store does
// not take its presence at once.
func TestTooBusyToNote(t *testing.T) {
	bubble(t, func(c *cluster) {
		s := c.server(settings{})
		e := s.executor()
		c.fake.Forget(c.environmentID)
		c.fake.Full(true)
		seated := s.seated()
		var over sync.WaitGroup
		over.Go(func() { seated.meeting.reassert(c.t.Context(), seated) })
		time.Sleep(onlinePatience / 2)
		c.fake.Full(false)
		over.Wait()
		c.waitOnline(s)
		opened(s.harness(), e, "stream", 0)
	})
}
