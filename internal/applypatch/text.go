package applypatch

import (
	"bytes"

	"github.com/execagent/execagent/internal/paths"
)

// text is an updated file. A line ends with LF, CRLF or a lone CR; after the last end there is no
// line.
type text struct {
	data  []byte
	first int    // where the first line begins: behind a byte-order mark, if that belongs to no line
	eol   string // how the first line ends, LF if none does
	open  bool   // the last line has no end

	// The first CR at or after crFrom is at cr, because the next search is nearly always in the
	// part that was already searched. Without a CR in the file, both are past its end.
	crFrom, cr int
}

// byteOrderMark is what some editors write in front of the first line.
const byteOrderMark = paths.Mark

func newText(data []byte) *text {
	t := &text{data: data, eol: "\n"}
	if n := len(data); n > 0 {
		t.open = data[n-1] != '\n' && data[n-1] != '\r'
	}
	t.cr = t.findCR(0)
	switch lf := bytes.IndexByte(data, '\n'); {
	case t.cr == len(data) || lf >= 0 && lf < t.cr:
	case lf == t.cr+1:
		t.eol = "\r\n"
	default:
		t.eol = "\r"
	}
	return t
}

// withoutMark takes a byte-order mark away from the first line, and reports whether there was one.
func (t *text) withoutMark() bool {
	if !bytes.HasPrefix(t.data, []byte(byteOrderMark)) {
		return false
	}
	t.first = len(byteOrderMark)
	t.open = t.open && len(t.data) > t.first
	return true
}

func (t *text) findCR(from int) int {
	if i := bytes.IndexByte(t.data[from:], '\r'); i >= 0 {
		return from + i
	}
	return len(t.data)
}

// line returns the end of the line at from, and the start of the next line. There must be a line at
// from.
func (t *text) line(from int) (end, next int) {
	if from < t.crFrom || from > t.cr {
		t.crFrom, t.cr = from, t.findCR(from)
	}
	end = len(t.data)
	if i := bytes.IndexByte(t.data[from:t.cr], '\n'); i >= 0 {
		end = from + i
		return end, end + 1
	}
	if t.cr == len(t.data) {
		return end, end
	}
	end, next = t.cr, t.cr+1
	if next < len(t.data) && t.data[next] == '\n' {
		next++
	}
	return end, next
}

// before returns the start of the line before the line at from, or before the end of the file.
func (t *text) before(from int) int {
	at := from
	if at > 0 && t.data[at-1] == '\n' {
		at--
	}
	if at > 0 && t.data[at-1] == '\r' && (at == from || at == from-1) {
		at--
	}
	for at > t.first && t.data[at-1] != '\n' && t.data[at-1] != '\r' {
		at--
	}
	return at
}
