package socket

import (
	"sync/atomic"

	"github.com/execagent/execagent/internal/buffer"
)

// Message is one binary message in a pooled buffer. Several holders can share it, such as a
// lane that has to write it and a stream that may have to repeat it. Bytes
// must not be changed once a second holder exists. All methods may be called concurrently.
type Message struct {
	Bytes []byte

	holders atomic.Int32
}

// NewMessage returns an empty message with room for n bytes and one holder.
func NewMessage(n int) *Message {
	m := &Message{Bytes: buffer.Get(n)}
	m.holders.Store(1)
	return m
}

// Retain adds a holder.
func (m *Message) Retain() { m.holders.Add(1) }

// Release gives up one hold. The last Release returns the buffer to the pool.
// Afterwards the caller must not use m or a slice of Bytes.
func (m *Message) Release() {
	switch n := m.holders.Add(-1); {
	case n == 0:
		buffer.Recycle(m.Bytes)
		m.Bytes = nil
	case n < 0:
		panic("socket: message released more often than retained")
	}
}

// Cost returns the memory that the message takes, in bytes. It is more than the length
// of Bytes. Bounds count the cost, because a bound on lengths would let many small messages
// take far more memory than intended.
func (m *Message) Cost() int { return cap(m.Bytes) + 64 }
