package socket

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// Frames of a lane arrive in order and whole, whatever other lanes send.
func TestOrder(t *testing.T) {
	t.Parallel()
	for _, direction := range []string{"up", "down"} {
		t.Run(direction, func(t *testing.T) {
			t.Parallel()
			from, to := pair(t, Config{}, Config{})
			if direction == "down" {
				from, to = to, from
			}
			const lanes, frames = 24, 100
			var running sync.WaitGroup
			for i := range lanes {
				running.Go(func() {
					lane := from.NewLane([]int{1, 10_000, 0}[i%3])
					for j := range frames {
						size := 8 + rand.IntN(300)
						if rand.IntN(6) == 0 {
							size = 8 + rand.IntN(90_000)
						}
						m := sized(size)
						fill(m.Bytes, i, j)
						if i%4 == 3 && j%2 == 0 {
							for m.Retain(); !lane.TrySend(m); m.Retain() {
								time.Sleep(time.Millisecond) // the lane is full
							}
							m.Release()
							continue
						}
						rig.Check(t, lane.Send(m))
					}
				})
			}
			var next [lanes]int
			for range lanes * frames {
				m := rig.Value(to.Read())
				i, j := int(binary.BigEndian.Uint32(m.Bytes)), int(binary.BigEndian.Uint32(m.Bytes[4:]))
				want := make([]byte, len(m.Bytes))
				fill(want, i, j)
				if i >= lanes || j != next[i] || !slices.Equal(m.Bytes, want) {
					t.Fatalf("lane %d, frame %d of %d bytes; want frame %v", i, j, len(m.Bytes), next)
				}
				next[i]++
				m.Release()
			}
			running.Wait()
		})
	}
}

// fill gives b bytes that only this frame has.
func fill(b []byte, lane, frame int) {
	pattern := fmt.Appendf(nil, "lane %d frame %d, ", lane, frame)
	for n := 0; n < len(b); {
		n += copy(b[n:], pattern)
	}
	binary.BigEndian.PutUint32(b, uint32(lane))
	binary.BigEndian.PutUint32(b[4:], uint32(frame))
}

// Small frames go first, but at most a batch of them between two bulk ones,
// and every lane has its turn.
func TestRounds(t *testing.T) {
	t.Parallel()
	s := &Socket{}
	push := func(size, n int) *Lane {
		l := s.NewLane(1 << 30)
		for range n {
			l.pushLocked(sized(size))
		}
		return l
	}
	flood := push(200, 10_000)
	push(recordSize, 20)
	push(recordSize, 20)
	push(100, 3)
	mixed := push(100, 1)
	mixed.pushLocked(sized(smallMessage + 1))
	mixed.pushLocked(sized(smallMessage))

	var r round
	var bulk []int
	small := map[int]int{}
	for i := 0; !s.sched.isEmpty(); i++ {
		s.sched.next(&r)
		bytes := 0
		for _, m := range r.small {
			bytes += len(m.Bytes)
			small[len(m.Bytes)]++
		}
		rig.Is(t, bytes <= batchSize+smallMessage, true, "round %d: bytes of small frames: %v, at most %v", i, bytes, batchSize+smallMessage)
		rig.Is(t, bytes < batchSize/2 && !flood.isEmptyLocked(), false, "round %d: only %d bytes of small frames", i, bytes)
		rig.Is(t, i > 0 || small[100] == 4, true, "first round: 4 of the short frames, %d", small[100])
		if r.bulk.Message != nil {
			bulk = append(bulk, len(r.bulk.Bytes))
		}
		rig.Is(t, i < 41 && r.bulk.Message == nil, false, "round %d: bulk waits", i)
		r.release()
	}
	rig.Same(t, "the first bulk frames", []int{recordSize, recordSize, smallMessage + 1, recordSize}, bulk[:4])
	rig.Is(t, len(bulk), 41, "bulk frames")
	rig.Same(t, "small frames by size", map[int]int{200: 10_000, 100: 4, smallMessage: 1}, small)
}

// The same over a connection: what comes late and small waits for no more than
// what is being written and one frame of bulk.
func TestSmallFirst(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client, server := pipePair(t, Config{}, Config{})
		for i := range 8 {
			lane := server.NewLane(1 << 20)
			go func() { _ = lane.Send(message(fmt.Sprint(i) + strings.Repeat("b", recordSize))) }()
			synctest.Wait()
		}
		rig.Is(t, server.NewLane(0).TrySend(message("small")), true, "TrySend on an empty lane")
		got := texts(t, client, 9)
		rig.Is(t, slices.Contains(got[:3], "small"), true, "the small frame is among the first three")
		// Bulk lanes had their turns in the order in which they came.
		bulk := slices.DeleteFunc(got, func(s string) bool { return s == "small" })
		rig.Is(t, slices.IsSorted(bulk), true, "bulk lanes keep their order")
	})
}

func TestLimit(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client, server := pipePair(t, Config{}, Config{})
		lane := client.NewLane(4 * (1<<10 + 60)) // a message costs a little more than the 1 KiB of its buffer
		var held []*Message
		try := func() bool {
			m := message(strings.Repeat("x", 300))
			m.Retain()
			held = append(held, m)
			ok := lane.TrySend(m)
			synctest.Wait() // the writer has taken what it can
			return ok
		}
		for i := range 5 { // one in the writer's hands, four wait: the last one reaches the limit
			rig.Is(t, try(), true, "TrySend %d", i)
		}
		rig.Is(t, try(), false, "TrySend beyond the limit")
		rig.Is(t, client.NewLane(1).TrySend(message("other")), true, "TrySend on another lane")
		blocked := make(chan error, 3)
		for i := range 3 {
			m := message(fmt.Sprint(i))
			m.Retain()
			held = append(held, m)
			go func() { blocked <- lane.Send(m) }()
			synctest.Wait()
		}
		rig.Is(t, len(blocked), 0, "Send beyond the limit did not wait")
		texts(t, server, 6+3)
		synctest.Wait()
		rig.Is(t, len(blocked), 3, "of 3 senders went on")
		rig.Is(t, client.NewLane(0).TrySend(sized(MaxMessage+1)), false, "TrySend of too large a message")
		alone(t, held)
	})
}

// alone checks that nobody but the test holds the messages.
func alone(t *testing.T, held []*Message) {
	t.Helper()
	for i, m := range held {
		rig.Is(t, m.holders.Load(), 1, "holders of message %d", i)
		m.Release()
	}
}

func TestLaneClose(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client, server := pipePair(t, Config{}, Config{})
		lane := client.NewLane(1)
		results := make(chan error, 4)
		for i := range 4 { // written, waiting, and two that wait for room
			go func() { results <- lane.Send(message(fmt.Sprint(i))) }()
			synctest.Wait()
		}
		lane.Close()
		synctest.Wait()
		for range 2 {
			err := <-results
			rig.Is(t, err == nil || err == errLaneClosed, true, "what Send says: %v", err)
		}
		rig.Is(t, lane.Send(message("late")), errLaneClosed, "Send on a closed lane")
		rig.Is(t, lane.TrySend(message("late")), false, "TrySend on a closed lane")
		rig.Same(t, "what arrives", []string{"0", "1"}, texts(t, server, 2))
		rig.Is(t, client.NewLane(0).TrySend(message("on")), true, "TrySend on another lane")
		rig.Is(t, texts(t, server, 1)[0], "on", "what arrives")
	})
}

// Close with a peer that never reads: everybody comes back, and nothing is kept.
func TestCloseUnblocks(t *testing.T) {
	t.Parallel()
	for _, direction := range []string{"up", "down"} {
		ends := func(a, b *Socket) (near *Socket) {
			if direction == "up" {
				return a
			}
			return b
		}
		t.Run("tcp "+direction, func(t *testing.T) {
			t.Parallel()
			closeUnblocks(t, ends(pair(t, Config{}, Config{})), func() {})
		})
		run(t, "pipe "+direction, func(t *testing.T) {
			closeUnblocks(t, ends(pipePair(t, Config{}, Config{})), synctest.Wait)
		})
	}
}

// closeUnblocks closes s after settle.
func closeUnblocks(t *testing.T, s *Socket, settle func()) {
	reading := drainAll(s)
	var mu sync.Mutex
	var held []*Message
	var running, started sync.WaitGroup
	for i := range 20 {
		started.Add(1)
		running.Go(func() {
			lane := s.NewLane(0)
			for n := 0; ; n++ {
				m := sized([]int{100, 3000, recordSize}[i%3])
				m.Retain()
				mu.Lock()
				held = append(held, m)
				mu.Unlock()
				if n == 0 {
					started.Done()
				}
				if err := lane.Send(m); err != nil {
					rig.Is(t, err, net.ErrClosed, "Send")
					return
				}
			}
		})
	}
	started.Wait()
	settle()
	s.Close()
	running.Wait()
	alone(t, held)
	rig.Is(t, <-reading, net.ErrClosed, "Read")
	select {
	case <-s.Done():
	default:
		t.Error("Done is open after Close")
	}
	s.Close()
	rig.Is(t, s.NewLane(0).Send(message("late")), net.ErrClosed, "Send after Close")
	rig.Is(t, s.NewLane(0).TrySend(message("late")), false, "TrySend after Close")
}

func TestFlush(t *testing.T) {
	bubble(t, func(t *testing.T) {
		client, server := pipePair(t, Config{}, Config{})
		rig.Check(t, client.Flush(t.Context()))
		for range 3 {
			client.NewLane(0).TrySend(sized(recordSize))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rig.Is(t, client.Flush(ctx), context.DeadlineExceeded, "Flush to a peer that does not read")
		flushed := make(chan error, 1)
		go func() { flushed <- client.Flush(t.Context()) }()
		texts(t, server, 2)
		synctest.Wait()
		select {
		case err := <-flushed:
			t.Errorf("Flush too early: %v", err)
		default:
		}
		texts(t, server, 1)
		rig.Must(t, <-flushed)
		client.NewLane(0).TrySend(sized(recordSize))
		go func() { flushed <- client.Flush(t.Context()) }()
		synctest.Wait()
		client.Close()
		rig.Is(t, <-flushed, net.ErrClosed, "Flush of a closed socket")
	})
}

// Messages that were flushed arrive although bytes of the peer lie unread here.
// Without conns.Linger those would make the kernel forget the messages.
func TestFlushedArrives(t *testing.T) {
	t.Parallel()
	client, server := pair(t, Config{}, Config{})
	for range 4 {
		rig.Must(t, server.NewLane(0).Send(sized(1000)))
	}
	lane := client.NewLane(0)
	for range 20 {
		rig.Must(t, lane.Send(sized(recordSize)))
		m := rig.Value(server.Read())
		m.Release()
	}
	rig.Must(t, lane.Send(message("last")))
	rig.Must(t, client.Flush(t.Context()))
	client.Close()
	rig.Is(t, texts(t, server, 1)[0], "last", "what arrives")
}

// A lane that never runs empty does not grow.
func TestQueueIsBounded(t *testing.T) {
	t.Parallel()
	s := &Socket{}
	l := s.NewLane(0)
	l.pushLocked(message("x"))
	for i := range 100_000 {
		l.pushLocked(message("x"))
		if i%1000 < 300 {
			l.pushLocked(message("x"))
			l.popLocked().Release()
		}
		l.popLocked().Release()
	}
	rig.Is(t, max(cap(l.queue), 8*keptQueue), 8*keptQueue, "slots for %d messages, at most", len(l.queue)-l.first)
}

// TestTrySendUnread: messages that the kernel does not take at once go out
// later, in order and whole, although nobody waited for them.
func TestTrySendUnread(t *testing.T) {
	t.Parallel()
	near, far := pair(t, Config{}, Config{})
	const n = 20000 // of 1 KiB: more than the kernel's buffers hold
	lane := near.NewLane(n << 11)
	for i := range n {
		m := NewMessage(1 << 10)
		m.Bytes = append(binary.BigEndian.AppendUint32(m.Bytes, uint32(i)), make([]byte, 1020)...)
		if !lane.TrySend(m) {
			t.Fatalf("message %d was refused", i)
		}
	}
	for i := range n {
		m := rig.Value(far.Read())
		rig.Is(t, fmt.Sprint(binary.BigEndian.Uint32(m.Bytes), len(m.Bytes)), fmt.Sprint(i, 1<<10), "number and bytes of message %d", i)
		m.Release()
	}
}
