package rpc

import (
	"math/bits"
	"sync"
)

// Message buffers are pooled by size class, a power of two from 1 KiB to
// 4 MiB. Larger ones are rare and left to the garbage collector, so that one
// big file does not stay in memory.
const (
	minBufferBits = 10
	maxBufferBits = 22
)

var bufferPools [maxBufferBits - minBufferBits + 1]sync.Pool

// Buffer returns an empty slice with room for at least n bytes.
func Buffer(n int) []byte {
	class := max(bits.Len(uint(max(n, 1)-1)), minBufferBits)
	if class > maxBufferBits {
		return make([]byte, 0, n)
	}
	if b, ok := bufferPools[class-minBufferBits].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, 1<<class)
}

// Recycle makes the memory of b available to [Buffer]. The caller must not
// use b, nor anything sliced from it, afterwards.
func Recycle(b []byte) {
	// A slice that grew by append is filed under the class it still fills.
	class := bits.Len(uint(cap(b))) - 1
	if class < minBufferBits || class > maxBufferBits {
		return
	}
	bufferPools[class-minBufferBits].Put(&b)
}
