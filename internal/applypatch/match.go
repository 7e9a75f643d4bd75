package applypatch

import (
	"bytes"
	"context"
	"hash/maphash"
	"math/bits"
	"unicode"
	"unicode/utf8"
)

// pass is how exactly lines are compared. A search goes through the whole rest of a file in one
// pass before it begins the next, so an equal line further down wins over a similar line nearby.
type pass uint8

const (
	exact   pass = iota // the same bytes
	right               // without blanks on the right
	trimmed             // without blanks on both sides
	folded              // and with dashes, quotes and blanks of every kind as the plain ones
	passes
)

// equal reports whether two lines are the same in a pass.
func (p pass) equal(a, b []byte) bool {
	if p == exact {
		return bytes.Equal(a, b)
	}
	a, b = p.trim(a), p.trim(b)
	if p < folded {
		return bytes.Equal(a, b)
	}
	for len(a) > 0 && len(b) > 0 {
		if a[0] < utf8.RuneSelf && b[0] < utf8.RuneSelf {
			if a[0] != b[0] {
				return false
			}
			a, b = a[1:], b[1:]
			continue
		}
		ra, na := utf8.DecodeRune(a)
		rb, nb := utf8.DecodeRune(b)
		if fold(ra) != fold(rb) {
			return false
		}
		a, b = a[na:], b[nb:]
	}
	return len(a) == len(b)
}

// trim drops the blanks of a line that the pass ignores.
func (p pass) trim(line []byte) []byte {
	switch p {
	case exact:
		return line
	case right:
		return bytes.TrimRightFunc(line, unicode.IsSpace)
	}
	return bytes.TrimSpace(line)
}

// fold returns the plain character that r stands for. No character of more than one byte stands for
// another of more than one.
func fold(r rune) rune {
	switch {
	case r < 0xA0:
		return r
	case r >= 0x2010 && r <= 0x2015, r == 0x2212:
		return '-'
	case r >= 0x2018 && r <= 0x201B:
		return '\''
	case r >= 0x201C && r <= 0x201F:
		return '"'
	case r == 0xA0, r >= 0x2002 && r <= 0x200A, r == 0x202F, r == 0x205F, r == 0x3000:
		return ' '
	}
	return r
}

// hash is the same for lines that are equal in the pass, and never 0.
func (p pass) hash(seed maphash.Seed, line []byte) uint64 {
	line = p.trim(line)
	if p < folded || isASCII(line) {
		return max(1, maphash.Bytes(seed, line)+uint64(p))
	}
	var h maphash.Hash
	h.SetSeed(seed)
	var buf [256]byte
	n := 0
	for len(line) > 0 {
		if n > len(buf)-utf8.UTFMax {
			h.Write(buf[:n])
			n = 0
		}
		r, size := utf8.DecodeRune(line)
		n += utf8.EncodeRune(buf[n:], fold(r))
		line = line[size:]
	}
	h.Write(buf[:n])
	return max(1, h.Sum64()+uint64(p))
}

func isASCII(line []byte) bool {
	for _, b := range line {
		if b >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// search finds lines in a text, from a start that only moves forward.
type search struct {
	*text
	hunk *hunk
	last *sieve // nil until a search has looked at all lines without success
}

// sieve knows the last place in the text of each line that a hunk expects, if the line occurs at
// all. So a search without a match need not look at all lines. Without the sieve, each chunk that
// does not match exactly would cost the length of the file.
type sieve struct {
	seed maphash.Seed
	// slots are a hash table of the lines in each pass, at most three quarters full; it need not
	// have all lines. A Go map would take three times as long.
	slots []slot
	known int
	// maybe has a bit for each hash in slots. Nearly no line of a file is expected, and these bits,
	// unlike the slots, are in the cache of the processor.
	maybe []uint64
}

// slot is the entry of a sieve for a line in one pass: its last place, -1 for none. A hash of 0 is
// a free slot.
type slot struct {
	hash uint64
	at   int
}

// maxSieve bounds the hashes that a sieve has room for, at most 50 bytes for each.
const maxSieve = 1 << 20

// checkEvery is how many lines a search looks at before it looks at its context.
const checkEvery = 1 << 14

// find looks for the lines want, one or more, in all passes. It returns the start of these lines
// and of the line after them.
func (s *search) find(ctx context.Context, want [][]byte, from int, atEnd bool) (start, next int, ok bool, err error) {
	if atEnd {
		start, next, ok = s.findAtEnd(want, from)
		return start, next, ok, nil
	}
	for p := range passes {
		if s.last != nil && !s.last.mayHave(p, want, from) {
			continue
		}
		start, next, ok, err = s.findIn(ctx, p, want, from)
		if ok || err != nil {
			return start, next, ok, err
		}
		if s.last == nil {
			if s.last, err = s.newSieve(ctx, from); err != nil {
				return 0, 0, false, err
			}
		}
	}
	return 0, 0, false, nil
}

// findIn looks for the lines in one pass, by the algorithm of Knuth, Morris and Pratt: each line
// of the text is looked at once, whatever want is.
func (s *search) findIn(ctx context.Context, p pass, want [][]byte, from int) (start, next int, ok bool, err error) {
	back := p.borders(want)
	starts := make([]int, len(want)) // where the last lines begin, in a ring
	matched := 0
	for n := 0; from < len(s.data); n++ {
		if n%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return 0, 0, false, err
			}
		}
		end, next := s.line(from)
		line := s.data[from:end]
		starts[n%len(want)] = from
		for matched > 0 && !p.equal(line, want[matched]) {
			matched = back[matched-1]
		}
		if p.equal(line, want[matched]) {
			if matched++; matched == len(want) {
				return starts[(n+1)%len(want)], next, true, nil
			}
		}
		from = next
	}
	return 0, 0, false, nil
}

// borders returns, for each prefix of want, the length of its longest suffix that is also a prefix
// of it.
func (p pass) borders(want [][]byte) []int {
	back := make([]int, len(want))
	for i, k := 1, 0; i < len(want); i++ {
		for k > 0 && !p.equal(want[i], want[k]) {
			k = back[k-1]
		}
		if p.equal(want[i], want[k]) {
			k++
		}
		back[i] = k
	}
	return back
}

// findAtEnd reports whether the last lines of the text are those of want.
func (s *search) findAtEnd(want [][]byte, from int) (start, next int, ok bool) {
	start = len(s.data)
	for range want {
		if start <= from {
			return 0, 0, false
		}
		start = s.before(start)
	}
	for p := range passes {
		if start >= from && s.matches(p, want, start) {
			return start, len(s.data), true
		}
	}
	return 0, 0, false
}

func (s *search) matches(p pass, want [][]byte, at int) bool {
	for _, w := range want {
		end, next := s.line(at)
		if !p.equal(s.data[at:end], w) {
			return false
		}
		at = next
	}
	return true
}

// newSieve looks at all lines from a place on.
func (s *search) newSieve(ctx context.Context, from int) (*sieve, error) {
	expected := 0
	for i := range s.hunk.chunks {
		expected += 1 + s.hunk.chunks[i].olds
	}
	expected = min(expected*int(passes), maxSieve)
	v := &sieve{
		seed:  maphash.MakeSeed(),
		slots: make([]slot, 1<<bits.Len(uint(expected+expected/2))),
		maybe: make([]uint64, 1<<bits.Len(uint(expected/4))), // 16 to 32 bits for each
	}
	for i := range s.hunk.chunks {
		c := &s.hunk.chunks[i]
		if c.context != "" {
			v.expect([]byte(c.context))
		}
		for mark, line := range c.body.all() {
			if mark != '+' {
				v.expect([]byte(line))
			}
		}
	}
	for n := 0; from < len(s.data); n++ {
		if n%checkEvery == 0 {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
		}
		end, next := s.line(from)
		line := s.data[from:end]
		// Lines that are equal in one pass are also equal in each later pass.
		for p := folded; ; p-- {
			h := p.hash(v.seed, line)
			if word, bit := v.bit(h); *word&bit == 0 {
				break
			}
			found := v.slot(h)
			if found.hash == 0 {
				break
			}
			if found.at = from; p == exact {
				break
			}
		}
		from = next
	}
	return v, nil
}

func (v *sieve) expect(line []byte) {
	if v.known+int(passes) > len(v.slots)*3/4 {
		return
	}
	for p := range passes {
		h := p.hash(v.seed, line)
		if s := v.slot(h); s.hash == 0 {
			*s = slot{hash: h, at: -1}
			v.known++
		}
		word, bit := v.bit(h)
		*word |= bit
	}
}

// slot returns the slot of a hash, or the free one that it may take.
func (v *sieve) slot(hash uint64) *slot {
	for i := hash; ; i++ {
		if s := &v.slots[i&uint64(len(v.slots)-1)]; s.hash == hash || s.hash == 0 {
			return s
		}
	}
}

// bit returns the place of a hash's bit.
func (v *sieve) bit(hash uint64) (word *uint64, bit uint64) {
	return &v.maybe[hash>>6%uint64(len(v.maybe))], 1 << (hash % 64)
}

// mayHave reports whether each line of want may occur somewhere after from.
func (v *sieve) mayHave(p pass, want [][]byte, from int) bool {
	for _, w := range want {
		if s := v.slot(p.hash(v.seed, w)); s.hash != 0 && s.at < from {
			return false
		}
	}
	return true
}
