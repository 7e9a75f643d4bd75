// Package pack carries values from a process of ours to another one that it
// started. It packs values one after the other, reads them back strictly, and
// makes an in-memory file for them that nobody can change. It does not use
// JSON, because JSON cannot hold a path that is not UTF-8. Linux only.
//
// Integers are little-endian; a string is its length in 4 bytes and its bytes;
// a bool is one byte, 0 or 1. Nothing in the bytes names the values or their
// types: both sides are the same program and know the order.
package pack

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed is the error of [Decoder.End] for bytes that do not decode to
// what was read.
var ErrMalformed = errors.New("malformed packet")

// Bool returns the byte that b is packed as.
func Bool(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// AppendInt appends n to b, in 8 bytes.
func AppendInt(b []byte, n int) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

// AppendString appends s to b, with its length before it.
func AppendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// AppendStrings appends the number of strings in list to b, and each of them.
func AppendStrings(b []byte, list []string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = AppendString(b, s)
	}
	return b
}

// Decoder reads values in the order in which they were packed. A value that is
// missing or wrong reads as zero, without an error of its own: the caller calls
// [Decoder.End] at the end, and uses nothing of what it has read before that has
// returned nil. A Decoder is for one goroutine.
type Decoder struct {
	rest []byte
	bad  bool
}

// NewDecoder returns a decoder that begins at the start of b, and does not
// change it.
func NewDecoder(b []byte) Decoder { return Decoder{rest: b} }

// Require makes End fail unless ok holds: a caller tells with it that a value is
// out of its range.
func (d *Decoder) Require(ok bool) { d.bad = d.bad || !ok }

// OK reports whether nothing was missing or wrong so far.
func (d *Decoder) OK() bool { return !d.bad }

// More reports whether there is something left to read, and nothing was wrong
// so far.
func (d *Decoder) More() bool { return len(d.rest) > 0 && !d.bad }

// Rest returns what was not read yet. It is a part of the slice that NewDecoder
// got.
func (d *Decoder) Rest() []byte { return d.rest }

// End returns [ErrMalformed] if a value was missing or wrong, or if bytes are
// left.
func (d *Decoder) End() error {
	if d.bad || len(d.rest) > 0 {
		return ErrMalformed
	}
	return nil
}

// take returns the next n bytes, and nil if there are fewer.
func (d *Decoder) take(n uint32) []byte {
	if d.bad || uint64(n) > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

// Byte reads one byte.
func (d *Decoder) Byte() byte {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

// Bool reads what [Bool] packed; a byte that is neither 0 nor 1 is wrong.
func (d *Decoder) Bool() bool {
	b := d.Byte()
	d.bad = d.bad || b > 1
	return b == 1
}

// Uint32 reads 4 bytes.
func (d *Decoder) Uint32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Uint64 reads 8 bytes.
func (d *Decoder) Uint64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Int reads what [AppendInt] packed.
func (d *Decoder) Int() int { return int(d.Uint64()) }

// String reads what [AppendString] packed. A string of more than limit bytes is
// wrong.
func (d *Decoder) String(limit uint32) string {
	n := d.Uint32()
	d.bad = d.bad || n > limit
	return string(d.take(n))
}

// Strings reads what [AppendStrings] packed. A string of more than limit bytes
// is wrong. An empty list reads as nil.
func (d *Decoder) Strings(limit uint32) []string {
	var list []string
	for range d.list() {
		list = append(list, d.String(limit))
	}
	return list
}

// list reads the number of strings in a list. A number for which there are not
// enough bytes is wrong: each string takes at least the four of its length. So
// nobody makes room for a number that was made up.
func (d *Decoder) list() uint32 {
	n := d.Uint32()
	if uint64(n)*4 > uint64(len(d.rest)) {
		d.bad = true
		return 0
	}
	return n
}
