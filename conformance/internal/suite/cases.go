package suite

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// A Case is one conversation with an executor.
type Case struct {
	Name string `json:"name"`
	// Area groups cases in a report.
	Area string `json:"area"`
	// Section is the page of docs/protocol that the case pins, with the section.
	Section string `json:"section"`
	// Programs are those that the case starts besides sh and the usual small tools.
	Programs []string `json:"programs"`
	// Needs are capabilities that the case needs and that its messages do not show.
	Needs []string `json:"needs"`
	// Seconds is how long the case takes, if that is more than one.
	Seconds int `json:"seconds"`
	// Root: the executor must run as root.
	Root bool `json:"root"`
	// Home: the case has an executor of its own, and the shell text Before fills its folders.
	Home   bool   `json:"home"`
	Before string `json:"before"`
	// Network: the case has servers to reach.
	Network bool   `json:"network"`
	Steps   []step `json:"steps"`

	line []byte // in which placeholders stand
}

// LoadCases reads the cases of all files of a folder, one a line.
func LoadCases(folder fs.FS) ([]*Case, error) {
	var all []*Case
	err := lines(folder, "*.jsonl", func(line []byte) error {
		c := &Case{line: line}
		all = append(all, c)
		return strictly(line, c)
	})
	return all, errors.Join(err, named(all, func(c *Case) (string, string, string) { return c.Name, c.Area, c.Section }))
}

// strictly decodes a line in which every member means something.
func strictly(line []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// lines calls use for each line of files of a folder.
func lines(folder fs.FS, pattern string, use func([]byte) error) error {
	files, err := fs.Glob(folder, pattern)
	if err != nil {
		return err
	}
	for _, file := range files {
		data, err := fs.ReadFile(folder, file)
		if err != nil {
			return err
		}
		number := 0
		for line := range bytes.Lines(data) {
			number++
			if err := use(bytes.TrimSpace(line)); err != nil {
				return fmt.Errorf("%s:%d: %w", file, number, err)
			}
		}
	}
	return nil
}

// named checks that each case has a name of its own, an area and a section.
func named[C any](cases []C, of func(C) (name, area, section string)) error {
	seen := map[string]bool{}
	for _, c := range cases {
		name, area, section := of(c)
		if name == "" || area == "" || !strings.Contains(section, ".md ") || seen[name] {
			return fmt.Errorf("case %q: it needs an area, a section and a name that no other case has", name)
		}
		seen[name] = true
	}
	return nil
}

// Expected says in which cases a program differs, and why.
type Expected struct {
	// About is the program.
	About       string `json:"about"`
	Differences []struct {
		// Case is a name, or a pattern of path.Match.
		Case string `json:"case"`
		Why  string `json:"why"`
	} `json:"differences"`
}

// ReadExpected reads a list of differences.
func ReadExpected(data []byte) (*Expected, error) {
	var e Expected
	if err := strictly(data, &e); err != nil {
		return nil, err
	}
	for _, d := range e.Differences {
		if _, err := path.Match(d.Case, ""); err != nil || d.Why == "" {
			return nil, fmt.Errorf("case %q: it needs a reason, and a pattern that can be read", d.Case)
		}
	}
	return &e, nil
}

// Of returns why a case is expected to differ; "": it is not.
func (e *Expected) Of(name string) string {
	if e != nil {
		for _, d := range e.Differences {
			if ok, _ := path.Match(d.Case, name); ok {
				return d.Why
			}
		}
	}
	return ""
}

// Unused returns the patterns that are of no case.
func (e *Expected) Unused(names []string) (patterns []string) {
	if e == nil {
		return nil
	}
	for _, d := range e.Differences {
		used := false
		for _, name := range names {
			ok, _ := path.Match(d.Case, name)
			used = used || ok
		}
		if !used {
			patterns = append(patterns, d.Case)
		}
	}
	return patterns
}
