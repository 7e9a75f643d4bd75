// Package pack is how one process of ours tells another, which it starts, what to do: values packed
// one behind the other, and read back once and strictly, and a file in memory that carries them and
// that nobody can change. It is not JSON, which cannot hold every path there is. Linux only.
//
// Integers are little-endian; a string is its length in 4 bytes and its bytes;
// a bool is one byte, 0 or 1. Nothing says what comes next: both sides are the
// same program.
package pack

import (
	"encoding/binary"
	"errors"
)

// ErrMalformed is the error for bytes that are not what they should be.
var ErrMalformed = errors.New("malformed packet")

// Bool is b as it is packed.
func Bool(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// AppendInt packs n, in 8 bytes.
func AppendInt(b []byte, n int) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

// AppendString packs s.
func AppendString(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint32(b, uint32(len(s))), s...)
}

// AppendStrings packs their number and each of them.
func AppendStrings(b []byte, list []string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(list)))
	for _, s := range list {
		b = AppendString(b, s)
	}
	return b
}

// Decoder takes apart what was packed, in the same order. What is missing or
// wrong reads as zero, and [Decoder.End] says so: it has to be asked before
// anything that was read counts.
type Decoder struct {
	rest []byte
	bad  bool
}

// NewDecoder begins at the start of b, which it does not change.
func NewDecoder(b []byte) Decoder { return Decoder{rest: b} }

// Require makes all of it malformed unless ok holds.
func (d *Decoder) Require(ok bool) { d.bad = d.bad || !ok }

// OK tells whether nothing was missing or wrong so far.
func (d *Decoder) OK() bool { return !d.bad }

// More tells whether there is something left to read, and nothing was wrong so far.
func (d *Decoder) More() bool { return len(d.rest) > 0 && !d.bad }

// Rest is what was not read yet.
func (d *Decoder) Rest() []byte { return d.rest }

// End returns [ErrMalformed] unless all was there and nothing is left.
func (d *Decoder) End() error {
	if d.bad || len(d.rest) > 0 {
		return ErrMalformed
	}
	return nil
}

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

// Bool reads a bool.
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

// String reads a string of at most limit bytes.
func (d *Decoder) String(limit uint32) string {
	n := d.Uint32()
	d.bad = d.bad || n > limit
	return string(d.take(n))
}

// Strings reads what [AppendStrings] packed, each of at most limit bytes.
func (d *Decoder) Strings(limit uint32) []string {
	var list []string
	for range d.list() {
		list = append(list, d.String(limit))
	}
	return list
}

// list reads the length of a list, each element of which takes at least the four
// bytes of a string.
func (d *Decoder) list() uint32 {
	n := d.Uint32()
	if uint64(n)*4 > uint64(len(d.rest)) {
		d.bad = true
		return 0
	}
	return n
}
