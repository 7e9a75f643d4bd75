package fsops

import (
	"bufio"
	"bytes"
	"io"
	"regexp"
	"regexp/syntax"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

const (
	// maxSearchedLine is how much of a line is searched, in bytes.
	maxSearchedLine = 1 << 20
	// maxInstructions bounds the program that a regular expression becomes.
	maxInstructions = 10_000
	// maxSteps is the cost of matches, in instructions times bytes, after which the search can end.
	maxSteps = 1 << 23
	// sniffed is how much of a file says whether it is binary, as git has it.
	sniffed = 8000
	// maxGrown is how much is read of a file that claims to be empty, or that grows while it is read.
	maxGrown = 1 << 20
)

// lineMatcher finds a pattern in a line.
type lineMatcher struct {
	literal []byte // without a regular expression
	re      *regexp.Regexp
	needle  []byte // is in every line that matches; nil if that is not known
	cost    int    // of one byte
	spent   int    // since over was asked
}

// newLineMatcher returns the matcher of options, nil for no pattern. Its errors are [InvalidError]s.
func newLineMatcher(o *SearchOptions) (*lineMatcher, error) {
	if o.Pattern == "" {
		return nil, nil
	}
	text := o.Pattern
	if o.Literal {
		if bytes.ContainsAny([]byte(text), "\n") {
			return nil, invalidf("pattern: it has a line feed, and lines are searched one by one")
		}
		if !o.IgnoreCase {
			return &lineMatcher{literal: []byte(text)}, nil
		}
		text = regexp.QuoteMeta(text)
	}
	if o.IgnoreCase {
		text = "(?i:" + text + ")"
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil, invalidf("pattern: %v", err)
	}
	cost := instructions(parsed)
	if cost > maxInstructions {
		return nil, invalidf("pattern: its repetitions make it too large, %d instructions of at most %d", cost, maxInstructions)
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, invalidf("pattern: %v", err)
	}
	return &lineMatcher{re: re, needle: needle(parsed), cost: cost}, nil
}

// instructions estimates how many instructions an expression becomes, before it becomes them.
func instructions(re *syntax.Regexp) int {
	n := 1
	if re.Op == syntax.OpLiteral {
		n = len(re.Rune)
	}
	for _, sub := range re.Sub {
		n += instructions(sub)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1) // together with those around it, at most 1000
	}
	return n
}

// needle returns the longest text that is in everything that matches an expression, or nil.
func needle(re *syntax.Regexp) (found []byte) {
	switch re.Op {
	case syntax.OpLiteral:
		if re.Flags&syntax.FoldCase == 0 {
			found = []byte(string(re.Rune))
		}
	case syntax.OpCapture, syntax.OpPlus:
		return needle(re.Sub[0])
	case syntax.OpConcat:
		for _, sub := range re.Sub {
			if n := needle(sub); len(n) > len(found) {
				found = n
			}
		}
	}
	if bytes.ContainsRune(found, utf8.RuneError) {
		return nil // it also matches what is not UTF-8
	}
	return found
}

// find returns where the first match in a line begins and ends; false: there is none, or over has ended the match.
func (m *lineMatcher) find(line []byte, over func() bool) (begin, end int, ok bool) {
	if m.re == nil {
		begin = bytes.Index(line, m.literal)
		return begin, begin + len(m.literal), begin >= 0
	}
	if m.needle != nil && !bytes.Contains(line, m.needle) {
		return 0, 0, false
	}
	if m.spent += m.cost * len(line); m.spent > maxSteps {
		m.spent = 0
		if over() {
			return 0, 0, false
		}
	}
	var at []int
	if m.cost*len(line) > maxSteps {
		at = m.re.FindReaderIndex(&runes{Reader: *bytes.NewReader(line), every: max(maxSteps/m.cost, 1), over: over})
		if over() {
			return 0, 0, false
		}
	} else {
		at = m.re.FindIndex(line)
	}
	if at == nil {
		return 0, 0, false
	}
	return at[0], at[1], true
}

// runes reads a line, until over ends it.
type runes struct {
	bytes.Reader
	every, n int
	over     func() bool
}

// ReadRune returns the next character.
func (r *runes) ReadRune() (rune, int, error) {
	if r.n++; r.n%r.every == 0 && r.over() {
		return 0, 0, io.EOF
	}
	return r.Reader.ReadRune()
}

// content reads a file up to its size when it was opened, or up to the end of the search.
type content struct {
	s    *searcher
	fd   int
	left int64
}

func (c *content) Read(p []byte) (int, error) {
	if c.left <= 0 || c.s.over() {
		return 0, io.EOF
	}
	n, err := read(c.fd, p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err == nil && n == 0 {
		err = io.EOF
	}
	return n, err
}

// read searches the lines of a file, and closes it.
func (s *searcher) read(fd int, path string) {
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil || !isRegular(&st) {
		return // it has become something else
	}
	if s.reader == nil {
		s.reader = bufio.NewReaderSize(nil, maxSearchedLine)
	}
	s.reader.Reset(&content{s, fd, max(st.Size, maxGrown)})
	head, err := s.reader.Peek(sniffed)
	switch {
	case err != nil && err != io.EOF:
		s.fail(path, err)
		return
	case s.full || s.ended != nil:
		return
	case bytes.IndexByte(head, 0) >= 0:
		s.result.BinaryFiles++
		return
	}
	s.result.FilesRead++
	f := fileSearch{searcher: s, found: SearchedFile{Path: path, Kind: kindName(unix.DT_REG)}}
	if err := f.run(); err != nil {
		s.fail(path, err)
	}
	if len(f.found.Matches) > 0 {
		s.result.Files = append(s.result.Files, f.found)
	}
}

// fileSearch is the search of one file.
type fileSearch struct {
	*searcher
	found  SearchedFile
	before [][]byte // the last lines that were not given
	after  uint64   // lines to give after the last match
}

// run looks at line after line.
func (f *fileSearch) run() error {
	for n := uint64(1); ; n++ {
		line, err := f.reader.ReadSlice('\n')
		if err == io.EOF && len(line) == 0 || n%256 == 0 && f.over() {
			return nil
		}
		long := err == bufio.ErrBufferFull
		if err != nil && err != io.EOF && !long {
			return err
		}
		if !f.line(n, bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), long) {
			return nil
		}
		if long {
			f.miss(SearchedLine)
		}
		for long && !f.over() {
			_, err = f.reader.ReadSlice('\n')
			long = err == bufio.ErrBufferFull
		}
	}
}

// line looks at a line, and reports whether to go on. long says that the line goes on.
func (f *fileSearch) line(n uint64, line []byte, long bool) bool {
	enough := f.o.MaxFileMatches > 0 && uint64(len(f.found.Matches)) >= f.o.MaxFileMatches
	if enough && f.after == 0 {
		return false
	}
	begin, end, ok := 0, 0, false
	if !enough {
		begin, end, ok = f.lines.find(line, f.over)
	}
	switch {
	case f.full || f.ended != nil:
		return false
	case ok:
		return f.match(n, line, begin, end, long)
	case f.after > 0:
		f.after--
		text, _, _ := f.show(line, 0)
		last := &f.found.Matches[len(f.found.Matches)-1]
		if !f.fits(len(text) + entryAllowance) {
			return false
		}
		last.After = append(last.After, text)
	case f.o.Before > 0:
		f.remember(line)
	}
	return true
}

// remember keeps a line that the next match may give.
func (f *fileSearch) remember(line []byte) {
	var kept []byte
	if uint64(len(f.before)) == f.o.Before {
		kept = f.before[0][:0]
		f.before = append(f.before[:0], f.before[1:]...)
	}
	// One character more, so that the line is shortened where it would be as a whole.
	f.before = append(f.before, append(kept, line[:min(len(line), int(f.o.MaxLine)+utf8.UTFMax)]...))
}

// match gives a line that matches.
func (f *fileSearch) match(n uint64, line []byte, begin, end int, long bool) bool {
	if !f.counts() {
		return false
	}
	m := SearchMatch{Line: n, Column: uint64(begin) + 1, Length: uint64(end - begin)}
	size := 2 * entryAllowance
	if len(f.found.Matches) == 0 {
		size += len(f.found.Path)
	}
	var first int
	m.Text, first, m.Cut = f.show(line, begin)
	m.TextColumn, m.Cut = uint64(first)+1, m.Cut || long
	for _, kept := range f.before {
		text, _, _ := f.show(kept, 0)
		m.Before = append(m.Before, text)
		size += len(text) + entryAllowance
	}
	f.before = f.before[:0]
	if !f.fits(size + len(m.Text)) {
		return false
	}
	f.found.Matches = append(f.found.Matches, m)
	f.after = f.o.After
	return true
}

// show returns what is shown of a line with a match at the byte at: of a long line a part that has about a
// quarter of its bytes before the match. first is where the part begins; cut says that the line goes on.
func (f *fileSearch) show(line []byte, at int) (text string, first int, cut bool) {
	most := int(f.o.MaxLine)
	if len(line) <= most {
		return lossy(string(line)), 0, false
	}
	first = max(0, min(at-most/4, len(line)-most))
	last := first + most
	for n := 0; first > 0 && first < at && n < utf8.UTFMax && !utf8.RuneStart(line[first]); n++ {
		first++
	}
	if last < len(line) {
		for n, at := 0, last; n < utf8.UTFMax && at > first; n, at = n+1, at-1 {
			if utf8.RuneStart(line[at]) {
				last = at
				break
			}
		}
	}
	return lossy(string(line[first:last])), first, last < len(line)
}
