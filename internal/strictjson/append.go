package strictjson

import (
	"strings"
	"unicode/utf8"
)

// AppendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// AppendStrings appends list as a JSON array of strings. A nil list is an empty
// array.
func AppendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = AppendString(dst, s)
	}
	return append(dst, ']')
}

// AppendCompact appends a checked value in the spelling of the reference: without white space, with
// the members in their order, and with numbers as they are written. Of a repeated name the last value
// counts, in the place of the first. An exponent gets its sign, and -0 becomes 0. Characters are
// only escaped where they must be.
func AppendCompact(dst, raw []byte) []byte {
	switch c := raw[0]; c {
	case '{':
		at := map[string]int{}
		var members []member
		eachMember(raw, func(name, value []byte) bool {
			i, repeated := at[string(name)]
			if repeated {
				members[i].value = value
				return true
			}
			at[string(name)] = len(members)
			members = append(members, member{name, value})
			return true
		})
		dst = append(dst, c)
		for i, m := range members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, string(m.name)), ':')
			dst = AppendCompact(dst, m.value)
		}
		return append(dst, '}')
	case '[':
		dst = append(dst, c)
		for s := (scanner{data: raw, pos: 1}); ; {
			s.space()
			switch s.data[s.pos] {
			case ']':
				return append(dst, ']')
			case ',':
				s.pos++
				dst = append(dst, ',')
				continue
			}
			start := s.pos
			s.skip()
			dst = AppendCompact(dst, raw[start:s.pos])
		}
	case '"':
		return appendText(dst, Text(raw))
	case 't', 'f', 'n':
		return append(dst, raw...)
	}
	if string(raw) == "-0" {
		return append(dst, '0')
	}
	for i, c := range raw {
		if c != 'e' && c != 'E' {
			dst = append(dst, c)
			continue
		}
		dst = append(dst, 'e')
		if next := raw[i+1]; next != '+' && next != '-' {
			dst = append(dst, '+')
		}
	}
	return dst
}

// appendText is AppendString with \b and \f.
func appendText(dst []byte, s string) []byte {
	start := len(dst)
	dst = AppendString(dst, s)
	if strings.ContainsAny(s, "\b\f") {
		text := strings.NewReplacer(`\\`, `\\`, `\u0008`, `\b`, `\u000c`, `\f`).Replace(string(dst[start:]))
		dst = append(dst[:start], text...)
	}
	return dst
}
