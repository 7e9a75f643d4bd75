package environment

import "bytes"

// depth returns how deep the brackets and dotted keys of a document nest. Text that is
// no TOML gets any number; the decoder refuses it.
func depth(text []byte) int {
	deepest, brackets, dots := 0, 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '#':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case '"', '\'':
			i = stringEnd(text, i)
		case '[', '{':
			brackets++
		case ']', '}':
			brackets, dots = max(brackets-1, 0), 0
		case '.':
			dots++
		case '=', ',', '\n':
			dots = 0
		}
		deepest = max(deepest, brackets, dots)
	}
	return deepest
}

// stringEnd returns where the string ends that begins at i, or where its line ends or
// the text, if the string has no end.
func stringEnd(text []byte, i int) int {
	quote := text[i : i+1]
	if three := bytes.Repeat(quote, 3); bytes.HasPrefix(text[i:], three) {
		quote = three
	}
	for i += len(quote); i < len(text); i++ {
		switch {
		case text[i] == '\\' && quote[0] == '"':
			i++
		case text[i] == '\n' && len(quote) == 1:
			return i
		case bytes.HasPrefix(text[i:], quote):
			i += len(quote) - 1
			for range 2 * (len(quote) / 3) { // two more quotes may belong to the string
				if i+1 < len(text) && text[i+1] == quote[0] {
					i++
				}
			}
			return i
		}
	}
	return len(text) - 1
}
