package limits

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/test/rig"
)

// second is the second result of a call.
func second[A, B any](_ A, b B) B { return b }

func TestLimitRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(store.Limits{Requests: 2, RequestBurst: 3}, 0)
		p, other := &store.Principal{ID: "key:1"}, &store.Principal{ID: "key:2"}
		for i := range 3 {
			rig.Is(t, second(l.Request(p)), true, "request %d of the burst is allowed", i)
		}
		for range 5 { // refused requests use up nothing
			if wait, ok := l.Request(p); ok || wait <= 0 || wait > 500*time.Millisecond {
				t.Fatalf("got %v, %v after the burst", wait, ok)
			}
		}
		rig.Is(t, second(l.Request(other)), true, "another principal is allowed")
		time.Sleep(500 * time.Millisecond)
		rig.Is(t, second(l.Request(p)), true, "allowed after the wait")
		rig.Is(t, second(l.Request(p)), false, "two are allowed after the wait for one")
		// Other limits count from the next request on.
		p = &store.Principal{ID: "key:1", Limits: store.Limits{Requests: -1}}
		for range 1000 {
			rig.Is(t, second(l.Request(p)), true, "allowed without a limit")
		}
	})
}

func TestLimitOpen(t *testing.T) {
	t.Parallel()
	l := New(store.Limits{Connections: 2, Streams: 1}, 0)
	p := &store.Principal{ID: "key:1"}
	for name, take := range map[string]func(*store.Principal) (func(), bool){"connect": l.Connect, "stream": l.Stream} {
		limit := map[string]int{"connect": 2, "stream": 1}[name]
		var releases []func()
		for range limit {
			release, ok := take(p)
			rig.Is(t, ok, true, "%s below the limit", name)
			releases = append(releases, release)
		}
		rig.Is(t, second(take(p)), false, "%s is allowed above the limit", name)
		rig.Is(t, second(take(&store.Principal{ID: "key:2"})), true, "%s of another principal is allowed", name)
		releases[0]()
		rig.Is(t, second(take(p)), true, "%s is allowed after one was released", name)
		more := &store.Principal{ID: "key:1", Limits: store.Limits{Connections: -1, Streams: -1}}
		for range 100 {
			rig.Is(t, second(take(more)), true, "%s is allowed without a limit", name)
		}
	}
}

func TestLimitBytes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(store.Limits{Bytes: 1 << 20}, 0)
		p := &store.Principal{ID: "key:1"}
		start := time.Now()
		for range 8 {
			rig.Must(t, l.Bytes(nil, p, 512<<10))
		}
		rig.Is(t, time.Since(start).Round(2*time.Millisecond), 3*time.Second, "4 MiB at 1 MiB/s after a burst of 1 MiB took")
		rig.Check(t, l.Bytes(nil, p, 5<<20))
		done := make(chan struct{})
		time.AfterFunc(time.Millisecond, func() { close(done) })
		rig.Is(t, l.Bytes(done, p, 1<<20) == nil, false, "it does not end with its websocket")
		rig.Check(t, l.Bytes(nil, &store.Principal{ID: "key:2", Limits: store.Limits{Bytes: -1}}, 1<<40))
	})
}

// TestLimiterBounded: the accounts of principals that come and go do not add up, and
// those of principals that have something open stay.
func TestLimiterBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(store.Limits{}, 0)
		release, ok := l.Connect(&store.Principal{ID: "open"})
		if !ok {
			t.Fatal("refused")
		}
		for i := range maxAllowances - 1 {
			rig.Is(t, second(l.Request(&store.Principal{ID: fmt.Sprint(i)})), true, "principal %d is allowed", i)
		}
		rig.Is(t, second(l.Request(&store.Principal{ID: "more"})), false, "one more is allowed")
		rig.Is(t, len(l.allowances), maxAllowances, "allowances")
		rig.Is(t, l.Bytes(nil, &store.Principal{ID: "more"}, 1) == nil, false, "bytes are allowed without an allowance")
		time.Sleep(idleAllowance)
		rig.Is(t, second(l.Request(&store.Principal{ID: "more"})), true, "one more is allowed after a while")
		rig.Is(t, len(l.allowances), 2, "allowances after a while")
		rig.Is(t, l.allowances["open"].connections, 1, "what is open was forgotten")
		busy := &store.Principal{ID: "busy"}
		l.Created(busy)
		l.allowances["busy"].Lines.AllowN(time.Now(), 10_000)
		l.forgetLocked(time.Now().Add(idleAllowance))
		rig.Is(t, l.allowances["busy"] == nil, false, "what is used up was forgotten")
		l.forgetLocked(time.Now().Add(10_000 / linesPerSecond * time.Second))
		rig.Is(t, l.allowances["busy"] == nil, true, "it is forgotten once all is back")
		release()
		rig.Is(t, l.allowances["open"].connections, 0, "what was released is still open")
	})
}

func BenchmarkLimitBytes(b *testing.B) {
	l, p := New(store.Limits{Bytes: 1 << 50}, 0), &store.Principal{ID: "key:1"}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Bytes(b.Context().Done(), p, 61_500); err != nil && !errors.Is(err, net.ErrClosed) {
			b.Fatal(err)
		}
	}
}

// TestLimitChangedBack: what a principal has used up is not given back when calls with
// its old limits, of a websocket, and calls with its new limits come in turn.
func TestLimitChangedBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := New(store.Limits{Requests: 1, RequestBurst: 3}, 0)
		old, now := &store.Principal{ID: "agent:1"}, &store.Principal{ID: "agent:1", Limits: store.Limits{Requests: 2, RequestBurst: 4}}
		allowed := 0
		for range 100 {
			for _, p := range []*store.Principal{old, now} {
				if second(l.Request(p)) {
					allowed++
				}
			}
		}
		rig.Is(t, allowed <= 4, true, "requests allowed at once: %v, at most %v", allowed, 4)
	})
}

// TestPrincipalsPart: one principal has a quarter at most of what may be held for peers, be
// it for streams or for messages that come in part.
func TestPrincipalsPart(t *testing.T) {
	t.Parallel()
	for _, memory := range []int64{0, 64 << 20, 1 << 30, 16 << 30} {
		l := New(store.Limits{}, memory)
		a, most := l.Allowance("key:1"), l.MaxWaiting()/4
		n := a.waiting.Limit()
		rig.Is(t, min(n, most, maxPrincipalWaiting), n, "bytes of %d that may wait", l.MaxWaiting())
		if n := int64(cap(a.Large)) * socket.MaxMessage; n > most || n < min(most, maxLarge*socket.MaxMessage)-socket.MaxMessage {
			t.Errorf("%d of %d bytes may be read", n, l.MaxWaiting())
		}
	}
}
