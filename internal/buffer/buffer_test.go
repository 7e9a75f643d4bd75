package buffer_test

import (
	"testing"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/test/rig"
)

// TestGet: a slice has the room that was asked for, and no more than twice as
// much.
func TestGet(t *testing.T) {
	t.Parallel()
	tests := []struct{ n, want int }{
		{-1, 1 << 10}, {0, 1 << 10}, {1, 1 << 10}, {1 << 10, 1 << 10}, {1<<10 + 1, 1 << 11}, {5000, 1 << 13},
		{1 << 16, 1 << 16}, {1<<22 - 1, 1 << 22}, {1 << 22, 1 << 22}, {1<<22 + 1, 1<<22 + 1}, {64 << 20, 64 << 20},
	}
	for _, tt := range tests {
		// Other tests recycle slices at the same time, which may have more room.
		b := buffer.Get(tt.n)
		rig.Is(t, len(b) == 0 && cap(b) >= tt.want && cap(b) <= 2*tt.want, true, "Get(%d): %d of %d bytes", tt.n, len(b), cap(b))
	}
}

// TestRecycle: Get returns enough room, whatever slices were recycled.
func TestRecycle(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 1023, 1024, 1025, 1500, 2047, 2048, 3 << 20, 4 << 20, 5 << 20} {
		for range 8 {
			buffer.Recycle(make([]byte, size/2, max(size, 1)))
		}
		for _, n := range []int{1, 1024, 1025, 2048, 4096, 4 << 20, 5 << 20} {
			b := buffer.Get(n)
			rig.Is(t, len(b) == 0 && cap(b) >= n, true, "Get(%d) after Recycle of %d: %d of %d bytes", n, size, len(b), cap(b))
		}
	}
	buffer.Recycle(nil)
}
