package fsops

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of a search.
const (
	MaxSearchGlobs   = 64
	MaxSearchPattern = 4096 // bytes
	MaxSearchMatches = 10_000
	MaxSearchFiles   = 1_000_000
	MaxSearchDepth   = 256
	MaxSearchLine    = 16 << 10 // bytes that are shown of a line
	MaxSearchContext = 100      // lines on each side
	MaxSearchTime    = 5 * time.Minute
	// MaxSearchSize bounds the result: the bytes of its paths and lines, and 64 more for each.
	MaxSearchSize = 4 << 20
	// maxSearchNames bounds the names that wait to be looked at, in bytes, with 64 more for each.
	maxSearchNames = 32 << 20
)

// The bounds that [SearchResult.Truncated] names.
const (
	SearchedMatches = "matches"
	SearchedFiles   = "files"
	SearchedDepth   = "depth"
	SearchedTime    = "time"
	SearchedSize    = "size"
	SearchedLine    = "line"
)

// SearchOptions say what is looked for. The bounds are required, and none may exceed its maximum.
type SearchOptions struct {
	// Globs choose the names that are looked at; none: all. Each has the form of a line of a
	// .gitignore, and may have braces: one without a slash is about names at every depth, and one
	// with a slash is about paths below the root. A glob that begins with "!" leaves names out, and
	// the last glob that matches decides.
	Globs []string
	// Pattern is looked for in lines, which end before "\n" or "\r\n". "" looks for names only.
	Pattern string
	// Literal: the pattern is text, and no regular expression of RE2.
	Literal    bool
	IgnoreCase bool
	// Hidden: names that begin with a dot are looked at, too.
	Hidden bool
	// NoIgnore: .gitignore files are not heeded, and directories named .git are entered if Hidden
	// says so.
	NoIgnore bool
	// Kind is the only kind of file that is listed without a pattern; "": all. See [SearchedFile].
	Kind string
	// Before and After are how many lines around a match are shown.
	Before, After uint64

	MaxMatches     uint64 // files without a pattern, else lines
	MaxFileMatches uint64 // lines of one file; 0: no bound
	MaxFiles       uint64 // names that are looked at, directories among them
	MaxDepth       uint64 // the root is at depth 0
	MaxLine        uint64 // bytes that are shown of a line
	Time           time.Duration
}

// SearchResult is what a search has found.
type SearchResult struct {
	// Files are sorted by their paths.
	Files []SearchedFile
	// Errors are about what could not be read.
	Errors []WalkError
	// Truncated names a bound that was reached, so that something is missing; "": nothing is. If several
	// bounds were reached, it names the one that has ended the search.
	Truncated string
	// FilesRead counts the files whose lines were searched, and BinaryFiles those that were skipped because
	// their beginning has a zero byte.
	FilesRead, BinaryFiles uint64
}

// SearchedFile is a file that was found.
type SearchedFile struct {
	Path string
	// Kind is file, directory, symlink or other. Links are not followed.
	Kind string
	// Matches are the lines that match, in their order. Without a pattern there are none.
	Matches []SearchMatch
}

// SearchMatch is a line that matches.
type SearchMatch struct {
	Line uint64 // from 1
	// Column is the byte of the line where the first match begins, from 1, and Length how many bytes it has.
	Column, Length uint64
	// Text is the line, with U+FFFD for what is not UTF-8. Of a long line it is the part around the match.
	Text string
	// TextColumn is the byte of the line where Text begins, from 1. Cut: the line goes on after Text.
	TextColumn uint64
	Cut        bool
	// Before and After are the lines around, shortened too. No line of a file is given twice: a line that
	// the match before has given, or the next one gives, is missing.
	Before, After []string
}

// Search looks for names, or for lines of files, below root, or in the file root. A link is followed only
// if root is one. Below the root, file systems of the kernel are left out, unless the root is on one.
// The end of the context is noticed between names and lines.
func (Host) Search(ctx context.Context, root string, o SearchOptions) (SearchResult, error) {
	return (*View)(nil).search(ctx, root, o)
}

// Search looks for names, or for lines of files, below root. Hidden objects are not found, and denied files are errors.
func (v *View) Search(ctx context.Context, root string, o SearchOptions) (SearchResult, error) {
	return v.search(ctx, root, o)
}

// check returns the [InvalidError] of wrong options.
func (o *SearchOptions) check() error {
	for _, bound := range []struct {
		name               string
		value, least, most uint64
	}{
		{"globs", uint64(len(o.Globs)), 0, MaxSearchGlobs},
		{"pattern: its bytes", uint64(len(o.Pattern)), 0, MaxSearchPattern},
		{"before", o.Before, 0, MaxSearchContext},
		{"after", o.After, 0, MaxSearchContext},
		{"maxMatches", o.MaxMatches, 1, MaxSearchMatches},
		{"maxFiles", o.MaxFiles, 1, MaxSearchFiles},
		{"maxDepth", o.MaxDepth, 0, MaxSearchDepth},
		{"maxLineBytes", o.MaxLine, 1, MaxSearchLine},
		{"timeoutMs", uint64(o.Time.Milliseconds()), 1, uint64(MaxSearchTime.Milliseconds())},
	} {
		if bound.value < bound.least || bound.value > bound.most {
			return invalidf("%s: %d is not between %d and %d", bound.name, bound.value, bound.least, bound.most)
		}
	}
	return nil
}

func (v *View) search(ctx context.Context, root string, o SearchOptions) (SearchResult, error) {
	if err := o.check(); err != nil {
		return SearchResult{}, err
	}
	s := searcher{view: v, o: o, root: root, until: time.Now().Add(o.Time), wanted: ctx.Err}
	var err error
	if s.globs, err = newGlobs(o.Globs); err != nil {
		return SearchResult{}, err
	}
	if s.lines, err = newLineMatcher(&o); err != nil {
		return SearchResult{}, err
	}
	var st unix.Stat_t
	denied, err := v.target(workingDir, root, &st)
	if err == nil && denied {
		err = unix.EACCES
	}
	if err != nil {
		return SearchResult{}, pathError("search", root, err)
	}
	if kindOf(&st) == unix.DT_DIR {
		err = s.tree()
	} else {
		err = s.single(ctx, &st)
	}
	if err == nil {
		err = s.ended
	}
	if err != nil {
		return SearchResult{}, err
	}
	found := s.result.Files
	sort.Slice(found, func(i, j int) bool { return found[i].Path < found[j].Path })
	return s.result, nil
}

// searcher is a search that is going on.
type searcher struct {
	view   *View
	o      SearchOptions
	root   string
	until  time.Time
	wanted func() error // the error of the context, if nobody waits any more
	globs  globs
	lines  *lineMatcher // nil: only names are looked for

	result SearchResult
	size   int   // of the result
	full   bool  // a bound has ended the search
	ended  error // of the context

	top     Dir
	real    string // the canonical path of the root
	ignores []ignoreFile
	ignore  int // bytes of ignores
	names   *dirReader
	waiting int // bytes of the names that wait
	visited uint64
	matches uint64
	reader  *bufio.Reader
}

// over reports whether the search has to end.
func (s *searcher) over() bool {
	if s.full || s.ended != nil {
		return true
	}
	if s.ended = s.wanted(); s.ended != nil {
		return true
	}
	if !time.Now().Before(s.until) {
		s.stop(SearchedTime)
	}
	return s.full
}

// stop ends the search at a bound.
func (s *searcher) stop(bound string) { s.full, s.result.Truncated = true, bound }

// miss notes that a bound has left something out.
func (s *searcher) miss(bound string) { s.result.Truncated = cmp.Or(s.result.Truncated, bound) }

// fits adds to the size of the result. It returns false, which ends the search, if it does not fit.
func (s *searcher) fits(n int) bool {
	if !s.full && s.size+n > MaxSearchSize {
		s.stop(SearchedSize)
	}
	if s.full {
		return false
	}
	s.size += n
	return true
}

// fail notes what could not be read. What has vanished, or has become something else, was not found.
func (s *searcher) fail(path string, err error) {
	switch err {
	case unix.ENOENT, unix.ELOOP, unix.ENOTDIR:
		return
	}
	if _, another := errors.AsType[InvalidError](err); another {
		return
	}
	if s.fits(len(path) + entryAllowance) {
		s.result.Errors = append(s.result.Errors, WalkError{Path: path, Err: err})
	}
}

// list adds a file without matches.
func (s *searcher) list(path string, kind byte) {
	name := kindName(kind)
	if s.o.Kind != "" && s.o.Kind != name || !s.counts() || !s.fits(len(path)+entryAllowance) {
		return
	}
	s.result.Files = append(s.result.Files, SearchedFile{Path: path, Kind: name})
}

// counts counts a match, and ends the search if it is one too many.
func (s *searcher) counts() bool {
	if s.matches == s.o.MaxMatches {
		s.stop(SearchedMatches)
		return false
	}
	s.matches++
	return true
}

func kindName(kind byte) string {
	switch kind {
	case unix.DT_REG:
		return "file"
	case unix.DT_DIR:
		return "directory"
	case unix.DT_LNK:
		return "symlink"
	}
	return "other"
}

// single searches the one file that the root is.
func (s *searcher) single(ctx context.Context, st *unix.Stat_t) error {
	if s.lines == nil {
		s.list(s.root, kindOf(st))
		return nil
	}
	var fd int
	var err error
	if s.view == nil {
		fd, err = Host{}.OpenRead(ctx, s.root, FollowLinks)
	} else {
		fd, err = s.view.OpenRead(ctx, s.root, FollowLinks)
	}
	if err != nil {
		return err
	}
	s.read(fd, s.root)
	return nil
}

// tree searches below the root.
func (s *searcher) tree() (err error) {
	if s.top, err = s.view.openDir(workingDir, s.root, true); err != nil {
		return pathError("search", s.root, err)
	}
	defer unix.Close(s.top.FD)
	if s.real, err = s.view.canonicalize(s.root); err != nil {
		return pathError("search", s.root, err)
	}
	if s.top.Kind, err = KindOf(s.top.FD); err != nil {
		return pathError("search", s.root, err)
	}
	if !s.o.NoIgnore {
		s.above()
	}
	s.names = newDirReader()
	s.directory(s.top, "", 0)
	return nil
}

// above reads the .gitignore files above the root, if the root is in a repository of git.
func (s *searcher) above() {
	var dirs []Dir
	defer func() {
		for _, d := range dirs {
			unix.Close(d.FD)
		}
	}()
	for path := s.real; len(dirs) < MaxSearchDepth && !s.over(); {
		d, err := s.view.openDir(workingDir, path, false)
		if err != nil {
			return
		}
		dirs = append(dirs, d)
		var st unix.Stat_t
		if s.view.lstat(d, ".git", &st) == nil {
			break
		}
		if path == "/" {
			return
		}
		if path, _ = splitPath(path); path == "" {
			path = "/"
		}
	}
	if len(dirs) == 0 {
		return // the search was over at once
	}
	path := s.real
	var files []ignoreFile
	for _, d := range dirs[1:] {
		path, _ = splitPath(path)
		if f, ok := s.ignoreFile(d, join(path, "")); ok {
			files = append(files, f)
		}
	}
	slices.Reverse(files)
	s.ignores = files
}

// ignoreFile reads the .gitignore of a directory.
func (s *searcher) ignoreFile(d Dir, prefix string) (f ignoreFile, ok bool) {
	fd, err := s.view.openSource(d, ".gitignore")
	if err != nil {
		s.fail(prefix+".gitignore", err)
		return f, false
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if fstat(fd, &st) != nil || !isRegular(&st) {
		return f, false
	}
	text := make([]byte, min(st.Size, maxIgnoreBytes)+1)
	n := 0
	for n < len(text) {
		m, err := read(fd, text[n:])
		if err != nil {
			s.fail(prefix+".gitignore", err)
			return f, false
		}
		if m == 0 {
			break
		}
		n += m
	}
	if s.ignore+n > maxIgnoreBytes {
		s.fail(prefix+".gitignore", unix.EFBIG)
		return f, false
	}
	s.ignore += n
	return ignoreFile{rules: readIgnore(string(text[:n])), below: len(prefix)}, true
}

// directory searches one directory and what is below it. It closes d, unless that is the root.
func (s *searcher) directory(d Dir, rel string, depth uint64) {
	below := s.inside(d, rel, depth)
	if d.FD != s.top.FD {
		unix.Close(d.FD)
	}
	defer s.pass(below)
	for _, name := range below {
		inner := strings.TrimPrefix(rel+"/"+name, "/")
		if s.over() {
			return
		}
		next, err := s.view.openBelow(s.top, inner)
		if err != nil {
			s.fail(join(s.root, inner), err)
			continue
		}
		if next.Kind == Ordinary && s.view == nil {
			next.Kind, _ = KindOf(next.FD)
		}
		if next.Kind != Ordinary && s.top.Kind == Ordinary {
			unix.Close(next.FD)
			continue
		}
		files, size := len(s.ignores), s.ignore
		s.directory(next, inner, depth+1)
		s.ignores, s.ignore = s.ignores[:files], size
	}
}

// pass takes names off those that wait.
func (s *searcher) pass(names []string) {
	for _, name := range names {
		s.waiting -= len(name) + entryAllowance
	}
}

// inside looks at the names in a directory, and returns the directories to enter, which wait.
func (s *searcher) inside(d Dir, rel string, depth uint64) (below []string) {
	path := join(s.root, rel)
	if rel == "" {
		path = s.root
	}
	names, err := s.sorted(d)
	if err != nil {
		s.fail(path, err)
		return nil
	}
	real := join(join(s.real, rel), "")
	if rel == "" {
		real = join(s.real, "")
	}
	if _, has := slices.BinarySearch(names, ".gitignore\x00"+string(rune(unix.DT_REG))); has && !s.o.NoIgnore {
		if f, ok := s.ignoreFile(d, real); ok {
			s.ignores = append(s.ignores, f)
		}
	}
	for _, entry := range names {
		name, kind := entry[:len(entry)-2], entry[len(entry)-1]
		if name[0] == '.' && !s.o.Hidden || name == ".git" && !s.o.NoIgnore {
			continue
		}
		if s.over() {
			return below
		}
		if s.visited == s.o.MaxFiles {
			s.stop(SearchedFiles)
			return below
		}
		s.visited++
		whole, inner := join(path, name), strings.TrimPrefix(rel+"/"+name, "/")
		if !utf8.ValidString(name) {
			s.fail(lossy(whole), ErrNotUTF8)
			continue
		}
		if ignored(s.ignores, real+name, kind == unix.DT_DIR, s.over) {
			continue
		}
		if kind == unix.DT_DIR && s.globs.enter(inner, s.over) {
			if depth < s.o.MaxDepth {
				below = append(below, name)
				s.waiting += len(name) + entryAllowance
			} else {
				s.miss(SearchedDepth)
			}
		}
		if !s.globs.take(inner, kind == unix.DT_DIR, s.over) || s.full {
			continue
		}
		switch {
		case s.lines == nil:
			s.list(whole, kind)
		case kind == unix.DT_REG:
			if fd, err := s.view.openSource(d, name); err != nil {
				s.fail(whole, err)
			} else {
				s.read(fd, whole)
			}
		}
	}
	return below
}

// sorted returns the names in a directory, sorted, each followed by a NUL and its type. Of a huge directory
// it keeps as many as may wait.
func (s *searcher) sorted(d Dir) (names []string, err error) {
	size, left := 0, maxSearchNames-s.waiting
	for !s.over() {
		ok, err := s.names.fill(d.FD)
		if err != nil {
			return nil, err
		}
		if !ok {
			break
		}
		for name, kind := range s.names.all {
			if !s.view.shows(d, name, kind) {
				continue
			}
			if kind == unix.DT_UNKNOWN {
				var st unix.Stat_t
				if fstatAt(d.FD, string(name), &st, unix.AT_SYMLINK_NOFOLLOW) == nil {
					kind = kindOf(&st)
				}
			}
			names = append(names, string(name)+string([]byte{0, kind}))
			size += len(name) + entryAllowance
		}
		for size > left && len(names) > 1 {
			// The half that is sorted last would be looked at last.
			s.miss(SearchedFiles)
			slices.Sort(names)
			names = slices.Clone(names[:len(names)/2])
			size = 0
			for _, name := range names {
				size += len(name) - 2 + entryAllowance
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
