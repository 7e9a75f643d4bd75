package sandboxtest

import (
	"os"
	"strings"
	"testing"
)

// A Case is one of a table that is a text file. Its parts are lists of lines.
type Case struct {
	Name  string
	Parts [][]string
}

// Cases reads a table with a number of parts in each case. Lines "# NAME" begin the cases, and lines
// "---" divide the parts. Empty lines, and the lines before the first case, say nothing.
func Cases(t testing.TB, file string, parts int) []Case {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []Case
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		name, begins := strings.CutPrefix(line, "# ")
		switch {
		case begins:
			all = append(all, Case{name, make([][]string, 1, parts)})
		case line == "" || len(all) == 0:
		case line == "---":
			c := &all[len(all)-1]
			c.Parts = append(c.Parts, nil)
		default:
			c := &all[len(all)-1]
			last := len(c.Parts) - 1
			c.Parts[last] = append(c.Parts[last], line)
		}
	}
	for _, c := range all {
		if len(c.Parts) != parts {
			t.Fatalf("%s: %s has %d parts, want %d", file, c.Name, len(c.Parts), parts)
		}
	}
	return all
}
