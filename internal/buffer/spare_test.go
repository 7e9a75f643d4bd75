package buffer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/test/rig"
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
			rig.Is(t, s.take(9<<20) == nil && s.take(21<<20) == nil, true, "no buffer of another size was taken")
			got := s.take(19 << 20)
			if cap(got) != cap(large) || len(got) != 0 || &got[:1][0] != &large[0] {
				t.Fatalf("got %d of %d bytes, want what was kept, empty", len(got), cap(got))
			}
			rig.Is(t, s.take(19<<20) == nil, true, "it is given to one only")
		}
		for _, size := range []int{30 << 20, 20 << 20, 40 << 20, 20 << 20} {
			s.keep(make([]byte, 0, size))
		}
		rig.Is(t, s.bytes <= maxSpare && len(s.buffers) == 3, true, "%d buffers of %d bytes are kept", len(s.buffers), s.bytes)
		rig.Is(t, cap(s.take(15<<20)), 20<<20, "the smallest that is large enough was taken, of bytes")
		time.Sleep(2 * spareTime)
		synctest.Wait()
		rig.Is(t, len(s.buffers), 0, "buffers that are kept for long")
		rig.Is(t, s.bytes, 0, "bytes that are kept for long")
	})
}
