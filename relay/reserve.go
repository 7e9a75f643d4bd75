package relay

import "sync/atomic"

// Bounds of the memory that streams hold, in bytes. Each stream has ownPart for
// itself, so that it can continue even if one harness with many streams took the
// whole reserve. Beyond that, the streams of a link share the reserve, so that
// such a harness cannot take all of the executor's memory.
const (
	// DefaultReserveBytes is the default of [LinkConfig.ReserveBytes].
	DefaultReserveBytes = 64 << 20
	ownPart             = 256 << 10
)

// reserve is memory that streams share.
type reserve struct {
	limit int64 // bytes
	used  atomic.Int64
}

// part is the memory of one half of a stream. The first ownPart bytes are its own,
// the rest counts in reserve; a nil reserve bounds nothing. The mutex of that half
// guards the part.
type part struct {
	reserve *reserve
	held    int // bytes
}

// fits reports whether there is room for n bytes more. Streams that ask at the
// same time may together exceed the reserve by the bytes they ask for.
func (p *part) fits(n int) bool {
	return p.reserve == nil || p.held+n <= ownPart || p.reserve.used.Load()+int64(n) <= p.reserve.limit
}

// add takes n bytes, or gives them back.
func (p *part) add(n int) {
	beyond := max(0, p.held-ownPart)
	p.held += n
	if p.reserve != nil {
		p.reserve.used.Add(int64(max(0, p.held-ownPart) - beyond))
	}
}
