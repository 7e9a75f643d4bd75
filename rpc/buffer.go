package rpc

import (
	"math/bits"
	"sync"
	"time"
)

// Message buffers are pooled by size class, a power of two from 1 KiB to
// 4 MiB. Larger ones are rare: a few are kept for a second, so that what
// follows at once, another large file, need not come beside what the garbage
// collector has not collected yet, and one big file does not stay in memory.
const (
	minBufferBits = 10
	maxBufferBits = 22

	// maxSpare is how many bytes are kept: what a message of 64 MiB takes while
	// it grows.
	maxSpare  = 80 << 20
	spareTime = time.Second
)

var (
	bufferPools [maxBufferBits - minBufferBits + 1]sync.Pool
	spare       spareBuffers
)

// spareBuffers are the large buffers that nobody uses.
type spareBuffers struct {
	mu      sync.Mutex
	buffers [][]byte
	bytes   int
}

// take returns the smallest buffer with room for n bytes, empty, but none for
// more than twice as much, and nil if there is none.
func (s *spareBuffers) take(n int) []byte {
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

func (s *spareBuffers) removeLocked(i int) {
	last := len(s.buffers) - 1
	s.bytes -= cap(s.buffers[i])
	s.buffers[i], s.buffers[last] = s.buffers[last], nil
	s.buffers = s.buffers[:last]
}

// keep takes b for a while, if there is room.
func (s *spareBuffers) keep(b []byte) {
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

// forget leaves b to the garbage collector, unless it is in use.
func (s *spareBuffers) forget(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, other := range s.buffers {
		if &other[:1][0] == &b[:1][0] {
			s.removeLocked(i)
			return
		}
	}
}

// Buffer returns an empty slice with room for at least n bytes.
func Buffer(n int) []byte {
	class := bufferClass(n)
	if class > maxBufferBits {
		if b := spare.take(n); b != nil {
			return b
		}
		return make([]byte, 0, n)
	}
	if b, ok := bufferPools[class-minBufferBits].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<class)
}

// bufferClass is the power of two that has room for n bytes.
func bufferClass(n int) int { return max(bits.Len(uint(max(n, 1)-1)), minBufferBits) }

// bufferSize is how much memory Buffer(n) takes, in bytes, but for one that had
// grown before it was recycled.
func bufferSize(n int) int {
	if class := bufferClass(n); class <= maxBufferBits {
		return 1 << class
	}
	return n
}

// Recycle makes the memory of b available to [Buffer]. The caller must not
// use b, nor anything sliced from it, afterwards.
func Recycle(b []byte) {
	// A slice that grew by append is filed under the class it still fills.
	class := bits.Len(uint(cap(b))) - 1
	switch {
	case class < minBufferBits:
		return
	case cap(b) > 1<<maxBufferBits:
		spare.keep(b)
		return
	}
	bufferPools[class-minBufferBits].Put(&b)
}
