package queue

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/execagent/execagent/test/rig"
)

func TestQueueHoldsItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue[int]
		put := 0
		go func() {
			for range 10 {
				q.Put(t.Context(), put+1, maxQueued/4)
				put++
			}
			q.Fail(errors.New("end"))
		}()
		synctest.Wait()
		rig.Is(t, put, 4, "items of a quarter each fit")
		for want := 1; want <= 10; want++ {
			rig.Is(t, fmt.Sprint(q.Take(t.Context())), fmt.Sprint(want, nil), "took")
			synctest.Wait()
		}
		rig.Is(t, fmt.Sprint(rig.Err(q.Take(t.Context()))), "end", "after the last item")
	})
}

func TestQueueTakesOneItemOfAnySize(t *testing.T) {
	t.Parallel()
	var q Queue[int]
	q.Put(t.Context(), 1, 2*maxQueued)
	rig.Is(t, fmt.Sprint(q.Take(t.Context())), "1 <nil>", "took")
}

func TestQueueEndsWaitsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue[int]
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		var taken error
		go func() { _, taken = q.Take(ctx) }()
		synctest.Wait()
		cancel(cause)
		synctest.Wait()
		rig.Is(t, taken, cause, "take ends with")
		q.Put(t.Context(), 1, maxQueued)
		q.Put(ctx, 2, maxQueued) // the test is that this returns
		q.Fail(cause)
		rig.Is(t, fmt.Sprint(q.Take(t.Context())), "1 <nil>", "took")
		rig.Is(t, rig.Err(q.Take(t.Context())), cause, "then, since the other item was dropped")
	})
}

func TestQueueDiscardFreesItsWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var q Queue[int]
		done := false
		go func() {
			for i := range 20 {
				q.Put(t.Context(), i, maxQueued/4)
			}
			done = true
		}()
		synctest.Wait()
		rig.Is(t, done, false, "the queue has room for all")
		q.Discard(func(i int) bool { return i != 1 && i != 19 })
		synctest.Wait()
		rig.Is(t, done, true, "the writer is free")
		for _, want := range []int{1, 19} {
			rig.Is(t, fmt.Sprint(q.Take(t.Context())), fmt.Sprint(want, nil), "took")
		}
	})
}

// TestQueueStaysSmall: a consumer that is always a little behind must not make the
// queue grow.
func TestQueueStaysSmall(t *testing.T) {
	t.Parallel()
	var q Queue[int]
	for i := range 100_000 {
		q.Put(t.Context(), i, 1)
		if i < 4 {
			continue
		}
		rig.Is(t, rig.Value(q.Take(t.Context())), i-4, "took")
	}
	rig.Is(t, cap(q.items) <= 64, true, "there is room for %d items, where never more than 5 were held", cap(q.items))
}

func BenchmarkQueue(b *testing.B) {
	b.ReportAllocs()
	var q Queue[[10]int]
	for b.Loop() {
		q.Put(b.Context(), [10]int{}, 0)
		rig.Must(b, rig.Err(q.Take(b.Context())))
	}
}
