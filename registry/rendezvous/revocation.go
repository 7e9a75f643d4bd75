package rendezvous

import (
	"context"
	"time"

	"github.com/execagent/execagent/registry/ticket"
	"github.com/execagent/execagent/registry/wire"
)

// auditInterval is how long a websocket may outlive what its principal may, when
// no revocation says so: keys expire, and one may be revoked while the store does
// not answer, while this server does not hear of it, or just as the websocket
// opens.
const auditInterval = time.Minute

// audit looks at all principals again and again until ctx ends.
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

// review takes from a principal, or from all with "", what it may not have any
// more: its websockets are closed, and executors hear that the streams of their
// harness are over for good. Where the store cannot be asked all of it stays
// until the next audit; what they ask for meanwhile is refused.
func (rs *Routes) review(ctx context.Context, principalID string) {
	type having struct {
		peers    []*peer
		meetings []*meeting // in which it has streams, whose harness need not be here
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
		for id, c := range m.claims {
			if c.streams > 0 && (principalID == "" || principalID == id) {
				of(id).meetings = append(of(id).meetings, m)
			}
		}
	})
	for id, has := range all {
		now, found, err := rs.store.Principal(ctx, id)
		if err != nil {
			if ctx.Err() == nil {
				rs.log.Warn("looking for revoked principals", "error", err)
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

// revoke ends the streams of a harness's principal. Its websocket may be here, at
// another server, or nowhere at the moment. So may that of the executor: it may be
// about to come back, or dead without anybody's knowing. For as long as it may go
// on with a stream, the stream is barred.
func (m *meeting) revoke(principal string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, rt := range m.routes {
		if rt.principal != principal {
			continue
		}
		if rt.acknowledges {
			m.barLocked(m.addLocked(rt.stream)) // before the end of rt, which may be all that holds the meeting
		}
		m.endLocked(rt, wire.ResetRevoked, toExecutor)
	}
}

// barLocked makes a route that nobody has one that nobody gets: an executor that resumes
// the stream is told that it was revoked. The mutex is held.
func (m *meeting) barLocked(rt *route) {
	rt.revoked, rt.acknowledges = true, true
	m.dropHeldLocked(rt)
	m.awaitHarnessLocked(rt)
}
