package sandbox

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/strictjson"
)

// Key returns a hash of the whole policy: policies with the same key are equal.
func (p *Policy) Key() [32]byte { return sha256.Sum256(p.encode()) }

// MarshalText encodes the policy as an opaque string, in JSON too. An object
// would be readable, but a path is bytes: JSON replaces bytes that are not
// UTF-8, and a rule for another path does not enforce the policy.
func (p Policy) MarshalText() ([]byte, error) {
	return base64.StdEncoding.AppendEncode(nil, p.encode()), nil
}

// UnmarshalText reads the text of MarshalText. Any other text is an error, and
// leaves p unchanged.
func (p *Policy) UnmarshalText(text []byte) error {
	data, err := strictjson.StdBase64.AppendDecode(nil, text)
	if err != nil {
		return fmt.Errorf("decoding a policy: %w", err)
	}
	d := decoder{rest: data}
	policy := d.policy()
	if d.bad || len(d.rest) > 0 {
		return errors.New("decoding a policy: malformed")
	}
	*p = policy
	return nil
}

// encoding begins an encoded policy. Its number changes with the format.
const encoding = "execagent policy 7\n"

func (p *Policy) encode() []byte {
	b := []byte(encoding)
	b = appendBool(b, p.Confined)
	b = appendBool(b, p.FullRead)
	b = append(b, byte(p.Network))
	b = appendBool(b, p.AllUnixSockets)
	b = appendBool(b, p.Transparent)
	b = appendBool(b, p.SharesPIDs)
	b = binary.AppendUvarint(b, uint64(len(p.Rules)))
	for _, r := range p.Rules {
		b = appendString(b, r.Path)
		b = append(b, byte(r.Access), byte(r.Origin))
		b = appendBool(b, r.SkipMissing)
		b = append(b, byte(r.Otherwise))
		b = appendBool(b, r.Temporary)
		b = appendBool(b, r.Replaceable)
	}
	b = binary.AppendUvarint(b, uint64(len(p.Globs)))
	for _, g := range p.Globs {
		b = appendString(b, g.Base)
		b = appendString(b, g.Pattern)
		b = binary.AppendUvarint(b, uint64(g.MaxDepth))
	}
	b = binary.AppendUvarint(b, uint64(len(p.Links)))
	for _, l := range p.Links {
		b = appendString(b, l.Path)
		b = appendString(b, l.Target)
	}
	for _, paths := range [][]string{p.Private, p.Sockets, p.Devices} {
		b = binary.AppendUvarint(b, uint64(len(paths)))
		for _, path := range paths {
			b = appendString(b, path)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

// decoder parses an encoded policy. After an error in the encoding, bad is set
// and all methods return zeros.
type decoder struct {
	rest []byte
	bad  bool
}

func (d *decoder) policy() Policy {
	if string(d.bytes(uint64(len(encoding)))) != encoding {
		d.bad = true
		return Policy{}
	}
	p := Policy{Confined: d.bool(), FullRead: d.bool(), Network: Network(d.below(byte(NetworkManaged) + 1)), AllUnixSockets: d.bool(), Transparent: d.bool(), SharesPIDs: d.bool()}
	if (p.AllUnixSockets || p.Transparent) && p.Network != NetworkManaged { // no profile has such a policy
		d.bad = true
	}
	for range d.count(7) {
		r := Rule{Path: d.string(), Access: Access(d.below(byte(Write) + 1)), Origin: Origin(d.below(byte(Private) + 1))}
		r.SkipMissing, r.Otherwise = d.bool(), Access(d.below(byte(Write)+1))
		r.Temporary, r.Replaceable = d.bool(), d.bool()
		// Policy.find is a binary search, so the rules must be sorted.
		if n := len(p.Rules); n > 0 && p.Rules[n-1].Path >= r.Path {
			d.bad = true
		}
		p.Rules = append(p.Rules, r)
	}
	for range d.count(3) {
		g := Glob{Base: d.string(), Pattern: d.string(), MaxDepth: int(d.uint() & 0x7fffffff)}
		p.Globs = append(p.Globs, g)
	}
	for range d.count(2) {
		l := Link{Path: d.string(), Target: d.string()}
		if n := len(p.Links); n > 0 && p.Links[n-1].Path >= l.Path {
			d.bad = true
		}
		p.Links = append(p.Links, l)
	}
	for range d.count(1) {
		p.Private = append(p.Private, d.string())
	}
	p.Sockets, p.Devices = d.sorted(), d.sorted()
	return p
}

// sorted takes paths of which each is greater than the one before, because they are searched.
func (d *decoder) sorted() (paths []string) {
	for range d.count(1) {
		name := d.string()
		if n := len(paths); n > 0 && paths[n-1] >= name {
			d.bad = true
		}
		paths = append(paths, name)
	}
	return paths
}

// bytes takes the next n.
func (d *decoder) bytes(n uint64) []byte {
	if d.bad || n > uint64(len(d.rest)) {
		d.bad = true
		return nil
	}
	b := d.rest[:n]
	d.rest = d.rest[n:]
	return b
}

func (d *decoder) string() string { return string(d.bytes(d.uint())) }

// below takes a byte that must be less than limit.
func (d *decoder) below(limit byte) byte {
	b := d.bytes(1)
	if len(b) == 0 || b[0] >= limit {
		d.bad = true
		return 0
	}
	return b[0]
}

func (d *decoder) bool() bool { return d.below(2) == 1 }

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.rest)
	if d.bad || n <= 0 {
		d.bad = true
		return 0
	}
	d.rest = d.rest[n:]
	return v
}

// count takes the number of things that follow, of at least size bytes each. A
// number for which the rest is too short is an error, so a caller may safely
// allocate for each.
func (d *decoder) count(size int) uint64 {
	n := d.uint()
	if n > uint64(len(d.rest)/size) {
		d.bad = true
		return 0
	}
	return n
}
