package buffer

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// TestBacklog compares a backlog with a plain slice, over random histories: what is kept is what
// was put there, memory is counted exactly, and a reader's bytes stay while it has them.
func TestBacklog(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		taken, most := 0, rapid.IntRange(0, 3).Draw(t, "pieces")
		b := &Backlog{
			PieceSize: 16 << 10,
			Take: func() bool {
				if taken == most {
					return false
				}
				taken++
				return true
			},
			Give: func() { taken-- },
		}
		var all, borrowed, before []byte // before: a copy of what is borrowed
		dropped, next, n := uint64(0), byte(0), rapid.IntRange(1, 60).Draw(t, "steps")
		for range n {
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				space := b.Space()
				if space == nil {
					rig.Is(t, dropped == uint64(len(all)) && borrowed == nil, false, "no space in an empty backlog")
					continue
				}
				m := rapid.IntRange(0, len(space)).Draw(t, "bytes")
				for i := range m {
					next++
					space[i] = next
				}
				all = append(all, space[:m]...)
				b.Filled(m)
			case 1:
				if borrowed != nil || dropped == uint64(len(all)) {
					continue
				}
				offset := rapid.Uint64Range(dropped, uint64(len(all))-1).Draw(t, "offset")
				limit := rapid.IntRange(1, 20<<10).Draw(t, "limit")
				borrowed = b.Borrow(offset, limit)
				before = bytes.Clone(borrowed)
				if len(borrowed) == 0 || len(borrowed) > limit || !bytes.Equal(borrowed, all[offset:][:len(borrowed)]) {
					t.Fatalf("%d bytes from %d, or other ones", len(borrowed), offset)
				}
			case 2:
				rig.Is(t, borrowed == nil || bytes.Equal(borrowed, before), true, "borrowed bytes are as they were")
				b.Return()
				borrowed = nil
			default:
				dropped = rapid.Uint64Range(dropped, uint64(len(all))).Draw(t, "dropped")
				b.Drop(dropped)
			}
			rig.Is(t, b.End(), uint64(len(all)), "the end")
		}
		b.Return()
		b.Drop(b.End())
		rig.Is(t, len(b.pieces), 0, "pieces that are left")
		rig.Is(t, taken, 0, "pieces that are counted")
		b.Space()
		b.Clear()
		rig.Is(t, taken, 0, "pieces that are counted after Clear")
	})
}
