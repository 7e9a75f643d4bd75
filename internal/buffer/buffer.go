// Package buffer lends byte slices for reading and writing messages, so that a
// stream of large messages does not allocate a new slice for each. The engine of
// JSON-RPC, the transports and the relay share one pool, because they pass slices
// to each other: [Get], [Recycle], [Size]. A [Backlog] of such slices keeps bytes
// of a stream until the peer has acknowledged them.
//
// All functions may be called at once. The caller of [Get] owns the slice.
// After the last owner has given it to [Recycle], another Get may return its
// memory. A slice that is never recycled is left to the garbage collector.
package buffer

import (
	"math/bits"
	"sync"
	"time"
)

// Slices are pooled by size class, a power of two from 1 KiB to 4 MiB. Larger
// slices are rare, and a few of them are kept for a second. That is long enough
// for the next large file of a client that sends several: if the first slice
// were dropped at once, the second would be allocated while the garbage
// collector has not freed the first yet. And it is short enough that one large
// file does not take up memory for long.
const (
	minBits = 10
	maxBits = 22

	// maxSpare bounds the bytes that the kept slices have together: as many as
	// the slice of a message of 64 MiB may have, since append makes room for a
	// quarter more.
	maxSpare  = 80 << 20
	spareTime = time.Second // that a slice is kept
)

var (
	pools [maxBits - minBits + 1]sync.Pool // by size class, of *[]byte
	spare spares
)

// spares holds the slices above the size classes that nobody uses.
type spares struct {
	mu      sync.Mutex
	buffers [][]byte
	bytes   int // the room of all of them
}

// take returns the smallest buffer with room for n bytes, with length 0. It
// returns nil if no buffer has that room, or only buffers with room for more
// than twice as much, which are left for larger messages.
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

// removeLocked takes the i-th buffer off the list.
func (s *spares) removeLocked(i int) {
	last := len(s.buffers) - 1
	s.bytes -= cap(s.buffers[i])
	s.buffers[i], s.buffers[last] = s.buffers[last], nil
	s.buffers = s.buffers[:last]
}

// keep holds b for spareTime, unless the kept buffers would exceed maxSpare.
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

// forget leaves b to the garbage collector, unless b has been taken.
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

// Get returns a slice of length 0 with room for at least n bytes. Its memory is
// not cleared.
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

// classOf returns the exponent of the smallest power of two that has room for n
// bytes, and minBits if that is larger.
func classOf(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minBits) }

// Size returns how many bytes of room a slice has that Get(n) allocates. A
// recycled slice that Get(n) returns may have more.
func Size(n int) int {
	if class := classOf(n); class <= maxBits {
		return 1 << class
	}
	return n
}

// Recycle makes the memory of b available to [Get]. The caller must not use b,
// nor anything sliced from it, afterwards. A slice that Get did not return may
// be given too; one with room for less than 1 KiB is not kept.
func Recycle(b []byte) {
	// The room of a slice that append has made may be no power of two. Such a
	// slice goes to the largest class that it has room for.
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
