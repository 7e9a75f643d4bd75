package buffer

// least is the room that a backlog always has, in bytes.
const least = 8 << 10

// Backlog keeps bytes of a stream, by their offsets, until the peer has acknowledged them. One
// goroutine fills it and another one reads it; its owner guards it.
//
//	dropped │ what the reader has been given │ what it has not │ space
//	     start                                                end
type Backlog struct {
	// PieceSize is how much room is made at a time, in bytes.
	PieceSize int
	// Take takes memory for one more piece, and Give gives it back. While Take refuses, there is
	// room only for least bytes. If both are nil, nobody counts.
	Take func() bool
	Give func()

	pieces  []piece
	start   uint64 // offset of the first byte of the first piece
	end     uint64 // offset behind the last byte
	filling bool   // somebody writes behind the end of the last piece

	acked    uint64 // bytes before it were dropped
	borrowed bool
	from     uint64 // what the reader has now begins here
}

type piece struct {
	bytes []byte
	taken bool
}

// End is the offset behind the last byte.
func (b *Backlog) End() uint64 { return b.end }

// Space returns room for the next bytes, and nil if there is none. [Backlog.Filled]
// has to follow.
func (b *Backlog) Space() []byte {
	if n := len(b.pieces); n > 0 {
		if last := b.pieces[n-1].bytes; len(last) < cap(last) {
			b.filling = true
			return last[len(last):cap(last)]
		}
	}
	var p piece
	switch {
	case b.Take == nil || b.Take():
		p = piece{Get(b.PieceSize)[:0:b.PieceSize], true}
	case len(b.pieces) == 0:
		p = piece{bytes: Get(least)[:0:least]}
	default:
		return nil
	}
	b.pieces = append(b.pieces, p)
	b.filling = true
	return p.bytes[:cap(p.bytes)]
}

// Filled notes that n bytes were put into the space.
func (b *Backlog) Filled(n int) {
	last := &b.pieces[len(b.pieces)-1]
	last.bytes = last.bytes[:len(last.bytes)+n]
	b.end += uint64(n)
	b.filling = false
	b.free()
}

// Borrow returns bytes from an offset on that was not dropped and is before the
// end: as many as lie together, and not more than most. They stay as they are until
// [Backlog.Return].
func (b *Backlog) Borrow(offset uint64, most int) []byte {
	b.borrowed, b.from = true, offset
	skip := int(offset - b.start)
	for _, p := range b.pieces {
		if skip < len(p.bytes) {
			found := p.bytes[skip:]
			return found[:min(len(found), most)]
		}
		skip -= len(p.bytes)
	}
	return nil
}

// Return gives back what was borrowed.
func (b *Backlog) Return() {
	b.borrowed = false
	b.free()
}

// Drop drops the bytes before an offset, which is not behind the end.
func (b *Backlog) Drop(before uint64) {
	b.acked = max(b.acked, before)
	b.free()
}

// free gives back the pieces that nobody needs. One that is being filled, or is borrowed, stays.
func (b *Backlog) free() {
	before := b.acked
	if b.borrowed {
		before = min(before, b.from)
	}
	for len(b.pieces) > 0 {
		first := b.pieces[0]
		n := uint64(len(first.bytes))
		if b.start+n > before || b.filling && len(b.pieces) == 1 {
			return
		}
		b.start += n
		b.release(first)
		b.pieces[0] = piece{}
		b.pieces = b.pieces[1:]
	}
	b.pieces = nil
}

func (b *Backlog) release(p piece) {
	Recycle(p.bytes[:0])
	if p.taken && b.Give != nil {
		b.Give()
	}
}

// Clear gives everything back. Nobody fills or reads any more.
func (b *Backlog) Clear() {
	for _, p := range b.pieces {
		b.release(p)
	}
	b.pieces = nil
}
