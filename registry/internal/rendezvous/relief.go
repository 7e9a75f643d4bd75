package rendezvous

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// reliefPause is how long relief waits before it looks whether it could free enough.
	reliefPause = 100 * time.Millisecond
	// slowMessage is how long a message must have been on its way at least, in or out, for
	// its websocket to be closed for it.
	slowMessage = time.Second
)

// holder is what holds memory for a peer that does not take it, or does not send the rest.
type holder struct {
	principal string // that it counts for
	bytes     int
	since     time.Time // of a message that is on its way
	end       func() (freed int)

	// level is how many bytes its principal holds when this is the next of its holders to
	// be ended.
	level int
}

// relieve ends streams and websockets when memory is short, until ctx ends: first those
// of the principal that holds the most of it, however little each of them holds. Others
// find room then, and go on.
func (rs *Routes) relieve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-rs.limits.Alarm():
		}
		// Where nothing is left nobody takes any more, so there is no further alarm.
		for rs.limits.Excess() > 0 {
			ended, freed := rs.relieveOnce()
			if ended > 0 {
				rs.metrics.Relieved.Add(uint64(ended))
				rs.log.Trouble("memory is short: streams that held the most of it were ended", "ended", ended, "bytes", freed, "limit", rs.limits.MaxWaiting())
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(reliefPause):
			}
		}
	}
}

// relieveOnce ends as many holders as there have to be ended, see inTurn.
func (rs *Routes) relieveOnce() (ended, freed int) {
	excess := rs.limits.Excess()
	if excess <= 0 {
		return 0, 0
	}
	holders := rs.holders(time.Now())
	inTurn(holders)
	for _, h := range holders {
		if freed >= excess {
			break
		}
		if n := h.end(); n > 0 {
			ended++
			freed += n
		}
	}
	return ended, freed
}

// inTurn sorts holders in the order in which they are to be ended: the next one is always
// of the principal that holds the most then, and of its holders it is the largest, and the
// oldest of those.
func inTurn(holders []holder) {
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(a.bytes-b.bytes, b.since.Compare(a.since))
	})
	held := make(map[string]int)
	for i := range holders {
		h := &holders[i]
		held[h.principal] += h.bytes
		h.level = held[h.principal]
	}
	// The levels of one principal are in the order of its holders, so all of them are in
	// their order when the levels are.
	slices.SortFunc(holders, func(a, b holder) int { return b.level - a.level })
}

// holders finds all who hold memory.
func (rs *Routes) holders(now time.Time) []holder {
	var all []holder
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if n := rt.holdsLocked(); n > 0 {
				all = append(all, holder{principal: rt.payer, bytes: n, end: func() int { return m.relieve(rt) }})
			}
		}
	})
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for p := range rs.sockets {
		if n, since := p.socket.Slow(now.Add(-slowMessage)); n > 0 {
			all = append(all, holder{principal: p.principal.ID, bytes: n, since: since, end: func() int {
				p.kick("memory is short, and a message does not come to its end, or is not taken")
				return n
			}})
		}
	}
	return all
}

// holdsLocked is how many bytes the process holds for the ends of a route.
func (rt *route) holdsLocked() int {
	return rt.up.Waiting() + rt.down.Waiting() + rt.heldBytes + rt.arriving + rt.behind
}

// relieve ends a stream and gives back what it holds. It returns how much that was.
func (m *meeting) relieve(rt *route) (freed int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rt.ended {
		return 0
	}
	freed = rt.holdsLocked()
	if rt.up != nil {
		rt.up.Discard()
	}
	if rt.down != nil {
		rt.down.Discard()
	}
	m.tooSlowLocked(rt)
	return freed
}
