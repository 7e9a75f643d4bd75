package applypatch

import (
	"iter"
	"path/filepath"
	"strings"
)

// maxPatch bounds a patch, in bytes.
const maxPatch = 64 << 20

// maxParts bounds the hunks and chunks of one patch together, and the lines that one chunk
// expects. The least one has five bytes in the patch, and some twenty times that in memory.
const maxParts = 1 << 20

// Kind is what a hunk does with a file.
type Kind uint8

// The kinds of hunks, in the order in which the tool lists them.
const (
	Add Kind = iota
	Update
	Delete
)

// Patch is a patch read by [Parse]: its hunks in order. They hold pieces of the text of the patch.
type Patch struct {
	hunks []hunk
}

// Files returns how many files the patch names, counted at each mention.
func (p *Patch) Files() int { return len(p.hunks) }

// Paths returns the names of all files that the patch reads or changes.
func (p *Patch) Paths() (all []string) {
	for _, h := range p.hunks {
		all = append(all, h.path)
		if h.moveTo != "" {
			all = append(all, h.moveTo)
		}
	}
	return all
}

// hunk is the part of a patch about one file.
type hunk struct {
	kind   Kind
	path   string
	moveTo string // the new name, "" for none
	added  lines  // of Add: the content, each line behind a "+"
	chunks []chunk
}

// chunk is one place in an updated file.
type chunk struct {
	context string // a line before the place, "" for none
	body    lines
	atEnd   bool // the lines are the last ones of the file

	// Counts of the body, so that it need not be counted again.
	olds, news                 int
	lastOldEmpty, lastNewEmpty bool
}

// lines are lines of a patch, with their marks and line ends.
type lines string

// all yields each line without its end, and its mark: ' ' for a line that stays, '-' for one that
// goes, '+' for one that comes.
func (l lines) all() iter.Seq2[byte, string] {
	return func(yield func(mark byte, text string) bool) {
		for rest := string(l); rest != ""; {
			var line string
			line, rest, _ = strings.Cut(rest, "\n")
			line = strings.TrimRight(line, "\r")
			mark := byte(' ') // an empty line is one that stays
			if line != "" {
				mark, line = line[0], line[1:]
			}
			if !yield(mark, line) {
				return
			}
		}
	}
}

// old returns the lines that c expects to find.
func (c *chunk) old() []string {
	old := make([]string, 0, c.olds)
	for mark, text := range c.body.all() {
		if mark != '+' {
			old = append(old, text)
		}
	}
	return old
}

// count notes a line of the body.
func (c *chunk) count(mark byte, empty bool) {
	if mark != '+' {
		c.olds++
		c.lastOldEmpty = empty
	}
	if mark != '-' {
		c.news++
		c.lastNewEmpty = empty
	}
}

// Change is a file that a patch has changed.
type Change struct {
	Kind Kind
	// Path is the path in the patch; for a moved file, the new one.
	Path string
	// Name is the absolute path.
	Name string
	// From is the absolute path that the file had before it was moved, "" if it was not.
	From string
}

// Summary returns the tool's output for changes: the added files, then the changed ones, then the
// removed ones.
func Summary(changes []Change) string {
	var b strings.Builder
	b.WriteString("Success. Updated the following files:\n")
	for kind, letter := range []byte{Add: 'A', Update: 'M', Delete: 'D'} {
		for _, c := range changes {
			if c.Kind == Kind(kind) {
				b.WriteByte(letter)
				b.WriteByte(' ')
				b.WriteString(c.Path)
				b.WriteByte('\n')
			}
		}
	}
	return b.String()
}

// absolute returns the path of name below dir, by its text alone, without looking at links.
func absolute(dir, name string) string {
	if filepath.IsAbs(name) {
		return filepath.Clean(name)
	}
	return filepath.Join(dir, name)
}
