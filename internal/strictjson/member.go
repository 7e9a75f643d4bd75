package strictjson

import "bytes"

// The functions below split values that a scanner has accepted, and check nothing.

// eachMember calls visit for the members of a checked object until visit returns
// false.
func eachMember(raw []byte, visit func(name, value []byte) bool) {
	s := scanner{data: raw, pos: 1}
	for {
		s.space()
		switch s.data[s.pos] {
		case '}':
			return
		case ',':
			s.pos++
			continue
		}
		start := s.pos
		s.skip()
		name := stringContent(raw[start:s.pos])
		s.space()
		s.pos++ // the colon
		s.space()
		start = s.pos
		s.skip()
		if !visit(name, raw[start:s.pos]) {
			return
		}
	}
}

// skip skips one value of a checked text.
func (s *scanner) skip() {
	depth := 0
	for {
		switch s.data[s.pos] {
		case '"':
			s.skipString()
		case '{', '[':
			depth++
			s.pos++
		case '}', ']':
			depth--
			s.pos++
		case ' ', '\t', '\r', '\n', ',', ':':
			s.pos++
			continue
		default:
			for s.pos < len(s.data) && bytes.IndexByte([]byte(" \t\r\n,:]}"), s.data[s.pos]) < 0 {
				s.pos++
			}
		}
		if depth == 0 {
			return
		}
	}
}

// skipString skips a checked string. The string ends at the first quote after an even number of
// backslashes.
func (s *scanner) skipString() {
	s.pos++
	start := s.pos
	for {
		s.pos += bytes.IndexByte(s.data[s.pos:], '"') + 1
		slashes := 0
		for i := s.pos - 2; i >= start && s.data[i] == '\\'; i-- {
			slashes++
		}
		if slashes%2 == 0 {
			return
		}
	}
}

// stringContent returns the content of a checked string, with its escapes decoded.
func stringContent(raw []byte) []byte {
	content := raw[1 : len(raw)-1]
	if bytes.IndexByte(content, '\\') >= 0 {
		return unescape(content)
	}
	return content
}

// Text returns the content of a checked string. raw is the string with its quotes.
func Text(raw []byte) string { return string(stringContent(raw)) }

// TypeOf returns the name of a checked value's type for an error text: map, sequence, string,
// boolean, number or null. It returns "nothing" if there is no value.
func TypeOf(raw []byte) string {
	if len(raw) == 0 {
		return "nothing"
	}
	switch raw[0] {
	case '{':
		return "map"
	case '[':
		return "sequence"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	default:
		return "number"
	}
}

// Member looks up one member of checked params, without parsing the other members. It returns nil
// if there is none.
func Member(params []byte, member string) (raw []byte) {
	if len(params) == 0 || params[0] != '{' {
		return nil
	}
	eachMember(params, func(name, value []byte) bool {
		if string(name) != member {
			return true
		}
		raw = value
		return false
	})
	return raw
}

// StringMember is Member for a member that must be a string.
func StringMember(params []byte, member string) (content string, ok bool) {
	if raw := Member(params, member); raw != nil && raw[0] == '"' {
		return Text(raw), true
	}
	return "", false
}
