package rpc

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

const testMost = 64 << 20 // the longest message

// fill lets n bytes of a message arrive. When there is no room for all of them it
// returns the channel to wait for, and how many bytes did not arrive.
func fill(in *Intake, n int) (left int, granted <-chan struct{}) {
	for n > 0 {
		space, granted := in.TrySpace(1, testMost)
		if granted != nil {
			return n, granted
		}
		k := min(n, len(space))
		in.Filled(k)
		n -= k
	}
	return 0, nil
}

// mustFill is fill with all the room that it takes.
func mustFill(t *testing.T, in *Intake, n int) {
	t.Helper()
	left, _ := fill(in, n)
	rig.Is(t, left, 0, "bytes of %d without room", n)
}

// mustWait is fill of a message for which there is no room yet.
func mustWait(t *testing.T, in *Intake, n int) (left int, granted <-chan struct{}) {
	t.Helper()
	left, granted = fill(in, n)
	rig.Is(t, granted != nil, true, "a message of %d bytes has to wait", n)
	return left, granted
}

// idle says whether nothing counts and nobody waits.
func (b *Budget) idle() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large.used|b.small.used|b.large.suspended|b.small.suspended == 0 &&
		b.beyond == nil && len(b.queue) == 0
}

// used is what counts in the account of large messages.
func (b *Budget) used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.large.used
}

// TestBudgetWaits: a large message waits for room, until another one has been served
// and given back. Small ones do not wait for room.
func TestBudgetWaits(t *testing.T) {
	t.Parallel()
	b := NewBudget(1 << 20)
	first, second, small := NewIntake(b, 0, nil), NewIntake(b, 0, nil), NewIntake(b, 0, nil)
	mustFill(t, first, 1<<20)
	message := first.Message()
	mustFill(t, first, maxSmall)
	// The next one that waits has the place beyond the limit.
	mustFill(t, second, 1<<20)
	left, granted := mustWait(t, first, 1<<20)
	mustFill(t, small, maxSmall)
	small.Recycle(small.Message())
	rig.Is(t, closed(granted), false, "room without an end of what took it")
	second.Recycle(second.Message())
	first.Recycle(message)
	<-granted
	mustFill(t, first, left)
	first.Recycle(first.Message())
	rig.Is(t, b.used(), 0, "bytes are not given back")
}

// TestBudgetOldest fills the budget with messages that have all begun, so that each
// can go on only when others end: they get through one after the other, and at most
// one at a time is beyond the limit.
func TestBudgetOldest(t *testing.T) {
	t.Parallel()
	const limit, size, connections = 8 << 20, 16 << 20, 20
	b := NewBudget(limit)
	var clients sync.WaitGroup
	for range connections {
		clients.Go(func() {
			in := NewIntake(b, 0, nil)
			for in.Len() < size {
				space := rig.Value(in.Space(1, testMost))
				// One message goes beyond the limit, with its copy while it grows.
				rig.Is(t, b.used() <= limit+size+size/4+1<<20, true, "bytes in use: %v, at most %v", b.used(), limit+size+size/4+1<<20)
				in.Filled(min(len(space), size-in.Len(), 1<<20))
			}
			message := in.Message()
			time.Sleep(time.Millisecond) // it is being served
			in.Recycle(message)
		})
	}
	clients.Wait()
	rig.Is(t, b.used(), 0, "bytes are not given back")
}

// TestBudgetProperties lets messages of any size come in any pieces, be given
// up, be served and wait. All that is held is bounded, everything is given back,
// and as long as peers go on and handlers return every message gets through.
func TestBudgetProperties(t *testing.T) {
	t.Parallel()
	const limit, most = 4 << 20, 8 << 20
	const largest = 16 << 20 // buffer of such a message
	rapid.Check(t, func(t *rapid.T) {
		b := NewBudget(limit)
		type connection struct {
			in        *Intake
			size      int    // of the message that arrives, 0: none
			held      []byte // the message before, not served yet
			suspended bool
			resumed   bool // the message before only waited for a while, and others took its room
		}
		var connections [6]connection
		for i := range connections {
			connections[i].in = NewIntake(b, 0, nil)
		}
		suspended := int64(0)
		goOn := func(c *connection, n int) {
			if n = min(n, c.size-c.in.Len()); n > 0 {
				fill(c.in, n)
			}
			if c.in.Len() == c.size && c.held == nil {
				c.held, c.size = c.in.Message(), 0
			}
		}
		serve := func(c *connection) {
			if c.suspended {
				suspended -= int64(cap(c.held))
			}
			c.in.give(cap(c.held), c.suspended)
			c.held, c.suspended, c.resumed = nil, false, false
		}
		check := func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			var sum int64 // of what is there
			unfinished, resumed := int64(0), int64(0)
			for _, c := range connections {
				if c.resumed {
					resumed += int64(cap(c.held))
				}
				if c.held != nil && !c.suspended && cap(c.held) > maxSmall {
					sum += int64(cap(c.held))
				}
				if c.in.Held() > maxSmall {
					unfinished += int64(c.in.Held())
				}
			}
			sum += unfinished
			granted := int64(0) // taken for intakes that have not called TrySpace again yet
			for _, c := range connections {
				if c.in.waiting && closed(c.in.granted) {
					granted += c.in.want
				}
			}
			rig.Is(t, b.large.used, sum+granted, "bytes count, of them %d granted", granted)
			most := limit + largest + largest/4 + suspended + resumed
			rig.Is(t, min(b.large.used, most), b.large.used, "bytes in use, beside %d suspended and %d resumed", suspended, resumed)
			rig.Is(t, min(b.large.suspended, suspended), b.large.suspended, "bytes that count as suspended")
		}
		pick := func(t *rapid.T) *connection {
			return &connections[rapid.IntRange(0, len(connections)-1).Draw(t, "connection")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { check() },
			"begin": func(t *rapid.T) {
				if c := pick(t); c.size == 0 {
					c.size = rapid.OneOf(rapid.IntRange(1, maxSmall), rapid.IntRange(1, most)).Draw(t, "size")
				}
			},
			"goOn": func(t *rapid.T) {
				if c := pick(t); c.size > 0 {
					goOn(c, rapid.IntRange(1, most).Draw(t, "bytes"))
				}
			},
			"giveUp": func(t *rapid.T) {
				c := pick(t)
				c.in.Drop()
				c.size = 0
			},
			"serve": func(t *rapid.T) {
				if c := pick(t); c.held != nil {
					serve(c)
				}
			},
			"suspend": func(t *rapid.T) {
				c := pick(t)
				if c.held != nil && !c.suspended && c.in.suspend(cap(c.held)) {
					c.suspended, c.resumed = true, false
					suspended += int64(cap(c.held))
				}
			},
			"resume": func(t *rapid.T) {
				if c := pick(t); c.suspended {
					c.in.resume(cap(c.held))
					suspended -= int64(cap(c.held))
					c.suspended, c.resumed = false, true
				}
			},
		})
		// Everything comes to its end.
		for left := len(connections); left > 0; {
			moved := false
			left = 0
			for i := range connections {
				c := &connections[i]
				if c.held != nil {
					serve(c)
					moved = true
				}
				if c.size > 0 {
					before := c.in.Len()
					goOn(c, most)
					moved = moved || c.in.Len() != before || c.size == 0
				}
				if c.size > 0 || c.held != nil {
					left++
				}
			}
			rig.Is(t, left > 0 && !moved, false, "%d messages do not get through", left)
		}
		check()
		rig.Is(t, b.idle(), true, "at rest: %+v, %+v", b.large, b.small)
	})
}

// TestBudgetPatience: a large message that does not go on is given up after its
// peer's patience, but not while it waits for memory, nor while nobody can take
// more of it.
func TestBudgetPatience(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const patience = 90 * time.Second
		b := NewBudget(1 << 20)
		var stalled atomic.Int32
		in := NewIntake(b, patience, func() { stalled.Add(1) })
		check := func(what string, want int32) {
			t.Helper()
			synctest.Wait()
			rig.Is(t, stalled.Load(), want, "%s: given up", what)
		}
		mustFill(t, in, maxSmall)
		time.Sleep(2 * patience)
		check("a small message", 0)
		for range 3 {
			mustFill(t, in, minProgress)
			time.Sleep(patience - time.Second)
			check("one that goes on", 0)
		}
		in.Pause()
		time.Sleep(2 * patience)
		check("one that is not read", 0)
		mustFill(t, in, 1)
		for range patience / time.Second * 2 { // far less than enough
			if stalled.Load() == 1 {
				break
			}
			time.Sleep(time.Second)
			mustFill(t, in, 1)
			synctest.Wait()
		}
		check("one that hardly goes on", 1)
		in.Drop()

		// Another message takes the whole budget, and the place beyond it.
		other := NewIntake(b, 0, nil)
		mustFill(t, other, 2<<20)
		left, granted := mustWait(t, in, 1<<20)
		time.Sleep(2 * patience)
		check("one that waits for memory", 1)
		other.Drop()
		<-granted
		mustFill(t, in, left)
		time.Sleep(2 * patience)
		check("one that has waited for memory", 2)
		in.Message()
		time.Sleep(2 * patience)
		check("one that has arrived", 2)
	})
}

// TestBudgetOverdue: a connection that holds large messages while others wait for
// their memory is ended after its patience, be it that its message comes in drops
// or that its requests are not served. One that gives back something now and then
// is not.
func TestBudgetOverdue(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(t *testing.T, in *Intake, size int){
		"drops": func(t *testing.T, in *Intake, size int) {
			mustFill(t, in, size)
			for {
				select {
				case <-time.After(59 * time.Second):
					mustFill(t, in, minProgress)
					continue
				case <-in.closed:
				}
				in.Drop()
				return
			}
		},
		"not served": func(t *testing.T, in *Intake, size int) {
			mustFill(t, in, size)
			message := in.Message()
			<-in.closed
			in.Recycle(message)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const patience = time.Minute
				b := NewBudget(128 << 20)
				busy := NewIntake(b, patience, func() { t.Error("one that goes on was ended") })
				var messages [10][]byte
				for i := range messages {
					mustFill(t, busy, 100<<10)
					messages[i] = busy.Message()
				}
				var holding sync.WaitGroup
				for _, size := range []int{2 << 20, 17 << 20, 17 << 20} { // the last one beyond the limit
					var in *Intake
					in = NewIntake(b, patience, func() { in.Close() })
					holding.Go(func() { hold(t, in, size) })
					synctest.Wait()
				}

				time.Sleep(150 * time.Second) // nobody waits
				holding.Go(func() {
					for _, message := range messages {
						time.Sleep(patience / 2)
						busy.Recycle(message)
					}
				})
				asked := time.Now()
				waits := NewIntake(b, patience, nil)
				waitFill(t, waits, 100<<10)
				rig.Is(t, time.Since(asked), patience, "another one has waited for")
				waits.Recycle(waits.Message())
				holding.Wait()
				rig.Is(t, b.idle() && len(b.holders) == 0 && b.overdue == nil, true, "at rest: %+v, watch %v", b, b.overdue)
			})
		})
	}
}

// waitFill is fill that waits for room.
func waitFill(t *testing.T, in *Intake, n int) {
	t.Helper()
	for n > 0 {
		left, granted := fill(in, n)
		if n = left; n > 0 {
			<-granted
		}
	}
}

// TestBudgetHeldAlone: what nobody waits for may be held for any time.
func TestBudgetHeldAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		in := NewIntake(b, time.Second, func() { t.Error("it was ended") })
		mustFill(t, in, 4<<20)
		message := in.Message()
		time.Sleep(time.Hour)
		waits := NewIntake(b, time.Second, nil)
		_, granted := fill(waits, 1<<20)
		time.Sleep(time.Second / 2)
		in.Recycle(message)
		<-granted
		waits.Drop()
		time.Sleep(time.Hour)
	})
}

// TestBudgetClose: a reader that waits for its turn or for memory hears of the end
// of its connection, and gives up its place.
func TestBudgetClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		first, other := NewIntake(b, 0, nil), NewIntake(b, 0, nil)
		mustFill(t, first, 4<<20) // beyond the limit: others have to wait
		waits := NewIntake(b, 0, nil)
		done := make(chan error, 2)
		go func() { done <- rig.Err(waits.Space(1<<20, testMost)) }()
		b.account(1).used += b.small.limit
		other.small = ownSmall
		go func() { done <- other.Begin() }()
		synctest.Wait()
		rig.Is(t, len(done), 0, "ends without waiting")
		waits.Close()
		other.Close()
		for range 2 {
			rig.Is(t, <-done, net.ErrClosed, "")
		}
		waits.Drop()
		first.Drop()
		b.account(1).used -= b.small.limit
		rig.Is(t, b.idle(), true, "%d bytes and %d places are given back", b.used(), len(b.queue))
	})
}

// TestBudgetGivenUp: a message that is given up when its room has just been granted
// leaves that room to others.
func TestBudgetGivenUp(t *testing.T) {
	t.Parallel()
	b := NewBudget(1 << 20)
	first, waits := NewIntake(b, 0, nil), NewIntake(b, 0, nil)
	mustFill(t, first, 4<<20)
	_, granted := mustWait(t, waits, 1<<20)
	first.Drop()
	<-granted
	waits.Drop()
	rig.Is(t, b.used(), 0, "bytes are not given back")
}

// TestBudgetGate: nothing more of a connection is read while too many small
// messages are being served, and more than a little of them are its own.
func TestBudgetGate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(1 << 20)
		in, other := NewIntake(b, 0, nil), NewIntake(b, 0, nil)
		const size = 1 << 10
		serve := func(in *Intake) []byte {
			t.Helper()
			rig.Must(t, in.Begin())
			mustFill(t, in, size)
			return in.Message()
		}
		var held, others [][]byte
		for !in.Crowded() {
			held = append(held, serve(in))
		}
		n := len(held) * size
		rig.Is(t, min(max(n, minSmallLimit/2), minSmallLimit), n, "bytes after which reading stops")
		for !other.Crowded() {
			others = append(others, serve(other))
		}
		rig.Is(t, len(others)*size, ownSmall, "bytes after which reading of another connection stops")
		waits := func(in *Intake) chan error {
			begun := make(chan error, 1)
			go func() { begun <- in.Begin() }()
			synctest.Wait()
			rig.Is(t, len(begun), 0, "it did not wait")
			return begun
		}
		begun := waits(other)
		other.Recycle(others[0])
		rig.Must(t, <-begun)
		others[0] = serve(other)
		begun = waits(other)
		for _, message := range held { // until there is room for all
			in.Recycle(message)
		}
		rig.Must(t, <-begun)
		for _, message := range others {
			other.Recycle(message)
		}
		rig.Is(t, fmt.Sprint(b.small.used, in.small, other.small), "0 0 0", "bytes that are not given back")
	})
}

// TestSuspended: requests that only wait may hold half as much again as the limit;
// a single one may hold whatever it takes, and those of each connection a little in
// any case.
func TestSuspended(t *testing.T) {
	t.Parallel()
	b := NewBudget(16 << 20)
	in, other, third := NewIntake(b, 0, nil), NewIntake(b, 0, nil), NewIntake(b, 0, nil)
	const large = 8 << 20
	b.large.used = 100 << 20 // as if so much were being served
	rig.Is(t, in.suspend(large), true, "the first one is taken")
	rig.Is(t, other.suspend(large), false, "a second one is taken")
	rig.Is(t, other.suspend(ownSuspended) && !other.suspend(maxSmall+1), true, "the first bytes of a connection are taken")
	in.give(large, true)
	rig.Is(t, other.suspend(maxSmall+1) && third.suspend(maxSmall+1), true, "what was given back can be had")
	rig.Is(t, b.large.suspended, ownSuspended+2*(maxSmall+1), "bytes are suspended")
}
