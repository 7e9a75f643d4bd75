package rendezvous

import (
	"context"
	"maps"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// auditInterval bounds how long a websocket may outlive its principal's right to it if
// this server gets no revocation. This happens when a key expires, or when a key is revoked
// while the store does not answer, while this server is cut off, or just as the websocket
// opens.
const auditInterval = time.Minute

// audit reviews all principals every auditInterval until ctx ends.
func (rs *Routes) audit(ctx context.Context) {
	tick := time.NewTicker(auditInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			rs.review(ctx, "")
		}
	}
}

// review ends the websockets and streams to which a principal has lost its right. The
// websockets are closed, and executors are told that the streams of its harnesses have ended
// forever. With "" it reviews all principals. If the store does not answer, everything stays
// as it is until the next audit; new requests are refused meanwhile.
func (rs *Routes) review(ctx context.Context, principalID string) {
	if rs.also != nil {
		rs.also(ctx, principalID)
	}
	type having struct {
		peers    []*peer
		meetings []*meeting // with streams of the principal, or whose executor has resources of it
	}
	all := make(map[string]*having) // by principal
	of := func(id string) *having {
		if all[id] == nil {
			all[id] = &having{}
		}
		return all[id]
	}
	rs.mu.Lock()
	for p := range rs.sockets {
		if id := p.principal.ID; principalID == "" || principalID == id {
			of(id).peers = append(of(id).peers, p)
		}
	}
	rs.mu.Unlock()
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		ids := make(map[string]struct{})
		for id, c := range m.claims {
			if c.streams > 0 {
				ids[id] = struct{}{}
			}
		}
		if m.executor != nil {
			maps.Copy(ids, m.executor.known)
		}
		for id := range ids {
			if principalID == "" || principalID == id {
				of(id).meetings = append(of(id).meetings, m)
			}
		}
	})
	for id, has := range all {
		now, found, err := rs.store.Principal(ctx, id)
		if err != nil {
			if ctx.Err() == nil {
				rs.log.Trouble("looking for revoked principals", "error", err)
			}
			return
		}
		for _, m := range has.meetings {
			if !found || !now.May(ticket.Harness, m.environmentID) {
				m.revoke(id)
			}
		}
		for _, p := range has.peers {
			if !found || !now.May(p.role, p.meeting.environmentID) {
				p.kick("its principal may not have it any more")
			}
		}
	}
}

// revoke ends the streams of a harness's principal, at whichever server the harness is. The
// executor may connect again soon, at any server, and resume the streams that acknowledge.
// So these streams are barred for Grace. In that time an executor that resumes such a stream
// is told the reason of its end.
func (m *meeting) revoke(principal string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rt := range m.routes {
		if rt.principal != principal {
			continue
		}
		if rt.acknowledges {
			// The barred route has to exist before rt ends. Otherwise rt may be the
			// last route that holds the meeting, and the meeting would be forgotten.
			m.barLocked(m.addLocked(rt.stream))
		}
		m.endLocked(rt, wire.ResetRevoked, toExecutor)
	}
	if m.executor != nil { // after the resets, so that streams end with their reason
		m.executor.tellRevokedLocked(principal)
	}
}

// barLocked bars a route without a harness for Grace. No harness gets the route, and an
// executor that resumes its stream is sent a reset with the reason principal_revoked.
func (m *meeting) barLocked(rt *route) {
	rt.revoked, rt.acknowledges = true, true
	m.dropHeldLocked(rt)
	m.awaitHarnessLocked(rt)
}

// maxKnown bounds the principals that are remembered of an executor. If a principal beyond the
// bound is revoked, its resources at the executor end only after the executor has connected
// again.
const maxKnown = 4096

// knowsLocked notes that a principal has, or has had, a stream of the executor. The principal's
// resources at the executor may outlive the stream.
func (e *executor) knowsLocked(principal string) {
	if principal == "" || len(e.known) >= maxKnown {
		return
	}
	if e.known == nil {
		e.known = make(map[string]struct{})
	}
	e.known[principal] = struct{}{}
}

// hasOf handles an executor's message that it has resources of a principal. The executor is
// told if the principal has lost its right, or loses it later. hasOf ignores a pseudonym that
// this registry has not made.
func (e *executor) hasOf(pseudonym string) {
	m := e.meeting
	principal, ok := e.rs.signer.OpenPseudonym(m.environmentID, pseudonym)
	if !ok {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(e.asked) >= maxKnown {
		return
	}
	e.knowsLocked(principal)
	e.asked = append(e.asked, principal)
	if !e.checking {
		e.checking = true
		e.rs.serving.Go(e.check)
	}
}

// check looks up the principals that the executor has asked about, until all are answered or
// the websocket has ended. It runs in its own goroutine, because the reader of the websocket
// must not wait for the store.
func (e *executor) check() {
	m := e.meeting
	m.mu.Lock()
	defer m.mu.Unlock()
	for len(e.asked) > 0 && m.executor == e {
		id := e.asked[0]
		m.mu.Unlock()
		now, found, err := e.rs.store.Principal(e.rs.background, id)
		waits := err != nil && store.Pause(e.rs.background)
		m.mu.Lock()
		switch {
		case err != nil && !waits:
			return
		case err != nil:
			continue
		case !found || !now.May(ticket.Harness, m.environmentID):
			e.tellRevokedLocked(id)
		}
		e.asked = e.asked[1:]
	}
	e.asked, e.checking = nil, false
}

// tellRevokedLocked tells the executor that a principal has lost its right. If the lane is
// full, the next audit tries again.
func (e *executor) tellRevokedLocked(principal string) {
	if _, ok := e.known[principal]; !ok {
		return
	}
	stream := wire.PrincipalStream + e.rs.signer.Pseudonym(e.meeting.environmentID, principal)
	if e.control.TrySend(resetMessage(stream, wire.ResetRevoked)) {
		e.rs.metrics.Resets.Add(1)
		delete(e.known, principal)
	}
}
