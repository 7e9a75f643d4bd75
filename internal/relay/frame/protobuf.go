package frame

import (
	"encoding/binary"
	"math/bits"
)

// The wire format of protobuf, as far as frames need it. The library has the package
// protowire for it. But protowire imports a package that opens the program's file at every
// start, and that would start the runtime's poller in the agent's helpers too. The
// helpers do not need the poller, and close its descriptors.

// number is the number of a field.
type number int32

// maxNumber is the largest number of a field. The library accepts larger numbers inside
// groups; the reference accepts them nowhere.
const maxNumber number = 1<<29 - 1

// wireType is the encoding of a field's value, from which its length follows.
type wireType uint8

const (
	varintType     wireType = 0
	fixed64Type    wireType = 1
	bytesType      wireType = 2
	startGroupType wireType = 3
	endGroupType   wireType = 4
	fixed32Type    wireType = 5
)

// maxGroups bounds how deep groups may be nested. The library has the same bound. Groups
// are always skipped.
const maxGroups = 10000

func appendTag(dst []byte, num number, typ wireType) []byte {
	return binary.AppendUvarint(dst, uint64(num)<<3|uint64(typ))
}

func sizeTag(num number) int { return sizeVarint(uint64(num) << 3) }

func sizeVarint(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

// consumeVarint decodes the varint at the start of b, and returns its length n. ok is false
// if the varint is not complete or has more than 64 bits.
func consumeVarint(b []byte) (v uint64, n int, ok bool) {
	v, n = binary.Uvarint(b)
	return v, n, n > 0
}

func consumeTag(b []byte) (num number, typ wireType, n int, ok bool) {
	v, n, ok := consumeVarint(b)
	if !ok || v>>3 == 0 || v>>3 > uint64(maxNumber) {
		return 0, 0, 0, false
	}
	return number(v >> 3), wireType(v & 7), n, true
}

// consumeLengthDelimited returns the content of the value at the start of b. n is the length
// of the value together with the varint of its length.
func consumeLengthDelimited(b []byte) (v []byte, n int, ok bool) {
	length, n, ok := consumeVarint(b)
	if !ok || length > uint64(len(b)-n) {
		return nil, 0, false
	}
	n += int(length)
	return b[n-int(length) : n], n, true
}

// sizeOfValue returns the length of the value at the start of b, for any type. groups is the
// number of further levels of groups that the value may have.
func sizeOfValue(num number, typ wireType, b []byte, groups int) (n int, ok bool) {
	switch typ {
	case varintType:
		_, n, ok = consumeVarint(b)
		return n, ok
	case fixed32Type:
		return 4, len(b) >= 4
	case fixed64Type:
		return 8, len(b) >= 8
	case bytesType:
		_, n, ok = consumeLengthDelimited(b)
		return n, ok
	case startGroupType:
		return sizeOfGroup(num, b, groups)
	default:
		return 0, false
	}
}

// sizeOfGroup returns the length of a group whose start tag is before b. The length includes
// the end tag.
func sizeOfGroup(num number, b []byte, groups int) (n int, ok bool) {
	if groups < 0 {
		return 0, false
	}
	for {
		inner, typ, size, ok := consumeTag(b[n:])
		if !ok {
			return 0, false
		}
		n += size
		if typ == endGroupType {
			return n, inner == num
		}
		if size, ok = sizeOfValue(inner, typ, b[n:], groups-1); !ok {
			return 0, false
		}
		n += size
	}
}
