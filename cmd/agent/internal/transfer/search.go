package transfer

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/protocol"
)

// Search says what is looked for, and how it is printed.
type Search struct {
	Params   protocol.SearchParams
	Names    bool // of files alone, although there is a pattern
	Numbers  bool // of lines
	Quiet    bool // print nothing
	Null     bool // a zero byte ends each path
	JSON     bool
	Terminal bool // quote names that would control a terminal
}

// Found says how a search went.
type Found struct {
	Matches bool    // there are some
	Trouble []error // what could not be read, and bounds
}

// foundFile is a file in JSON.
type foundFile struct {
	Path string            `json:"path"`
	Kind protocol.FileKind `json:"kind"`
}

// foundLine is a line in JSON.
type foundLine struct {
	Path string `json:"path"`
	protocol.SearchMatch
}

// Find writes the paths that a search finds below directories. The caller sees to it that nothing steers a
// terminal ([program.Harmless]).
func (f *Files) Find(ctx context.Context, w io.Writer, dirs []string, s Search) (found Found, err error) {
	s.Names = true
	return f.search(ctx, w, dirs, s)
}

// Grep writes the lines that a search finds, as grep(1) does; see [Files.Find].
func (f *Files) Grep(ctx context.Context, w io.Writer, names []string, s Search) (found Found, err error) {
	return f.search(ctx, w, names, s)
}

func (f *Files) search(ctx context.Context, w io.Writer, names []string, s Search) (found Found, err error) {
	out := searchOutput{Search: s, w: bufio.NewWriter(w), files: []foundFile{}, lines: []foundLine{}}
	for _, name := range names {
		r, err := f.Client.FS(nil).Search(ctx, f.at(name), s.Params)
		if err != nil {
			if _, refused := errors.AsType[*client.ServerError](err); !refused {
				return found, err
			}
			found.Trouble = append(found.Trouble, Explain(strings.TrimPrefix(name, ":"), err))
			continue
		}
		root := f.at(name)
		shown := func(path string) string {
			rest := strings.TrimPrefix(strings.TrimPrefix(path, root), "/")
			switch given := strings.TrimPrefix(name, ":"); {
			case rest == "":
				return given
			case given == "":
				return rest
			default:
				return strings.TrimSuffix(given, "/") + "/" + rest
			}
		}
		named := len(names) > 1 || len(r.Files) != 1 || r.Files[0].Path != root
		for _, file := range r.Files {
			found.Matches = true
			out.file(shown(file.Path), file, named)
		}
		for _, e := range r.Errors {
			found.Trouble = append(found.Trouble, fmt.Errorf("%s: %s", filecopy.Quote(shown(e.Path)), e.Message))
		}
		asked := r.Truncated == protocol.SearchedDepth && *s.Params.MaxDepth < protocol.MaxSearchDepth
		if r.Truncated != "" && !asked {
			where := filecopy.Quote(cmp.Or(shown(root), "."))
			found.Trouble = append(found.Trouble, fmt.Errorf("%s: not everything was found: %s", where, boundText[r.Truncated]))
		}
		if s.Quiet && found.Matches {
			break
		}
	}
	return found, out.end()
}

// boundText says which bound was reached.
var boundText = map[string]string{
	protocol.SearchedMatches: "there are too many matches",
	protocol.SearchedFiles:   "there are too many files",
	protocol.SearchedDepth:   "directories are nested too deeply",
	protocol.SearchedTime:    "it took too long",
	protocol.SearchedSize:    "the answer has become too large",
	protocol.SearchedLine:    "of a line of more than 1 MiB only the first was searched",
}

// searchOutput prints what was found.
type searchOutput struct {
	Search
	w     *bufio.Writer
	files []foundFile
	lines []foundLine
	last  string // the file of the last line
	line  uint64 // its number
}

// name returns a path as it is printed.
func (o *searchOutput) name(path string) string {
	if o.Terminal {
		return filecopy.Quote(path)
	}
	return path
}

// file prints a file. named: its name stands before each line.
func (o *searchOutput) file(path string, file protocol.SearchedFile, named bool) {
	switch {
	case o.Quiet:
	case o.JSON && o.Names:
		o.files = append(o.files, foundFile{path, file.Kind})
	case o.JSON:
		for _, m := range file.Matches {
			o.lines = append(o.lines, foundLine{path, m})
		}
	case o.Null:
		fmt.Fprintf(o.w, "%s\x00", path)
	case o.Names:
		fmt.Fprintln(o.w, o.name(path))
	default:
		for i := range file.Matches {
			o.match(path, &file.Matches[i], named)
		}
	}
}

// match prints a line and those around it. A line -- stands where lines are left out.
func (o *searchOutput) match(path string, m *protocol.SearchMatch, named bool) {
	first := m.Line - uint64(len(m.Before))
	around := o.Params.Before != nil && *o.Params.Before > 0 || o.Params.After != nil && *o.Params.After > 0
	if around && o.line > 0 && (path != o.last || first > o.line+1) {
		fmt.Fprintln(o.w, "--")
	}
	print := func(number uint64, mark, text string) {
		if named {
			fmt.Fprint(o.w, o.name(path), mark)
		}
		if o.Numbers {
			fmt.Fprint(o.w, number, mark)
		}
		fmt.Fprintln(o.w, text)
		o.last, o.line = path, number
	}
	for i, text := range m.Before {
		print(first+uint64(i), "-", text)
	}
	text := m.Text
	if m.TextColumn > 1 {
		text = "..." + text
	}
	if m.Cut {
		text += "..."
	}
	print(m.Line, ":", text)
	for i, text := range m.After {
		print(m.Line+1+uint64(i), "-", text)
	}
}

// end prints what is left.
func (o *searchOutput) end() error {
	var err error
	switch {
	case o.Quiet || !o.JSON:
	case o.Names:
		err = program.PrintJSON(o.w, o.files)
	default:
		err = program.PrintJSON(o.w, o.lines)
	}
	if err == nil {
		err = o.w.Flush()
	}
	if err != nil {
		return &writeError{err}
	}
	return nil
}
