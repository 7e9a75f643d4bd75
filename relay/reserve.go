package relay

import "sync/atomic"

// What the streams of one link may hold together, in bytes of memory, beyond what
// each may hold of its own: so that one harness with many streams takes neither
// all of the executor's memory nor what the streams of others go on with.
const (
	// DefaultReserveBytes bounds the records that wait for earlier ones, for room or
	// for memory, and as much the unacknowledged output.
	DefaultReserveBytes = 64 << 20
	ownPart             = 256 << 10
)

// reserve is memory that streams share.
type reserve struct {
	limit int64 // bytes
	used  atomic.Int64
}

// part is what one stream holds. The first ownPart bytes are its own, the rest
// counts in reserve; a nil reserve bounds nothing. The mutex of the half of the stream
// that has the part guards it.
type part struct {
	reserve *reserve
	held    int // bytes
}

// fits tells whether there is room for n bytes more. Streams that ask at once may
// exceed the reserve by as much as they ask for.
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
