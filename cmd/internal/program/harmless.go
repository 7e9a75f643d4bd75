package program

import (
	"io"
	"os"
	"unicode"
	"unicode/utf8"
)

// Harmless returns a writer for text from other sources that the user reads. If the file is a
// terminal, the writer replaces control characters except newlines and tabs. Other files get the
// text unchanged.
func Harmless(f *os.File) io.Writer {
	if NewTerminal(f) == nil {
		return f
	}
	return &harmless{w: f}
}

type harmless struct {
	w    io.Writer
	part []byte // the beginning of a character whose other bytes come later
}

func (h *harmless) Write(p []byte) (int, error) {
	text := append(h.part, p...)
	end := len(Whole(text))
	h.part = append([]byte(nil), text[end:]...)
	shown := make([]byte, 0, end)
	for _, r := range string(text[:end]) {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			r = unicode.ReplacementChar
		}
		shown = utf8.AppendRune(shown, r)
	}
	if _, err := h.w.Write(shown); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Whole returns text without the beginning of a UTF-8 character at its end.
func Whole[T string | []byte](text T) T {
	for back := 1; back < utf8.UTFMax && back <= len(text); back++ {
		if at := len(text) - back; utf8.RuneStart(text[at]) {
			if !utf8.FullRuneInString(string(text[at:])) {
				return text[:at]
			}
			break
		}
	}
	return text
}
