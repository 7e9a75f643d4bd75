package rendezvous

import (
	"cmp"
	"context"
	"slices"
	"time"
)

const (
	// reliefPause is how long relieve waits before it checks whether it has freed enough.
	reliefPause = 100 * time.Millisecond
	// slowMessage is the least time that the transfer of a message, in or out, must have
	// lasted before its websocket may be closed.
	slowMessage = time.Second
)

// holder is a stream or a websocket that holds memory for a peer. The peer does not read, or
// does not send the rest of a message.
type holder struct {
	principal string // the id of the principal that the memory counts for
	bytes     int
	since     time.Time // start of the transfer of a message; zero for a stream
	end       func() (freed int)

	// level is the number of bytes that the principal holds at the time when this holder is
	// the principal's next holder to be ended.
	level int
}

// relieve ends streams and websockets when memory is short, until ctx ends. It begins with
// those of the principal that holds the most memory, however little each of them holds. Then
// other principals find room and go on.
func (rs *Routes) relieve(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-rs.limits.Alarm():
		}
		// The loop is needed because there may be no further alarm: if nothing is left, no
		// memory is taken.
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

// relieveOnce ends holders, in the order of inTurn, until enough memory is freed.
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

// inTurn sorts holders in the order in which they must be ended. The next holder always
// belongs to the principal that holds the most memory at that time. It is the largest holder
// of this principal, and the oldest of several largest holders.
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
	// The levels of one principal grow in the order of its holders. So sorting by level also
	// keeps the order of the holders of each principal.
	slices.SortFunc(holders, func(a, b holder) int { return b.level - a.level })
}

// holders returns all streams and websockets that hold memory for peers.
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

// holdsLocked returns the number of bytes that the process holds for the ends of a route.
func (rt *route) holdsLocked() int {
	return rt.up.Waiting() + rt.down.Waiting() + rt.heldBytes + rt.arriving + rt.behind
}

// relieve ends a stream and frees the memory that it holds. It returns the number of bytes.
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
