package protocol

import (
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/strictjson"
)

// MethodFSSearch finds names, or lines of files (rpc.md 8.10), an addition to the reference.
const MethodFSSearch = "fs/search"

// Bounds of a search. Each option that has a default is at most its maximum.
const (
	MaxSearchGlobs         = 64
	maxSearchGlob          = 512  // bytes
	maxSearchPattern       = 4096 // bytes
	MaxSearchContext       = 100
	DefaultSearchMatches   = 1000
	MaxSearchMatches       = 10_000
	DefaultSearchFiles     = 100_000
	MaxSearchFiles         = 1_000_000
	MaxSearchDepth         = 256 // and the default
	DefaultSearchLineBytes = 512
	MaxSearchLineBytes     = 16 << 10
	DefaultSearchMs        = 10_000
	MaxSearchMs            = 300_000
)

// SearchParams look for names, or with a pattern for lines of files, below Path or in the file Path. Of the
// bounds, nil is the default.
type SearchParams struct {
	Path PathURI `json:"path"`
	// Globs choose names, as lines of a .gitignore: the last one that matches decides, and one with "!" leaves
	// names out. Braces stand for alternatives.
	Globs []string `json:"globs,omitempty"`
	// Pattern is a regular expression of RE2, or text with Literal. nil: only names are looked for.
	Pattern    *string `json:"pattern,omitempty"`
	Literal    bool    `json:"literal,omitempty"`
	IgnoreCase bool    `json:"ignoreCase,omitempty"`
	Hidden     bool    `json:"hidden,omitempty"`   // also names that begin with a dot
	NoIgnore   bool    `json:"noIgnore,omitempty"` // also what a .gitignore names
	// Kind is the only kind that is listed without a pattern; nil: all.
	Kind   *FileKind `json:"kind,omitempty"`
	Before *uint64   `json:"before,omitempty"` // lines before a match; nil: 0
	After  *uint64   `json:"after,omitempty"`  // lines after a match; nil: 0

	MaxMatches     *uint64  `json:"maxMatches,omitempty"`     // files, or lines with a pattern
	MaxFileMatches *uint64  `json:"maxFileMatches,omitempty"` // lines of one file; nil: MaxMatches
	MaxFiles       *uint64  `json:"maxFiles,omitempty"`       // names that are looked at
	MaxDepth       *uint64  `json:"maxDepth,omitempty"`
	MaxLineBytes   *uint64  `json:"maxLineBytes,omitempty"` // of a line that are shown
	TimeoutMs      *uint64  `json:"timeoutMs,omitempty"`
	Sandbox        *Sandbox `json:"sandbox,omitempty"`
}

// FileKind is what a file is. Links are not followed.
type FileKind string

// The kinds.
const (
	KindFile      FileKind = "file"
	KindDirectory FileKind = "directory"
	KindSymlink   FileKind = "symlink"
	KindOther     FileKind = "other"
)

func fileKind(o *strictjson.Object, name string) FileKind {
	return FileKind(o.OneOf(name, string(KindFile), string(KindDirectory), string(KindSymlink), string(KindOther)))
}

func (p *SearchParams) UnmarshalObject(o *Object) {
	p.Path = pathMember(o, "path")
	if o.Has("globs") {
		p.Globs = []string{}
		o.ParseEach("globs", func(glob string) error {
			if len(p.Globs) == MaxSearchGlobs {
				return fmt.Errorf("is one too many, at most %d", MaxSearchGlobs)
			}
			p.Globs = append(p.Globs, glob)
			return lengthOf(glob, maxSearchGlob)
		})
	}
	if o.Has("pattern") {
		o.Parse("pattern", func(pattern string) error {
			p.Pattern = &pattern
			return lengthOf(pattern, maxSearchPattern)
		})
	}
	p.Literal, p.IgnoreCase = o.OptBool("literal", false), o.OptBool("ignoreCase", false)
	p.Hidden, p.NoIgnore = o.OptBool("hidden", false), o.OptBool("noIgnore", false)
	if o.Has("kind") {
		p.Kind = new(fileKind(o, "kind"))
	}
	p.Before, p.After = optWithin(o, "before", 0, MaxSearchContext), optWithin(o, "after", 0, MaxSearchContext)
	p.MaxMatches = optWithin(o, "maxMatches", 1, MaxSearchMatches)
	p.MaxFileMatches = optWithin(o, "maxFileMatches", 1, MaxSearchMatches)
	p.MaxFiles = optWithin(o, "maxFiles", 1, MaxSearchFiles)
	p.MaxDepth = optWithin(o, "maxDepth", 0, MaxSearchDepth)
	p.MaxLineBytes = optWithin(o, "maxLineBytes", 1, MaxSearchLineBytes)
	p.TimeoutMs = optWithin(o, "timeoutMs", 1, MaxSearchMs)
	p.Sandbox = sandbox(o)
}

// lengthOf refuses an empty text, and one that is longer than most bytes.
func lengthOf(text string, most int) error {
	switch {
	case text == "":
		return errors.New("is empty")
	case len(text) > most:
		return fmt.Errorf("%d bytes are more than %d", len(text), most)
	}
	return nil
}

// optWithin reads an integer within bounds. It returns nil if the member is absent or null.
func optWithin(o *strictjson.Object, name string, least, most uint64) *uint64 {
	n := o.OptUint64(name)
	if n != nil && (*n < least || *n > most) {
		o.Fail(name, "%d is not %d to %d", *n, least, most)
	}
	return n
}

// The bounds that [SearchResult.Truncated] names.
const (
	SearchedMatches = "matches"
	SearchedFiles   = "files"
	SearchedDepth   = "depth"
	SearchedTime    = "time"
	SearchedSize    = "size" // of the answer
	SearchedLine    = "line" // of a long line only the beginning was searched
)

// SearchResult answers fs/search. Paths are native; they become URIs on the wire.
type SearchResult struct {
	// Root is as in [WalkResult].
	Root   PathURI
	Files  []SearchedFile // sorted by path
	Errors []WalkError
	// Truncated names a bound that was reached, so that something is missing; "": nothing is.
	Truncated string
	// FilesRead counts files whose lines were searched, BinaryFiles those that were skipped.
	FilesRead, BinaryFiles uint64
}

// SearchedFile is a file that was found. It has matches if there is a pattern.
type SearchedFile struct {
	Path    string
	Kind    FileKind
	Matches []SearchMatch
}

// SearchMatch is a line that matches.
type SearchMatch struct {
	Line uint64 `json:"line"` // from 1
	// Column is the byte of the line where the first match begins, from 1. Length is that of the match, in bytes.
	Column uint64 `json:"column"`
	Length uint64 `json:"length"`
	// Text is the line, or a part of a long one. What is not UTF-8 is U+FFFD.
	Text string `json:"text"`
	// TextColumn is the byte of the line where Text begins, from 1. Cut: the line goes on after Text.
	TextColumn uint64 `json:"textColumn"`
	Cut        bool   `json:"cut"`
	// Before and After are lines around the match that no other match has.
	Before []string `json:"before,omitempty"`
	After  []string `json:"after,omitempty"`
}

func (r *SearchResult) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"files":[`...)
	for i := range r.Files {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = r.Files[i].appendJSON(dst, r.Root)
	}
	dst = append(dst, `],"errors":[`...)
	dst = r.Root.appendErrors(dst, r.Errors)
	dst = append(dst, ']')
	if r.Truncated != "" {
		dst = appendText(dst, `,"truncated":`, r.Truncated)
	}
	dst = appendUint(dst, `,"filesRead":`, r.FilesRead)
	dst = appendUint(dst, `,"binaryFiles":`, r.BinaryFiles)
	return append(dst, '}')
}

func (f *SearchedFile) appendJSON(dst []byte, root PathURI) []byte {
	dst = root.appendBelow(append(dst, `{"path":"`...), f.Path)
	dst = appendText(dst, `","kind":`, string(f.Kind))
	if f.Matches == nil {
		return append(dst, '}')
	}
	dst = append(dst, `,"matches":[`...)
	for i := range f.Matches {
		m := &f.Matches[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendUint(dst, `{"line":`, m.Line)
		dst = appendUint(dst, `,"column":`, m.Column)
		dst = appendUint(dst, `,"length":`, m.Length)
		dst = appendText(dst, `,"text":`, m.Text)
		dst = appendUint(dst, `,"textColumn":`, m.TextColumn)
		dst = appendBool(dst, `,"cut":`, m.Cut)
		dst = appendLines(dst, `,"before":[`, m.Before)
		dst = appendLines(dst, `,"after":[`, m.After)
		dst = append(dst, '}')
	}
	return append(dst, "]}"...)
}

// appendLines appends lines, if there are any.
func appendLines(dst []byte, before string, lines []string) []byte {
	if len(lines) == 0 {
		return dst
	}
	for i, line := range lines {
		if i > 0 {
			before = ","
		}
		dst = appendText(dst, before, line)
	}
	return append(dst, ']')
}

func (r *SearchResult) SizeHint() int {
	n := 128 * len(r.Errors)
	for i := range r.Files {
		n += len(r.Files[i].Path) + 64
		for j := range r.Files[i].Matches {
			n += len(r.Files[i].Matches[j].Text) + 128
		}
	}
	return n
}

func (r *SearchResult) UnmarshalObject(o *Object) {
	o.Each("files", func(o *strictjson.Object) {
		f := SearchedFile{Path: nativeMember(o, "path"), Kind: fileKind(o, "kind")}
		if o.Present("matches") {
			f.Matches = []SearchMatch{}
			o.Each("matches", func(o *strictjson.Object) { f.Matches = append(f.Matches, searchMatch(o)) })
		}
		r.Files = append(r.Files, f)
	})
	r.Errors = walkErrors(o)
	if o.Present("truncated") {
		r.Truncated = o.OneOf("truncated", SearchedMatches, SearchedFiles, SearchedDepth, SearchedTime, SearchedSize, SearchedLine)
	}
	r.FilesRead, r.BinaryFiles = o.Uint64("filesRead"), o.Uint64("binaryFiles")
}

func searchMatch(o *strictjson.Object) SearchMatch {
	m := SearchMatch{
		Line: o.Uint64("line"), Column: o.Uint64("column"), Length: o.Uint64("length"),
		Text: o.String("text"), TextColumn: o.Uint64("textColumn"), Cut: o.Bool("cut"),
	}
	if o.Present("before") {
		m.Before = o.Strings("before")
	}
	if o.Present("after") {
		m.After = o.Strings("after")
	}
	return m
}
