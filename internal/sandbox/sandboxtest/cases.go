package sandboxtest

import (
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// A Case is one of a table that is a text file. Its parts are lists of lines.
type Case struct {
	Name  string
	Parts [][]string
}

// Cases reads a table whose cases are the sections of a file, see [rig.Sections], with a number of
// parts in each. Lines "---" divide the parts, and empty lines say nothing.
func Cases(t testing.TB, file string, parts int) (all []Case) {
	t.Helper()
	for _, section := range rig.Sections(t, file) {
		c := Case{section.Name, make([][]string, 1, parts)}
		for line := range strings.Lines(section.Text) {
			switch line = strings.TrimSpace(line); line {
			case "":
			case "---":
				c.Parts = append(c.Parts, nil)
			default:
				last := len(c.Parts) - 1
				c.Parts[last] = append(c.Parts[last], line)
			}
		}
		if len(c.Parts) != parts {
			t.Fatalf("%s: %s has %d parts, want %d", file, c.Name, len(c.Parts), parts)
		}
		all = append(all, c)
	}
	return all
}
