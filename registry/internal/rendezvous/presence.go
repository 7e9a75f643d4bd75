package rendezvous

import (
	"context"
	"errors"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/registry/internal/notice"
)

// goOnline tells the store and then the other servers that e is here. It returns
// errReplaced if another websocket has the executor's place by now. presenceMu lets
// the websockets of a registration do this one after the other, so that the newest
// websocket has the last word.
func (m *meeting) goOnline(ctx context.Context, e *executor) error {
	m.presenceMu.Lock()
	defer m.presenceMu.Unlock()
	if !m.seats(e) {
		return errReplaced
	}
	reg := e.seen
	e.seen = store.Seen{} // it may be out of date at the next attempt, which reads the registration again
	revision, err := m.rs.store.SetOnline(ctx, store.Presence{
		EnvironmentID:  m.environmentID,
		RegistrationID: m.id,
		Node:           m.rs.node,
		Principal:      e.principal.ID,
		Since:          time.Now().UTC(),
	}, reg)
	if err != nil {
		return err
	}
	m.published = revision
	m.mu.Lock()
	e.revision = revision
	newer, first := m.revision > revision, m.revision == 0
	m.revision = max(m.revision, revision)
	m.mu.Unlock()
	if newer {
		return errReplaced
	}
	n := notice.Notice{Kind: notice.Online, Registration: m.id, Revision: revision}
	if first {
		n.Environment = m.environmentID
		m.rs.supersede(m.environmentID, m.id)
	}
	m.rs.hop.broadcast(n)
	return nil
}

// supersede ends the streams of all other registrations of an environment. Their executors
// cannot come back, because a websocket of theirs is refused with the status 410.
func (rs *Routes) supersede(environmentID, registrationID string) {
	var old []*meeting
	rs.mu.Lock()
	for _, m := range rs.meetings {
		if m.environmentID == environmentID && m.id != registrationID {
			m.holders++
			old = append(old, m)
		}
	}
	rs.mu.Unlock()
	for _, m := range old {
		m.mu.Lock()
		if !m.onlineLocked() {
			m.abandonLocked("another executor has registered for its environment")
		}
		m.mu.Unlock()
		rs.leave(m)
	}
}

// reassert makes sure that the store knows the presence of e, and notes the presence again if
// not. This is needed because a registry with an embedded NATS server keeps presences in
// memory. After a restart of that server the presences are gone, and revisions begin with 1
// again. If another registration has the environment by then, e is closed. A store that does
// not answer is asked again, as when an executor connects.
func (m *meeting) reassert(ctx context.Context, e *executor) {
	for {
		p, _, found, err := m.rs.store.Presence(ctx, m.environmentID)
		if found && p.RegistrationID == m.id || !m.seats(e) {
			return
		}
		if err == nil {
			break
		}
		if !errors.Is(err, store.ErrUnavailable) || !store.Pause(ctx) {
			return
		}
	}
	m.mu.Lock()
	if m.executor == e {
		m.revision, m.over, e.revision = 0, 0, 0
	}
	m.mu.Unlock()
	if err := e.goOnline(); err != nil && ctx.Err() == nil {
		m.rs.log.Trouble("an executor cannot stay", "environment", m.environmentID, "registration", m.id, "error", err)
		e.kick("the store does not know it")
	}
}

// Online reports whether a harness that gets a URL for this registration will find the
// executor connected, here or at the server that the store knows of. An error comes from
// the store, which is not asked if the executor is here.
func (rs *Routes) Online(ctx context.Context, environmentID, registrationID string) (bool, error) {
	if rs.isHere(registrationID) {
		return true, nil
	}
	p, online, err := rs.store.Online(ctx, environmentID)
	return online && p.RegistrationID == registrationID, err
}

// isHere reports whether the registration's executor is connected to this server and all
// other servers can find out. A harness may come to any server with its URL. So a websocket
// that the store has not noted yet does not count, unless this server is alone.
func (rs *Routes) isHere(registrationID string) bool {
	revision, ok := rs.executorOf(registrationID)
	return ok && (revision != 0 || rs.store.Alone())
}

// HasExecutor reports whether the executor of a registration has a websocket here, even
// one that the store has not noted yet or has forgotten.
func (rs *Routes) HasExecutor(registrationID string) bool {
	_, ok := rs.executorOf(registrationID)
	return ok
}

// executorOf returns the revision of the presence of an executor that is connected here. The
// revision is 0 if the store has not noted the presence yet. ok reports whether the executor is
// here.
func (rs *Routes) executorOf(registrationID string) (revision uint64, ok bool) {
	m := rs.find(registrationID)
	if m == nil {
		return 0, false
	}
	defer rs.leave(m)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.executor == nil {
		return 0, false
	}
	return m.executor.revision, true
}

// seats reports whether e is the meeting's executor. seats(nil) reports whether no
// executor is here.
func (m *meeting) seats(e *executor) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.executor == e
}

// goOffline withdraws the presence that goOnline has published, unless a newer websocket is
// here. done is false if the store did not take this. The caller then has to call goOffline
// once more with again set, because the other servers were told at the first attempt.
func (m *meeting) goOffline(ctx context.Context, again bool) (done bool) {
	m.presenceMu.Lock()
	defer m.presenceMu.Unlock()
	if !m.seats(nil) || m.published == 0 {
		return true
	}
	revision := m.published
	m.published = 0
	if ctx.Err() != nil {
		return true // the server ends: a leave tells the others that all executors here are gone
	}
	if !again {
		m.rs.hop.broadcast(notice.Notice{Kind: notice.Offline, Registration: m.id, Revision: revision})
	}
	if err := m.rs.store.SetOffline(ctx, m.environmentID, revision); err != nil {
		m.rs.log.Trouble("executor's presence stays in the store", "environment", m.environmentID, "registration", m.id, "error", err)
		m.published = revision
		return false
	}
	return true
}

// locateOrLog calls locate and logs its error. again reports whether the store did not
// answer, so that the caller may try again later.
func (rs *Routes) locateOrLog(m *meeting) (again bool) {
	err := rs.locate(rs.background, m)
	if err == nil || rs.background.Err() != nil {
		return false
	}
	rs.log.Trouble("looking for an executor", "environment", m.environmentID, "registration", m.id, "error", err)
	return errors.Is(err, store.ErrUnavailable)
}

// locateLater calls locate in a goroutine of its own, until the store has answered. The
// caller must hold the meeting by enter or find.
func (rs *Routes) locateLater(m *meeting) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.locating {
		return
	}
	m.locating = true
	rs.mu.Lock()
	m.holders++
	rs.mu.Unlock()
	rs.serving.Go(func() {
		defer rs.leave(m)
		// The store is asked as long as streams wait for the executor, because a
		// NATS cluster that elects a leader does not answer for some seconds.
		ctx, cancel := context.WithTimeout(rs.background, rs.grace)
		defer cancel()
		for rs.locateOrLog(m) && !m.online() && store.Pause(ctx) {
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.locating = false
	})
}

// locate asks the store which server the executor is at. If that server lives, locate handles
// the answer like an online of that server. A presence of this server without an executor here
// is removed from the store.
func (rs *Routes) locate(ctx context.Context, m *meeting) error {
	st := rs.store
	p, revision, found, err := st.Presence(ctx, m.environmentID)
	if err != nil || !found || p.RegistrationID != m.id {
		return err
	}
	if p.Node == rs.node {
		if m.seats(nil) {
			// The store did not answer when the websocket ended.
			return st.SetOffline(ctx, m.environmentID, revision)
		}
		return nil
	}
	alive, err := st.Alive(ctx, p.Node)
	if err == nil && alive {
		m.appeared(p.Node, revision)
	}
	return err
}
