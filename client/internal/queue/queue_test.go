package queue

import (
	"context"
	"errors"
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
			if got, err := q.Take(t.Context()); got != want || err != nil {
				t.Fatalf("took %d and %v, want %d", got, err, want)
			}
			synctest.Wait()
		}
		if _, err := q.Take(t.Context()); err == nil || err.Error() != "end" {
			t.Errorf("after the last item: %v", err)
		}
	})
}

func TestQueueTakesOneItemOfAnySize(t *testing.T) {
	t.Parallel()
	var q Queue[int]
	q.Put(t.Context(), 1, 2*maxQueued)
	if got, err := q.Take(t.Context()); got != 1 || err != nil {
		t.Errorf("took %d and %v", got, err)
	}
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
		if taken != cause {
			t.Errorf("take ends with %v", taken)
		}
		q.Put(t.Context(), 1, maxQueued)
		q.Put(ctx, 2, maxQueued) // the test is that this returns
		q.Fail(cause)
		if got, err := q.Take(t.Context()); got != 1 || err != nil {
			t.Errorf("took %d and %v", got, err)
		}
		if got, err := q.Take(t.Context()); err != cause {
			t.Errorf("took %d and %v, the item should have been dropped", got, err)
		}
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
		if done {
			t.Fatal("the queue has no bound")
		}
		q.Discard(func(i int) bool { return i != 1 && i != 19 })
		synctest.Wait()
		if !done {
			t.Fatal("the writer still waits")
		}
		for _, want := range []int{1, 19} {
			if got, err := q.Take(t.Context()); got != want || err != nil {
				t.Errorf("took %d and %v, want %d", got, err, want)
			}
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
		if got, _ := q.Take(t.Context()); got != i-4 {
			t.Fatalf("took %d, want %d", got, i-4)
		}
	}
	if n := cap(q.items); n > 64 {
		t.Errorf("the queue has room for %d items, it never held more than 5", n)
	}
}

func BenchmarkQueue(b *testing.B) {
	b.ReportAllocs()
	var q Queue[[10]int]
	for b.Loop() {
		q.Put(b.Context(), [10]int{}, 0)
		rig.Must(b, rig.Err(q.Take(b.Context())))
	}
}
