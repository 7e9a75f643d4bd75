package procs

import "bytes"

// bound keeps the head and the tail of one output, and counts what lies between (rpc.md 8.9). The head
// is delivered at once. The tail is kept in a ring, until the output or the leader has ended. Its
// methods may be called on nil, which keeps nothing back.
type bound struct {
	head    int              // bytes that may still be delivered at once
	size    int              // most bytes of the tail
	tail    []byte           // full once it has size bytes; then it is a ring
	oldest  int              // where the ring begins
	omitted uint64           // bytes left out since the last delivery
	room    func(n int) bool // asks for n more bytes of memory, and gives back if n is negative
}

// minTail is the least memory that a tail asks for, in bytes.
const minTail = 4 << 10

// newBound returns a bound of n bytes, whose tail has at most most bytes. The head gets the odd byte.
func newBound(n uint64, most int64, room func(n int) bool) *bound {
	if n == 0 {
		return nil
	}
	return &bound{head: int(n - n/2), size: int(min(int64(n/2), most)), room: room}
}

// take returns the part of data that is delivered now, and keeps the rest.
func (b *bound) take(data []byte) []byte {
	if b == nil {
		return data
	}
	now := data[:min(b.head, len(data))]
	b.head -= len(now)
	b.keep(data[len(now):])
	return now
}

// keep adds data to the tail, whose oldest bytes make room.
func (b *bound) keep(data []byte) {
	b.grow(len(data))
	if over := len(data) - b.size; over >= 0 { // nothing of the tail so far is left
		b.omitted += uint64(len(b.tail) + over)
		b.tail, b.oldest, data = b.tail[:0], 0, data[over:]
	}
	n := min(b.size-len(b.tail), len(data))
	b.tail = append(b.tail, data[:n]...)
	data = data[n:]
	b.omitted += uint64(len(data))
	for len(data) > 0 {
		n := copy(b.tail[b.oldest:], data)
		b.oldest = (b.oldest + n) % len(b.tail)
		data = data[n:]
	}
}

// grow makes room for n more bytes of the tail. If there is no memory for them, the tail gets no larger
// than it is.
func (b *bound) grow(n int) {
	need := min(b.size, len(b.tail)+n)
	if need <= cap(b.tail) {
		return
	}
	to := min(b.size, max(need, 2*cap(b.tail), minTail))
	if !b.room(to - cap(b.tail)) {
		b.size = cap(b.tail)
		return
	}
	b.tail = append(make([]byte, 0, to), b.tail...)
}

// rest takes the tail out, in pieces for one event each, and says how many bytes were left out before
// it. What comes later has the room that the tail has not used.
func (b *bound) rest() (pieces [][]byte, omitted uint64) {
	if b == nil {
		return nil, 0
	}
	for _, part := range [][]byte{b.tail[b.oldest:], b.tail[:b.oldest]} {
		for len(part) > 0 {
			n := min(len(part), chunkSize)
			pieces = append(pieces, bytes.Clone(part[:n]))
			part = part[n:]
		}
	}
	omitted = b.omitted
	b.size -= len(b.tail)
	b.room(-cap(b.tail))
	b.tail, b.oldest, b.omitted = nil, 0, 0
	return pieces, omitted
}

// deliverRestLocked delivers what the bound of s has kept back. The caller holds s.mu.
func (p *Process) deliverRestLocked(s *stream) {
	pieces, omitted := s.bound.rest()
	if len(pieces) == 0 && omitted > 0 {
		pieces = [][]byte{nil} // only the count
	}
	for _, data := range pieces {
		p.emit(Event{Kind: Output, Stream: s.name, Data: data, Omitted: omitted})
		omitted = 0
	}
}
