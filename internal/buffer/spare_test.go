package buffer

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestSpare: a large buffer is used again for a message that needs nearly as
// much room, the kept buffers are bounded, and none is kept for long.
func TestSpare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s spares
		large := make([]byte, 10, 20<<20)
		for range 3 {
			s.keep(large)
			if s.take(9<<20) != nil || s.take(21<<20) != nil {
				t.Error("a buffer of another size was taken")
			}
			got := s.take(19 << 20)
			if cap(got) != cap(large) || len(got) != 0 || &got[:1][0] != &large[0] {
				t.Fatalf("got %d of %d bytes, want what was kept, empty", len(got), cap(got))
			}
			if s.take(19<<20) != nil {
				t.Fatal("it was given to two")
			}
		}
		for _, size := range []int{30 << 20, 20 << 20, 40 << 20, 20 << 20} {
			s.keep(make([]byte, 0, size))
		}
		if s.bytes > maxSpare || len(s.buffers) != 3 {
			t.Errorf("%d buffers of %d bytes are kept", len(s.buffers), s.bytes)
		}
		if got := cap(s.take(15 << 20)); got != 20<<20 {
			t.Errorf("a buffer of %d bytes was taken, want the smallest that is large enough", got)
		}
		time.Sleep(2 * spareTime)
		synctest.Wait()
		if s.bytes != 0 || len(s.buffers) != 0 {
			t.Errorf("%d buffers of %d bytes are kept for long", len(s.buffers), s.bytes)
		}
	})
}
