package rendezvous

import (
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/registry/internal/notice"
)

// TestOnlineAtOnce: at a server that is alone, harnesses find an executor as soon as its
// websocket is open, however long the store takes to note it. Another server takes it to
// be online once the store has noted it.
func TestOnlineAtOnce(t *testing.T) {
	t.Parallel()
	st, dir := storetest.Open(t)
	stores := []*store.Store{storetest.Beside(t, dir), st}
	c := newClusterOn(t, st, dir, func() *store.Store { return stores[len(stores)-1] })
	s := c.server(settings{})
	stores = stores[:1]
	other := c.server(settings{})

	m := s.enter(c.environmentID, c.registration.ID)
	defer s.leave(m)
	m.presenceMu.Lock() // nothing of it reaches the store
	unlock := sync.OnceFunc(m.presenceMu.Unlock)
	defer unlock()
	e := s.dial(s.ticket(ticket.Executor))
	c.eventually("the executor has a seat", m.online)
	s.wantOnline(true)
	h := s.harness()
	opened(h, e, "stream", 1)
	other.wantOnline(false)
	unlock()
	c.waitOnline(s.node)
	other.wantOnline(true)
	opened(other.harness(), e, "other", 1)
	exchange(h, e, "stream", 1)
}

// TestOnlineExchanges: for an executor's websocket the store is read three times, at once
// and before the websocket opens. Then it is written twice, and not read any more.
func TestOnlineExchanges(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	nc := c.nats()
	all, online := storetest.Subscribe(t, nc, ">"), storetest.Subscribe(t, nc, toAll)
	s.dial(s.ticket(ticket.Executor))
	for { // until the server has said that the executor is online
		message, err := online.NextMsg(soon)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := decodeNotice(letter(message)); ok && n.Kind == notice.Online {
			break
		}
	}
	var exchanges []string
	for {
		message, err := all.NextMsg(soon)
		if err != nil {
			t.Fatal(err)
		}
		if n, ok := decodeNotice(letter(message)); ok && n.Kind == notice.Online {
			break
		}
		of := func(bucket string) bool {
			return strings.HasPrefix(message.Subject, "$JS.API.DIRECT.GET.KV_execagent_"+bucket) || strings.HasPrefix(message.Subject, "$KV.execagent_"+bucket)
		}
		if of("keys") || of("registrations") || of("presence") {
			exchanges = append(exchanges, message.Subject)
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
	t.Parallel()
	t.Run("embedded store", func(t *testing.T) {
		t.Parallel()
		st, dir := storetest.Open(t)
		taken(t, newClusterOn(t, st, dir, func() *store.Store { return st }))
	})
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		taken(t, newCluster(t))
	})
}

func taken(t *testing.T, c *cluster) {
	s := c.server(settings{})
	refused := func(when string) {
		t.Helper()
		if _, conflict, err := s.take(c.environmentID, storetest.Key(t)); err != nil || !conflict {
			t.Errorf("another key registers %s: conflict %v, %v", when, conflict, err)
		}
	}
	m := s.enter(c.environmentID, c.registration.ID)
	defer s.leave(m)
	m.presenceMu.Lock() // nothing of it reaches the store
	unlock := sync.OnceFunc(m.presenceMu.Unlock)
	defer unlock()
	e := s.dial(s.ticket(ticket.Executor))
	c.eventually("the executor has a seat", m.online)
	refused("before the store knows of the executor")
	unlock()
	c.waitOnline(s.node)
	c.forget(c.environmentID)
	refused("after the store has forgotten the executor")
	opened(s.harness(), e, "stream", 0)
}

// TestTakenOver: reassert closes an executor that the store has forgotten, if another
// registration has the environment by now.
func TestTakenOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	old := s.executor()
	m := s.find(c.registration.ID)
	defer s.leave(m)
	m.mu.Lock()
	e := m.executor // an audit may take it away as soon as the registration has changed
	m.mu.Unlock()
	c.forget(c.environmentID)
	c.registration = c.register(c.environmentID)
	s.executor()
	m.reassert(t.Context(), e)
	old.wantEnd()
}

// TestTooBusyToNote: an executor that the store has forgotten stays, also if the store does
// not take its presence at once.
func TestTooBusyToNote(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.server(settings{})
	e := s.executor()
	nc := c.nats()
	tries := storetest.Subscribe(t, nc, "$KV.execagent_presence."+c.environmentID)
	c.forget(c.environmentID)
	if _, err := tries.NextMsg(soon); err != nil { // to forget is a write, too
		t.Fatal(err)
	}
	const tooLittle = 1 // byte: every value is refused
	storetest.Largest(t, nc, "presence", tooLittle)
	m := s.find(c.registration.ID)
	defer s.leave(m)
	m.mu.Lock()
	seated := m.executor
	m.mu.Unlock()
	var over sync.WaitGroup
	over.Go(func() { m.reassert(t.Context(), seated) })
	for range 2 {
		if _, err := tries.NextMsg(soon); err != nil {
			t.Fatal(err)
		}
	}
	storetest.Largest(t, nc, "presence", -1)
	over.Wait()
	c.waitOnline(s.node)
	opened(s.harness(), e, "stream", 0)
}
