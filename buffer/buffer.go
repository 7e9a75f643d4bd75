// Package buffer lends the byte slices that messages are read into and
// written from, so that a stream of large messages does not allocate each of
// them anew. It is below everything: the engine of JSON-RPC, the transports
// and the relay share one pool, and pass slices from one to the other.
//
// Its functions may be called at once from any goroutine. What [Get] returned
// belongs to its caller until that gives it to [Recycle], if it ever does.
package buffer

import (
	"math/bits"
	"sync"
	"time"
)

// Slices are pooled by size class, a power of two from 1 KiB to 4 MiB. Larger ones
// are rare, and a few of them are kept for a second: long enough for another large
// file that follows at once, whose memory would else be allocated beside what the
// garbage collector has not collected yet; short enough that one large file does
// not stay in memory.
const (
	minBits = 10
	maxBits = 22

	// maxSpare is how many bytes are kept: what a message of 64 MiB takes while
	// it grows.
	maxSpare  = 80 << 20
	spareTime = time.Second
)

var (
	pools [maxBits - minBits + 1]sync.Pool
	spare spares
)

// spares holds the large buffers that nobody uses.
type spares struct {
	mu      sync.Mutex
	buffers [][]byte
	bytes   int
}

// take returns, empty, the smallest buffer with room for n bytes; nil if there is
// none, or only some with room for more than twice as much.
func (s *spares) take(n int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	best := -1
	for i, b := range s.buffers {
		if cap(b) >= n && cap(b)/2 <= n && (best < 0 || cap(b) < cap(s.buffers[best])) {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	b := s.buffers[best]
	s.removeLocked(best)
	return b
}

func (s *spares) removeLocked(i int) {
	last := len(s.buffers) - 1
	s.bytes -= cap(s.buffers[i])
	s.buffers[i], s.buffers[last] = s.buffers[last], nil
	s.buffers = s.buffers[:last]
}

// keep takes b over for a while, if there is room.
func (s *spares) keep(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+cap(b) > maxSpare {
		return
	}
	b = b[:0]
	s.buffers = append(s.buffers, b)
	s.bytes += cap(b)
	time.AfterFunc(spareTime, func() { s.forget(b) })
}

// forget leaves b to the garbage collector, unless it has been taken.
func (s *spares) forget(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.buffers {
		if &other[:1][0] == &b[:1][0] {
			s.removeLocked(i)
			return
		}
	}
}

// Get returns an empty slice with room for at least n bytes.
func Get(n int) []byte {
	class := classOf(n)
	if class > maxBits {
		if b := spare.take(n); b != nil {
			return b
		}
		return make([]byte, 0, n)
	}
	if b, ok := pools[class-minBits].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<class)
}

// classOf returns the power of two that has room for n bytes.
func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minBits) }

// Size returns how much memory, in bytes, a slice has that Get(n) makes. Get may
// also return a recycled slice that has more, since it grew.
func Size(n int) int {
	if class := classOf(n); class <= maxBits {
		return 1 << class
	}
	return n
}

// Recycle makes the memory of b available to [Get]. The caller must not
// use b, nor anything sliced from it, afterwards.
func Recycle(b []byte) {
	// A slice that grew by append is filed under the class it still fills.
	class := bits.Len(uint(cap(b))) - 1
	switch {
	case class < minBits:
		return
	case cap(b) > 1<<maxBits:
		spare.keep(b)
		return
	}
	pools[class-minBits].Put(&b)
}
