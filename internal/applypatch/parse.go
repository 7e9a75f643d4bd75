package applypatch

import (
	"strings"
	"unicode"
)

// The lines of the grammar.
const (
	beginMark = "*** Begin Patch"
	endMark   = "*** End Patch"
	envMark   = "*** Environment ID:"
	addMark   = "*** Add File: "
	delMark   = "*** Delete File: "
	updMark   = "*** Update File: "
	moveMark  = "*** Move to: "
	eofMark   = "*** End of File"
	atMark    = "@@"
)

const (
	badBegin  = "The first line of the patch must be '" + beginMark + "'"
	badEnd    = "The last line of the patch must be '" + endMark + "'"
	badHeader = "'%s' is not a valid hunk header. Valid hunk headers: '*** Add File: {path}', '*** Delete File: {path}', '*** Update File: {path}'"
	badLine   = "Unexpected line found in update hunk: '%s'. Every line should start with ' ' (context line), '+' (added line), or '-' (removed line)"
	badChunk  = "Expected update hunk to start with a @@ context marker, got: '%s'"
)

// Parse reads a patch. A wrong one is a [SyntaxError]; one without a hunk is [ErrEmpty].
//
// The text may be wrapped in a here-document of a shell whose word is EOF.
func Parse(text string) (*Patch, error) {
	if len(text) > maxPatch {
		return nil, invalid(0, "A patch has at most %d bytes, this one has %d", maxPatch, len(text))
	}
	text, err := unwrap(strings.TrimSpace(text))
	if err != nil {
		return nil, err
	}
	p := parser{rest: text}
	p.next() // the line that begins the patch
	for read := state(p.header); !p.done; {
		start := p.rest
		read, err = read(p.next(), start)
		if err != nil {
			return nil, err
		}
		if p.parts > maxParts {
			return nil, invalid(p.line, "A patch has at most %d hunks and chunks", maxParts)
		}
	}
	if len(p.hunks) == 0 {
		return nil, ErrEmpty
	}
	return &Patch{hunks: p.hunks}, nil
}

// unwrap returns what is inside the here-document, if text is one, and makes sure that it begins
// and ends as a patch.
func unwrap(text string) (string, error) {
	err := checkEnds(text)
	if err == nil {
		return text, nil
	}
	first, inner, _ := strings.Cut(text, "\n")
	switch trimEnd(first) {
	case "<<EOF", "<<'EOF'", `<<"EOF"`:
	default:
		return "", err
	}
	i := strings.LastIndexByte(inner, '\n')
	if i < 0 || !strings.HasSuffix(trimEnd(inner[i+1:]), "EOF") {
		return "", err
	}
	inner = inner[:i]
	if !strings.Contains(inner, "\n") {
		return "", err
	}
	return inner, checkEnds(inner)
}

// checkEnds looks at the first line and at the last.
func checkEnds(text string) error {
	first, _, _ := strings.Cut(text, "\n")
	last := text[strings.LastIndexByte(text, '\n')+1:]
	switch {
	case strings.TrimSpace(first) != beginMark && text != "":
		return invalid(0, badBegin)
	case strings.TrimSpace(last) != endMark:
		return invalid(0, badEnd)
	}
	return nil
}

// trimEnd drops the carriage returns at the end of a line, which an editor may have put there.
func trimEnd(line string) string { return strings.TrimRight(line, "\r") }

// parser reads a patch line by line.
type parser struct {
	rest  string // what was not read yet
	done  bool   // the last line was read
	line  int    // number of the line that was read last
	hunks []hunk
	parts int  // hunks and chunks so far
	env   bool // the patch has named an environment

	headerLine int    // of the hunk that is being read
	body       string // what was not read when the body of a chunk, or of an added file, began
}

// state reads a line and returns the state that reads the next one. start is the unread text
// including the line: a body that begins with the line begins there.
type state func(line, start string) (state, error)

func (p *parser) next() string {
	line, rest, more := strings.Cut(p.rest, "\n")
	p.rest, p.done = rest, !more
	p.line++
	return trimEnd(line)
}

// last is the hunk that is being read.
func (p *parser) last() *hunk { return &p.hunks[len(p.hunks)-1] }

// chunk is the chunk that is being read.
func (p *parser) chunk() *chunk {
	h := p.last()
	return &h.chunks[len(h.chunks)-1]
}

// bodyUntil is the text from where a body began to start, which is where it has ended.
func (p *parser) bodyUntil(start string) lines {
	return lines(p.body[:len(p.body)-len(start)])
}

// header reads a line between hunks.
func (p *parser) header(line, start string) (state, error) {
	line = strings.TrimSpace(line)
	if id, ok := strings.CutPrefix(line, envMark); ok && len(p.hunks) == 0 {
		return p.environment(strings.TrimSpace(id))
	}
	if next := p.open(line); next != nil {
		return next, nil
	}
	return nil, invalid(p.line, badHeader, line)
}

// environment notes that the patch is for an environment. It ignores which one, because the patch
// has already arrived here.
func (p *parser) environment(id string) (state, error) {
	switch {
	case p.env:
		return nil, invalid(0, "apply_patch environment_id cannot be specified more than once")
	case id == "":
		return nil, invalid(0, "apply_patch environment_id cannot be empty")
	}
	p.env = true
	return p.header, nil
}

// open begins the hunk that line is the header of, or ends the patch. Any other line is nil.
func (p *parser) open(line string) state {
	if line == endMark {
		return p.end
	}
	for _, header := range []struct {
		mark string
		kind Kind
		body state
	}{{addMark, Add, p.added}, {delMark, Delete, p.header}, {updMark, Update, p.update}} {
		path, ok := strings.CutPrefix(line, header.mark)
		if !ok || path == "" {
			continue
		}
		p.hunks = append(p.hunks, hunk{kind: header.kind, path: path})
		p.parts++
		p.headerLine, p.body = p.line, p.rest
		return header.body
	}
	return nil
}

// added reads a line of a file that is added.
func (p *parser) added(line, start string) (state, error) {
	if strings.HasPrefix(line, "+") {
		p.last().added = p.bodyUntil(p.rest)
		return p.added, nil
	}
	return p.header(line, start)
}

// update reads the first line of an update, or the one behind its new name.
func (p *parser) update(line, start string) (state, error) {
	right := strings.TrimRightFunc(line, unicode.IsSpace)
	if to, ok := strings.CutPrefix(right, moveMark); ok && p.last().moveTo == "" && p.line == p.headerLine+1 {
		p.last().moveTo = to
		return p.update, nil
	}
	if opens(right) || right == eofMark || p.isEnd(line) {
		return nil, invalid(p.headerLine, "Update file hunk for path '%s' is empty", p.last().path)
	}
	if isBody(line) {
		p.begin("", start)
		return p.lines(line, start)
	}
	if context, ok := chunkStart(right); ok {
		p.begin(context, p.rest)
		return p.first, nil
	}
	return nil, invalid(p.line, badLine, line)
}

// begin begins a chunk whose lines are not read yet.
func (p *parser) begin(context, body string) {
	h := p.last()
	h.chunks = append(h.chunks, chunk{context: context})
	p.parts++
	p.body = body
}

// chunkStart reports whether line begins a chunk, and returns the context that it names.
func chunkStart(line string) (context string, ok bool) {
	if line == atMark {
		return "", true
	}
	return strings.CutPrefix(line, atMark+" ")
}

// isBody reports whether line may be in the body of a chunk.
func isBody(line string) bool {
	return line == "" || line[0] == ' ' || line[0] == '-' || line[0] == '+'
}

// opens reports whether open accepts a line, trimmed on its right.
func opens(right string) bool {
	if right == endMark {
		return true
	}
	for _, mark := range []string{addMark, delMark, updMark} {
		if len(right) > len(mark) && strings.HasPrefix(right, mark) {
			return true
		}
	}
	return false
}

// first reads the line after the start of a chunk.
func (p *parser) first(line, start string) (state, error) {
	right := strings.TrimRightFunc(line, unicode.IsSpace)
	switch {
	case right == endMark, right == eofMark, p.isEnd(line):
		return nil, invalid(p.line, "Update hunk does not contain any lines")
	case !isBody(line):
		return nil, invalid(p.line, badLine, line)
	}
	return p.lines(line, start)
}

// isEnd reports whether line is the last line of the patch, which may be indented.
func (p *parser) isEnd(line string) bool { return p.done && strings.TrimSpace(line) == endMark }

// lines reads a line after the first one of a chunk.
func (p *parser) lines(line, start string) (state, error) {
	if p.isEnd(line) {
		return p.end, nil
	}
	c := p.chunk()
	if isBody(line) {
		mark, empty := byte(' '), line == ""
		if !empty {
			mark, empty = line[0], len(line) == 1
		}
		if c.count(mark, empty); c.olds > maxParts {
			return nil, invalid(p.line, "A chunk expects at most %d lines", maxParts)
		}
		c.body = p.bodyUntil(p.rest)
		return p.lines, nil
	}
	if strings.TrimRightFunc(line, unicode.IsSpace) == eofMark {
		c.atEnd = true
		return p.between, nil
	}
	return p.between(line, start)
}

// between reads a line that is in no chunk.
func (p *parser) between(line, start string) (state, error) {
	if line == "" {
		return p.between, nil
	}
	if p.isEnd(line) {
		return p.end, nil
	}
	right := strings.TrimRightFunc(line, unicode.IsSpace)
	if context, ok := chunkStart(right); ok {
		p.begin(context, p.rest)
		return p.first, nil
	}
	if next := p.open(right); next != nil {
		return next, nil
	}
	return nil, invalid(p.line, badChunk, line)
}

// end reads a line after the end of the patch.
func (p *parser) end(line, _ string) (state, error) {
	if line = strings.TrimSpace(line); line != "" && line != endMark {
		return nil, invalid(0, badEnd)
	}
	return p.end, nil
}
