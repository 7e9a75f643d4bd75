package strictjson

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/bits"
	"sync"
	"unicode/utf8"
)

// Limits of one message (rpc.md 2.4).
const (
	// MaxDepth is the number of containers that may be nested, including the message itself.
	MaxDepth = 127
	// MaxValues is the number of JSON values in one message: containers and scalars. Member names do
	// not count.
	MaxValues = 262_144
)

// syntaxError says why a text is not a JSON value within the limits, with the position.
type syntaxError struct {
	reason       string
	line, column int
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("%s at line %d column %d", e.reason, e.line, e.column)
}

// scanner checks a text against RFC 8259 and this protocol's stricter rules: valid UTF-8, no lone
// surrogate, no duplicate member name at any depth, and the limits above. It finds the ends of
// values, but does not decode them.
type scanner struct {
	data   []byte
	pos    int
	depth  int
	values int
	// names holds the member names of all open objects. Each call of object knows where the names of
	// its object begin.
	names [][]byte
	// repeats says that an object may have a name more than once.
	repeats bool
}

// scanners is a pool of scanners, each with its memory for names.
var scanners = sync.Pool{New: func() any { return new(scanner) }}

// keptMembers is the highest capacity for names or members with which a scanner or Object goes back
// to its pool. Every usual message has fewer.
const keptMembers = 256

// recycle returns a scanner to the pool.
func (s *scanner) recycle() {
	if cap(s.names) <= keptMembers {
		scanners.Put(s)
	}
}

// manyNames is the number of members from which an object's names are looked up in a map. Below it,
// comparing with each name costs less than hashing.
const manyNames = 24

func (s *scanner) fail(format string, args ...any) error {
	before := s.data[:min(s.pos, len(s.data))]
	line := 1 + bytes.Count(before, []byte{'\n'})
	column := len(before) - (bytes.LastIndexByte(before, '\n') + 1) + 1
	return &syntaxError{fmt.Sprintf(format, args...), line, column}
}

func (s *scanner) space() {
	for s.pos < len(s.data) {
		switch s.data[s.pos] {
		case ' ', '\t', '\r', '\n':
			s.pos++
		default:
			return
		}
	}
}

// end checks that only white space is left.
func (s *scanner) end() error {
	if s.space(); s.pos < len(s.data) {
		return s.fail("trailing characters")
	}
	return nil
}

// value checks and skips one value.
func (s *scanner) value() error {
	s.space()
	if s.pos >= len(s.data) {
		return s.fail("end of input where a value was expected")
	}
	if s.values++; s.values > MaxValues {
		return s.fail("message exceeds the limit of %d JSON values", MaxValues)
	}
	switch c := s.data[s.pos]; c {
	case '{':
		return s.object(nil)
	case '[':
		return s.array()
	case '"':
		_, err := s.str()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if c == '-' || '0' <= c && c <= '9' {
			return s.number()
		}
		return s.fail("expected a value")
	}
}

func (s *scanner) open() error {
	if s.depth++; s.depth > MaxDepth {
		return s.fail("nesting exceeds the limit of %d levels", MaxDepth)
	}
	s.pos++
	s.space()
	return nil
}

func (s *scanner) array() error {
	if err := s.open(); err != nil {
		return err
	}
	if s.pos < len(s.data) && s.data[s.pos] == ']' {
		s.pos++
		s.depth--
		return nil
	}
	for {
		if err := s.value(); err != nil {
			return err
		}
		s.space()
		switch {
		case s.pos >= len(s.data):
			return s.fail("end of input inside an array")
		case s.data[s.pos] == ',':
			s.pos++
		case s.data[s.pos] == ']':
			s.pos++
			s.depth--
			return nil
		default:
			return s.fail("expected `,` or `]`")
		}
	}
}

// object checks and skips an object. The next byte must be its brace. It passes each member to
// visit, which may be nil.
func (s *scanner) object(visit func(name, value []byte)) error {
	if err := s.open(); err != nil {
		return err
	}
	first := len(s.names)
	defer func() { s.names = s.names[:first] }()
	if s.pos < len(s.data) && s.data[s.pos] == '}' {
		s.pos++
		s.depth--
		return nil
	}
	var seen map[string]struct{}
	for {
		s.space()
		if s.pos >= len(s.data) || s.data[s.pos] != '"' {
			return s.fail("expected a member name in quotes")
		}
		name, err := s.str()
		if err != nil {
			return err
		}
		if !s.repeats {
			if seen, err = s.remember(name, first, seen); err != nil {
				return err
			}
		}
		if s.space(); s.pos >= len(s.data) || s.data[s.pos] != ':' {
			return s.fail("expected `:`")
		}
		s.pos++
		s.space()
		start := s.pos
		if err := s.value(); err != nil {
			return err
		}
		if visit != nil {
			visit(name, s.data[start:s.pos])
		}
		s.space()
		switch {
		case s.pos >= len(s.data):
			return s.fail("end of input inside an object")
		case s.data[s.pos] == ',':
			s.pos++
		case s.data[s.pos] == '}':
			s.pos++
			s.depth--
			return nil
		default:
			return s.fail("expected `,` or `}`")
		}
	}
}

// remember stores a name of an object, and refuses a name that the object already has. first is the
// index in s.names where the object's names begin. Once there are many names, seen has them too.
func (s *scanner) remember(name []byte, first int, seen map[string]struct{}) (map[string]struct{}, error) {
	if seen == nil {
		for _, other := range s.names[first:] {
			if bytes.Equal(other, name) {
				return nil, s.fail("duplicate member name %.128q", name)
			}
		}
		s.names = append(s.names, name)
		if len(s.names)-first < manyNames {
			return nil, nil
		}
		seen = make(map[string]struct{}, 2*manyNames)
		for _, other := range s.names[first:] {
			seen[string(other)] = struct{}{}
		}
		return seen, nil
	}
	if _, ok := seen[string(name)]; ok {
		return nil, s.fail("duplicate member name %.128q", name)
	}
	seen[string(name)] = struct{}{}
	return seen, nil
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.fail("expected a value")
	}
	s.pos += len(word)
	return nil
}

func (s *scanner) digits() bool {
	start := s.pos
	for s.pos < len(s.data) && '0' <= s.data[s.pos] && s.data[s.pos] <= '9' {
		s.pos++
	}
	return s.pos > start
}

func (s *scanner) next(c byte) bool {
	if s.pos < len(s.data) && s.data[s.pos] == c {
		s.pos++
		return true
	}
	return false
}

func (s *scanner) number() error {
	s.next('-')
	if !s.next('0') && !s.digits() {
		return s.fail("invalid number")
	}
	if s.next('.') && !s.digits() {
		return s.fail("invalid number")
	}
	if s.next('e') || s.next('E') {
		if !s.next('+') {
			s.next('-')
		}
		if !s.digits() {
			return s.fail("invalid number")
		}
	}
	// A number may be followed by a comma, a bracket or white space. The caller
	// checks that, and reports a digit or a letter here.
	return nil
}

// Constants for looking at eight bytes in a word together.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special sets the highest bit of each byte of a word that needs a closer look inside a string: a
// quote, a backslash, a control character or a byte of a multi-byte character. Only the lowest mark
// is exact, because a subtraction that underflows borrows from the bytes above.
func special(w uint64) uint64 {
	quote := w ^ ones*'"'
	slash := w ^ ones*'\\'
	return (w | (w - ones*0x20) | (quote - ones) | (slash - ones)) & highs
}

// plainEnd returns the index of the first special byte at or after pos.
func plainEnd(data []byte, pos int) int {
	for pos+8 <= len(data) {
		if hit := special(binary.LittleEndian.Uint64(data[pos:])); hit != 0 {
			return pos + bits.TrailingZeros64(hit)/8
		}
		pos += 8
	}
	for pos < len(data) {
		if c := data[pos]; c == '"' || c == '\\' || c < 0x20 || c >= utf8.RuneSelf {
			break
		}
		pos++
	}
	return pos
}

// plainStart skips bytes that are not special, as far as it can do so fast, because strings carry
// whole files. It returns the index of the first byte that it has not checked. First the library
// looks for a quote or a backslash, many bytes at a time. Up to there plainStart looks for the
// other special bytes, four words at a time. It is called only once for each string, because each
// call may look at the whole string.
func plainStart(data []byte, pos int) int {
	end := bytes.IndexByte(data[pos:], '"')
	if end < 64 {
		return pos
	}
	plain := data[pos : pos+end]
	if slash := bytes.IndexByte(plain, '\\'); slash >= 0 {
		plain = plain[:slash]
	}
	for len(plain) >= 32 {
		a, b := binary.LittleEndian.Uint64(plain), binary.LittleEndian.Uint64(plain[8:])
		c, d := binary.LittleEndian.Uint64(plain[16:]), binary.LittleEndian.Uint64(plain[24:])
		if (a|b|c|d|(a-ones*0x20)|(b-ones*0x20)|(c-ones*0x20)|(d-ones*0x20))&highs != 0 {
			break
		}
		plain = plain[32:]
		pos += 32
	}
	return pos
}

// str checks and skips the string whose quote is next, and returns its content: a slice of the
// text, or a decoded copy if the string has escapes.
func (s *scanner) str() ([]byte, error) {
	s.pos++
	start := s.pos
	escaped := false
	s.pos = plainStart(s.data, s.pos)
	for {
		s.pos = plainEnd(s.data, s.pos)
		if s.pos >= len(s.data) {
			return nil, s.fail("end of input inside a string")
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			content := s.data[start:s.pos]
			s.pos++
			if escaped {
				content = unescape(content)
			}
			return content, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, err
			}
		case c < 0x20:
			return nil, s.fail("control character inside a string")
		default:
			r, size := utf8.DecodeRune(s.data[s.pos:])
			if r == utf8.RuneError && size <= 1 {
				return nil, s.fail("invalid UTF-8 inside a string")
			}
			s.pos += size
		}
	}
}

// escape checks and skips one escape sequence. A surrogate pair counts as one.
func (s *scanner) escape() error {
	if s.pos+1 >= len(s.data) {
		return s.fail("end of input inside a string")
	}
	switch s.data[s.pos+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.pos += 2
		return nil
	case 'u':
		high, ok := hex4(s.data[s.pos+2:])
		if !ok {
			return s.fail("invalid escape")
		}
		s.pos += 6
		if high < 0xD800 || high > 0xDFFF {
			return nil
		}
		if high < 0xDC00 && bytes.HasPrefix(s.data[s.pos:], []byte(`\u`)) {
			if low, ok := hex4(s.data[s.pos+2:]); ok && low >= 0xDC00 && low <= 0xDFFF {
				s.pos += 6
				return nil
			}
		}
		return s.fail("lone surrogate in an escape")
	default:
		return s.fail("invalid escape")
	}
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescape decodes the content of a string that a scanner accepted.
func unescape(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			out = append(out, b[i])
			i++
			continue
		}
		switch c := b[i+1]; c {
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, _ := hex4(b[i+2:])
			i += 4
			if 0xD800 <= r && r < 0xDC00 {
				low, _ := hex4(b[i+4:])
				r = (r-0xD800)<<10 | (low - 0xDC00) + 0x10000
				i += 6
			}
			out = utf8.AppendRune(out, r)
		default:
			out = append(out, c)
		}
		i += 2
	}
	return out
}
