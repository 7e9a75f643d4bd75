package rendezvous

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// reliefPause is how long relief waits before it looks again, if it could not free
	// enough.
	reliefPause = 100 * time.Millisecond
	// minRelief is how many bytes a stream must hold at least to be ended for them.
	minRelief = 64 << 10
	// slowMessage is how long a message must have been on its way at least for its
	// websocket to be closed for it.
	slowMessage = time.Second
)

// holder is what holds memory for a peer that does not take it, or does not send the rest.
type holder struct {
	bytes int
	since time.Time // of a message that is on its way
	end   func() (freed int)
}

// relieve ends streams and websockets when memory is short, until ctx ends: first those
// that hold the most of it, which are those of the slowest receivers. Others find room
// then, and go on.
func (rs *Routes) relieve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-rs.limits.Alarm():
		}
		ended, freed := rs.relieveOnce()
		if ended > 0 {
			rs.metrics.Relieved.Add(uint64(ended))
			rs.log.Trouble("memory is short: streams that held the most of it were ended", "ended", ended, "bytes", freed, "limit", rs.limits.MaxWaiting())
		}
		if rs.limits.Excess() > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(reliefPause):
			}
		}
	}
}

// relieveOnce ends as many holders as there have to be ended.
func (rs *Routes) relieveOnce() (ended, freed int) {
	excess := rs.limits.Excess()
	if excess <= 0 {
		return 0, 0
	}
	holders := rs.holders(time.Now())
	slices.SortFunc(holders, func(a, b holder) int {
		return cmp.Or(b.bytes-a.bytes, a.since.Compare(b.since))
	})
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

// holders finds all who hold memory.
func (rs *Routes) holders(now time.Time) []holder {
	var all []holder
	rs.each(func(m *meeting) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, rt := range m.routes {
			if n := rt.holdsLocked(); n >= minRelief {
				all = append(all, holder{bytes: n, end: func() int { return m.relieve(rt) }})
			}
		}
	})
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for p := range rs.sockets {
		if n, since := p.socket.Incomplete(); n >= minRelief && now.Sub(since) >= slowMessage {
			all = append(all, holder{bytes: n, since: since, end: func() int {
				p.kick("memory is short, and a message of it does not come to its end")
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
