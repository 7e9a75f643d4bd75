package rendezvous

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
)

// long is the payload of a large frame.
var long = strings.Repeat("x", 61_000)

// tooMuch is how many long frames are more than a lane and a window between servers hold.
const tooMuch = (laneLimit+hopWindow)/61_000 + 20

// TestShare: bytes that wait for harnesses that do not read count for their principal,
// wherever they wait. When the principal may have no more of them, large frames of its
// other streams are lost and small ones are not. Other principals notice nothing.
func TestShare(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{})
		e, quick, innocent := s.executor(), other.harness(), other.stranger()
		opened(quick, e, "quick", 1)
		opened(innocent, e, "innocent", 1)
		slow := other.slowEnd(other.ticket(ticket.Harness))
		opened(slow, e, "slow", 1)

		for n := range uint32(tooMuch) {
			e.sendFrame(acked(data("slow", n, long), 1))
		}
		exchange(innocent, e, "innocent", 1) // behind it
		share := other.limits.Share(c.harnessKey)
		c.settles("what waits is counted, and nothing else", func() bool {
			waits := share.Used()
			return waits >= laneLimit/2 && waits <= laneLimit+1<<20 && other.limits.Usage("").Waiting == waits
		})
		const most = 128 << 20 // for a principal, as limits has it
		share.Take(most)       // as more of such streams do
		e.sendFrame(acked(data("quick", 1, long), 1))
		quick.want(e.sendFrame(acked(data("quick", 2, "small"), 1)))
		innocent.want(e.sendFrame(acked(data("innocent", 1, long), 1)))

		slow.socket.Close()
		c.settles("what waited is given back", func() bool { return share.Used() == most })
		share.Give(most)
		quick.want(e.sendFrame(acked(data("quick", 3, long), 1)))
	})
}

// TestShareOfArrived: frames that have come from another server and wait for a full lane
// count for the harness's principal, too.
func TestShareOfArrived(t *testing.T) {
	bubble(t, func(c *cluster) {
		s, other := c.pair(2, settings{})
		e, slow := s.executor(), other.slowEnd(other.ticket(ticket.Harness))
		opened(slow, e, "slow", 0)
		for n := range uint32(tooMuch) {
			e.trySend(data("slow", n, long))
		}
		share := other.limits.Share(c.harnessKey)
		c.settles("lane and window are full", func() bool { return share.Used() > laneLimit+hopWindow/2 })
		slow.socket.Close()
		c.settles("what waited is given back", func() bool { return share.Used() == 0 })
	})
}

// TestShareOfUnknown: streams that only an executor has named, and the frames that are
// held for them, count for the executor's principal until a harness comes.
func TestShareOfUnknown(t *testing.T) {
	oneAndTwo(t, func(c *cluster, servers int) {
		s, other := c.pair(servers, settings{Limits: store.Limits{Streams: 2}})
		e := s.executor()
		open := func(id string) int { return s.limits.Usage(id).Streams }
		var held [][]byte
		for _, stream := range []string{"a", "b", "one too many"} {
			held = append(held, e.sendFrame(resume(stream)), e.sendFrame(acked(data(stream, 7, "held"), 1)))
		}
		share := s.limits.Share(c.executorKey)
		c.settles("two are held", func() bool { return s.metrics.Dropped.Load() == 2 })
		waits := share.Used()
		if waits < 4<<10 || waits > 8<<10 { // four buffers of the pool's smallest class, of 1 KiB to 2
			c.t.Errorf("%d bytes are counted", waits)
		}
		if open(c.executorKey) != 2 || s.metrics.Streams.Load() != 2 {
			c.t.Errorf("%d streams are counted of %d", open(c.executorKey), s.metrics.Streams.Load())
		}
		h := other.harness()
		e.want(h.sendFrame(acked(resume("a"), 1)))
		h.want(held[0])
		h.want(held[1])
		c.settles("one is left", func() bool {
			left := share.Used()
			return left >= 2<<10 && left <= waits-2<<10 && open(c.executorKey) == 1 && s.limits.Share(c.harnessKey).Used() == 0
		})
		e.sendFrame(reset("b", "done"))
		c.settles("none is left", func() bool { return share.Used() == 0 && open(c.executorKey) == 0 })
		exchange(h, e, "a", 1)
	})
}
