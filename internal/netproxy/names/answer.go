package names

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
)

// Numbers of the DNS (RFC 1035, RFC 3596).
const (
	sizeHeader   = 12 // bytes
	maxWireName  = 255
	maxWireLabel = 63

	typeA, typePTR, typeAAAA = 1, 12, 28
	classIN                  = 1

	rcodeNone, rcodeFormat, rcodeServer, rcodeName, rcodeOpcode = 0, 1, 2, 3, 4

	flagResponse, flagDesired, flagAvailable = 1 << 15, 1 << 8, 1 << 7
	opcodeMask                               = 0xf << 11
	ttl                                      = 60 // seconds
)

// Answer returns the answer to a question, or nil if there is none to give, because the
// message has no id or is an answer itself.
func (n *Names) Answer(ctx context.Context, message []byte) []byte {
	q, rcode, ok := parse(message)
	if !ok {
		return nil
	}
	var records [][]byte
	if rcode == rcodeNone && q.class == classIN {
		records, rcode = n.records(ctx, q)
	}
	b := binary.BigEndian.AppendUint16(nil, q.id)
	b = binary.BigEndian.AppendUint16(b, flagResponse|q.flags&(opcodeMask|flagDesired)|flagAvailable|rcode)
	questions := uint16(0)
	if len(q.section) > 0 {
		questions = 1
	}
	b = binary.BigEndian.AppendUint16(b, questions)
	b = binary.BigEndian.AppendUint16(b, uint16(len(records)))
	b = append(b, 0, 0, 0, 0) // no authorities, nothing additional
	b = append(b, q.section...)
	for _, data := range records {
		b = binary.BigEndian.AppendUint16(b, 0xc000|sizeHeader) // the name of the question
		b = binary.BigEndian.AppendUint16(b, q.kind)
		b = binary.BigEndian.AppendUint16(b, classIN)
		b = binary.BigEndian.AppendUint32(b, ttl)
		b = binary.BigEndian.AppendUint16(b, uint16(len(data)))
		b = append(b, data...)
	}
	return b
}

// records returns the data of the answers, of which there is at most one.
func (n *Names) records(ctx context.Context, q question) (data [][]byte, rcode uint16) {
	switch {
	case q.kind == typePTR:
		if name := n.Name(reversed(q.name)); name != "" {
			return [][]byte{wireName(name)}, rcodeNone
		}
		return nil, rcodeNone
	case isBelow(q.name, "localhost"):
		return only(q.kind, addresses{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}), rcodeNone
	case never(q.name) || !n.search.has(ctx, q.name):
		return nil, rcodeName
	case q.kind != typeA && q.kind != typeAAAA:
		return nil, rcodeNone
	}
	a, ok := n.invent(q.name)
	if !ok {
		return nil, rcodeServer
	}
	return only(q.kind, a), rcodeNone
}

// only returns the address of that type.
func only(kind uint16, a addresses) [][]byte {
	switch kind {
	case typeA:
		return [][]byte{a.v4.AsSlice()}
	case typeAAAA:
		return [][]byte{a.v6.AsSlice()}
	}
	return nil
}

// A question is what a message asks for.
type question struct {
	id, flags   uint16
	section     []byte // the question as it came; empty if it is malformed
	name        string // in lower case, without a trailing dot
	kind, class uint16
}

// parse reads a message. ok is false if it can have no answer. If rcode is not rcodeNone, it
// is the answer.
func parse(message []byte) (q question, rcode uint16, ok bool) {
	if len(message) < 2 {
		return q, 0, false
	}
	q.id = binary.BigEndian.Uint16(message)
	if len(message) < sizeHeader {
		return q, rcodeFormat, true
	}
	q.flags = binary.BigEndian.Uint16(message[2:])
	switch {
	case q.flags&flagResponse != 0:
		return q, 0, false
	case q.flags&opcodeMask != 0:
		return q, rcodeOpcode, true
	case binary.BigEndian.Uint16(message[4:]) != 1:
		return q, rcodeFormat, true
	}
	rest := message[sizeHeader:]
	name, size := readName(rest)
	if size == 0 || len(rest) < size+4 {
		return q, rcodeFormat, true
	}
	q.name = name
	q.kind, q.class = binary.BigEndian.Uint16(rest[size:]), binary.BigEndian.Uint16(rest[size+2:])
	q.section = rest[:size+4]
	return q, rcodeNone, true
}

// readName reads an uncompressed name, and returns its number of bytes; 0 if there is none.
// A label with a dot in it cannot be a host, and makes the name one that is no host either.
func readName(b []byte) (name string, size int) {
	var text []byte
	for size < len(b) && size < maxWireName {
		length := int(b[size])
		size++
		switch {
		case length == 0:
			return string(text), size
		case length > maxWireLabel || size+length > len(b):
			return "", 0
		}
		if len(text) > 0 {
			text = append(text, '.')
		}
		for _, c := range b[size : size+length] {
			switch {
			case c == '.':
				c = ' '
			case 'A' <= c && c <= 'Z':
				c += 'a' - 'A'
			}
			text = append(text, c)
		}
		size += length
	}
	return "", 0
}

// wireName returns a name in the form of messages.
func wireName(name string) (b []byte) {
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

// reversed returns the address that a name for PTR asks about. It is invalid if the name
// asks about none.
func reversed(name string) netip.Addr {
	if text, found := strings.CutSuffix(name, ".in-addr.arpa"); found {
		labels := strings.Split(text, ".")
		slices.Reverse(labels)
		addr, err := netip.ParseAddr(strings.Join(labels, "."))
		if err == nil && addr.Is4() {
			return addr
		}
		return netip.Addr{}
	}
	text, found := strings.CutSuffix(name, ".ip6.arpa")
	if !found {
		return netip.Addr{}
	}
	digits := strings.Split(text, ".")
	slices.Reverse(digits)
	b, err := hex.DecodeString(strings.Join(digits, ""))
	if err != nil || len(digits) != 32 {
		return netip.Addr{}
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

// A Search says what to do with names below the domains of a search list (resolv.conf(5)). A
// program tries each short name below each of these domains, and an invented address would
// end the attempts at the first. So such a name has an address only if Exists says that there
// is such a name.
type Search struct {
	Domains []string // in lower case, without dots at their ends
	Exists  func(ctx context.Context, name string) bool
}

// has reports whether a name may have an address.
func (s Search) has(ctx context.Context, name string) bool {
	for _, domain := range s.Domains {
		if name != domain && isBelow(name, domain) {
			return s.Exists(ctx, name)
		}
	}
	return true
}
