package socket

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// First bytes of the frames that are sent, all unfragmented (RFC 6455, 5.2).
const (
	binaryFrame = 0x82
	pingFrame   = 0x89
	pongFrame   = 0x8a
)

// maxHeader is the length of the longest frame header.
const maxHeader = 14

// appendFrame appends a frame. The frame of a client is masked by a key that a peer
// cannot predict (RFC 6455, 5.3).
func appendFrame(b []byte, first byte, payload []byte, client bool) []byte {
	b = appendHeader(b, first, len(payload), client)
	if !client {
		return append(b, payload...)
	}
	key := rand.Uint32()
	return appendMasked(binary.LittleEndian.AppendUint32(b, key), payload, key)
}

// appendHeader appends the header of a frame with n bytes of payload, without the
// masking key.
func appendHeader(b []byte, first byte, n int, client bool) []byte {
	var masked byte
	if client {
		masked = 0x80
	}
	switch {
	case n < 126:
		return append(b, first, masked|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, first, masked|126), uint16(n))
	default:
		return binary.BigEndian.AppendUint64(append(b, first, masked|127), uint64(n))
	}
}

// appendMasked appends the masked form of payload, in one pass.
func appendMasked(b, payload []byte, key uint32) []byte {
	b = slices.Grow(b, len(payload))
	start := len(b)
	b = b[:start+len(payload)]
	wide := uint64(key)<<32 | uint64(key)
	to, from := b[start:], payload
	for len(from) >= 32 && len(to) >= 32 {
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(from)^wide)
		binary.LittleEndian.PutUint64(to[8:], binary.LittleEndian.Uint64(from[8:])^wide)
		binary.LittleEndian.PutUint64(to[16:], binary.LittleEndian.Uint64(from[16:])^wide)
		binary.LittleEndian.PutUint64(to[24:], binary.LittleEndian.Uint64(from[24:])^wide)
		to, from = to[32:], from[32:]
	}
	for i, c := range from {
		to[i] = c ^ byte(key>>(8*(i&3)))
	}
	return b
}
