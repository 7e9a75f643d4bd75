package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/frame"
)

// TestShare: bytes that wait for harnesses that do not read count for their principal,
// wherever they wait. When the principal may have no more of them, large frames of its
// other streams are lost and small ones are not. Other principals notice nothing.
func TestShare(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s, other := c.pair(servers, settings{})
			other.pong = unread
			e, quick := s.executor(), other.harness()
			opened(quick, e, "quick", 1)
			k := other.ticket(ticket.Harness)
			k.Principal = c.principal(store.Key{Role: string(ticket.Harness), Environments: "*"})
			innocent := other.dial(k)
			opened(innocent, e, "innocent", 1)
			slow := other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
			opened(slow, e, "slow", 1)

			long := strings.Repeat("x", 61_000)
			for n := range uint32(400) { // 24 MB
				e.sendFrame(acked(data("slow", n, long), 1))
			}
			exchange(innocent, e, "innocent", 1) // behind it
			share := other.limits.Share(c.harnessKey)
			// The kernel may still take some of it.
			c.eventually("what waits is counted, and nothing else", func() bool {
				waits := share.Used()
				return waits >= laneLimit/2 && waits <= laneLimit+1<<20 && other.limits.Usage("").Waiting == waits
			})
			const most = 128 << 20 // for a principal, as limits has it
			share.Take(most)       // as more of such streams do
			e.sendFrame(acked(data("quick", 1, long), 1))
			quick.want(e.sendFrame(acked(data("quick", 2, "small"), 1)))
			innocent.want(e.sendFrame(acked(data("innocent", 1, long), 1)))

			slow.socket.Close()
			c.eventually("what waited is given back", func() bool { return share.Used() == most })
			share.Give(most)
			quick.want(e.sendFrame(acked(data("quick", 3, long), 1)))
		})
	}
}

// TestShareOfArrived: frames that have come from another server and wait for a full lane
// count for the harness's principal, too.
func TestShareOfArrived(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s, other := c.pair(2, settings{})
	other.patience = time.Hour
	e := s.executor()
	slow := other.dialBuffered(other.url(other.ticket(ticket.Harness)), 0)
	opened(slow, e, "slow", 0)
	long := strings.Repeat("x", 61_000)
	for n := range uint32(400) {
		e.trySend(data("slow", n, long))
	}
	share := other.limits.Share(c.harnessKey)
	c.eventually("lane and window are full", func() bool { return share.Used() > laneLimit+hopWindow/2 })
	slow.socket.Close()
	c.eventually("what waited is given back", func() bool { return share.Used() == 0 })
}

// TestShareOfUnknown: streams that only an executor has named, and the frames that are
// held for them, count for the executor's principal until a harness comes.
func TestShareOfUnknown(t *testing.T) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			s, other := c.pair(servers, settings{Limits: store.Limits{Streams: 2}})
			e := s.executor()
			open := func(id string) int { return s.limits.Usage(id).Streams }
			var held [][]byte
			for _, stream := range []string{"a", "b", "one too many"} {
				held = append(held, e.sendFrame(resume(stream)), e.sendFrame(acked(data(stream, 7, "held"), 1)))
			}
			share := s.limits.Share(c.executorKey)
			c.eventually("two are held", func() bool { return s.metrics.Dropped.Load() == 2 })
			waits := share.Used()
			if waits < 4<<10 || waits > 5<<10 { // four buffers
				t.Errorf("%d bytes are counted", waits)
			}
			if open(c.executorKey) != 2 || s.metrics.Streams.Load() != 2 {
				t.Errorf("%d streams are counted of %d", open(c.executorKey), s.metrics.Streams.Load())
			}
			h := other.harness()
			e.want(h.sendFrame(acked(resume("a"), 1)))
			h.want(held[0])
			h.want(held[1])
			c.eventually("one is left", func() bool {
				return share.Used() == waits/2 && open(c.executorKey) == 1 && s.limits.Share(c.harnessKey).Used() == 0
			})
			e.sendFrame(frame.Frame{StreamID: []byte("b"), Body: frame.Reset, Reason: []byte("done")})
			c.eventually("none is left", func() bool { return share.Used() == 0 && open(c.executorKey) == 0 })
			exchange(h, e, "a", 1)
		})
	}
}
