package rulefile

import (
	"bytes"
	"strings"

	"github.com/execagent/execagent/internal/paths"
)

// source converts the text of a file to a text that the parser accepts. The parser knows no
// f-strings: source writes f"a{x}" as ("a" + __text(x)), where __text is the function str. Line
// numbers do not change. source refuses two things that the parser accepts and the reference does
// not: a byte-order mark, and tabs in indentation.
func source(file string, text []byte) (string, error) {
	if bytes.HasPrefix(text, []byte(paths.Mark)) {
		return "", &Error{file, 1, 1, "a byte-order mark is not allowed"}
	}
	s := scanner{file: file, text: string(text), line: 1}
	for s.next < len(s.text) {
		if err := s.token(); err != nil {
			return "", err
		}
	}
	s.out.WriteString(s.text[s.copied:])
	return s.out.String(), nil
}

// textOf is the name under which converted f-strings call str.
const textOf = "__text"

// scanner scans a file just far enough to find its strings.
type scanner struct {
	file   string
	text   string
	next   int
	copied int // number of bytes of text that were copied to out
	out    strings.Builder

	line      int
	lineStart int
	word      int // begin of the word that ends at next; equal to next if no word ends there
}

// refuse returns an error at the position next.
func (s *scanner) refuse(text string) error {
	return &Error{s.file, s.line, s.next - s.lineStart + 1, text}
}

// newline is called after a newline.
func (s *scanner) newline() { s.line, s.lineStart = s.line+1, s.next }

// token skips one token outside of strings, or a whole string.
func (s *scanner) token() error {
	c := s.text[s.next]
	switch {
	case c == '"' || c == '\'':
		return s.quoted(s.text[s.word:s.next])
	case c == '#':
		if i := strings.IndexByte(s.text[s.next:], '\n'); i >= 0 {
			s.next += i
		} else {
			s.next = len(s.text)
		}
	case c == '\n':
		s.next++
		s.newline()
	case c == '\t' && strings.Trim(s.text[s.lineStart:s.next], " ") == "":
		return s.refuse("tabs are not allowed for indentation")
	case c == '_' || c >= 0x80 || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z':
		s.next++
		return nil // word stays
	default:
		s.next++
	}
	s.word = s.next
	return nil
}

// quoted skips a string, and converts an f-string. prefix is the word directly before the string.
func (s *scanner) quoted(prefix string) error {
	start, quote := s.next, s.text[s.next:s.next+1]
	if strings.HasPrefix(s.text[s.next:], strings.Repeat(quote, 3)) {
		quote = strings.Repeat(quote, 3)
	}
	s.next += len(quote)
	isF := prefix == "f"
	if isF {
		s.out.WriteString(s.text[s.copied : start-1])
		s.out.WriteString(`("`)
	}
	newlines := 0
	put := func(text string) {
		if isF {
			s.out.WriteString(text)
		}
	}
	for !strings.HasPrefix(s.text[s.next:], quote) {
		if s.next >= len(s.text) {
			return s.refuse("unexpected end of file in a string")
		}
		c := s.text[s.next]
		switch {
		case c == '\\' && s.next+1 < len(s.text):
			put(s.text[s.next : s.next+2])
			s.next += 2
			if s.text[s.next-1] == '\n' {
				s.newline()
			}
			continue
		case c == '\n' && len(quote) == 1:
			return s.refuse("unexpected newline in a string")
		case c == '\n':
			put(`\n`)
			s.next++
			s.newline()
			newlines++
			continue
		case isF && c == '\r':
			return s.refuse("a carriage return in an f-string is not supported")
		case isF && c == '"':
			put(`\"`)
		case isF && (c == '{' || c == '}'):
			if strings.HasPrefix(s.text[s.next+1:], string(c)) {
				put(string(c))
				s.next++
				break
			}
			expression, err := s.hole(c)
			if err != nil {
				return err
			}
			put(`" + ` + textOf + `(` + expression + `) + "`)
			continue
		default:
			put(s.text[s.next : s.next+1])
		}
		s.next++
	}
	s.next += len(quote)
	if isF {
		s.out.WriteString(`"` + strings.Repeat("\n", newlines) + `)`)
		s.copied = s.next
	}
	s.word = s.next
	return nil
}

// notInHole are the characters that an expression in an f-string may not have. With them, the
// expression could end at another place than it seems to, or have a format.
const notInHole = "\"'\\{#\r\n:!"

// hole skips an expression in an f-string, and returns it.
func (s *scanner) hole(c byte) (string, error) {
	if c == '}' {
		return "", s.refuse("a single } in an f-string")
	}
	rest := s.text[s.next+1:]
	end := strings.IndexAny(rest, notInHole+"}")
	if end < 0 || rest[end] != '}' {
		return "", s.refuse("an f-string may have names and simple expressions between { and }")
	}
	expression := strings.TrimSpace(rest[:end])
	if expression == "" {
		return "", s.refuse("an empty expression in an f-string")
	}
	s.next += 1 + end + 1
	return "(" + expression + ")", nil
}
