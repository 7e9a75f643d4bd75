// Package tomltext examines a text before it is decoded as TOML. It finds the depth of nesting,
// because the decoder's time and memory are quadratic in that depth.
//
// It knows only strings, comments, brackets and dots of TOML. A text that is not TOML may pass; the
// decoder refuses it.
package tomltext

import "strings"

// Nesting returns how deep the brackets and dotted keys of a text nest, at least. Brackets count
// that are left open by a text that is wrong.
func Nesting(text string) int {
	deepest, brackets, dots := 0, 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\n', '=', ',':
			dots = 0
		case '"', '\'':
			i = StringEnd(text, i) - 1
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '[', '{':
			brackets++
		case ']', '}':
			brackets, dots = max(brackets-1, 0), 0
		case '.':
			dots++
		}
		deepest = max(deepest, brackets, dots)
	}
	return deepest
}

// StringEnd returns the index behind the string that begins at an index, in one of TOML's four
// forms. One that is not closed has the rest of its line, or of the text.
func StringEnd(text string, begin int) int {
	quote := text[begin : begin+1]
	if three := text[begin:min(begin+3, len(text))]; strings.Count(three, quote) == 3 {
		quote = three
	}
	for i := begin + len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case text[i] == '\n' && len(quote) == 1:
			return i
		case strings.HasPrefix(text[i:], quote):
			end := i + len(quote)
			for len(quote) == 3 && end < min(i+5, len(text)) && text[end] == quote[0] {
				end++ // up to two more belong to it
			}
			return end
		}
	}
	return len(text)
}
