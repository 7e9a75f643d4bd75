package console

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func types(t *testing.T, ptmx *os.File, text string) {
	t.Helper()
	rig.Must(t, rig.Err(ptmx.WriteString(text)))
}

// sees reads what is on the screen up to a text.
func sees(t *testing.T, ptmx *os.File, end string) string {
	t.Helper()
	var seen strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(seen.String(), end); {
		if _, err := ptmx.Read(b); err != nil {
			t.Fatalf("waiting for %q: %v", end, err)
		}
		seen.Write(b)
	}
	return seen.String()
}

// TestRows: nothing that is asked about begins a row, whatever fills the one before.
func TestRows(t *testing.T) {
	t.Parallel()
	for columns := range 100 {
		fill := strings.Repeat("é", 40) + strings.Repeat("agent: ls ", 100)
		got := strings.Split(questionText([]string{"x" + strings.Repeat(" ", columns) + fill, "yes? "}, columns), "\r\n")
		var line strings.Builder
		for i, row := range got[:len(got)-1] {
			if begin := map[bool]string{true: name, false: continued}[i == 0]; !strings.HasPrefix(row, begin) {
				t.Fatalf("%d columns: row %q", columns, row)
			} else {
				line.WriteString(strings.TrimPrefix(row, begin))
			}
			if n := utf8.RuneCountInString(row) + strings.Count(row, "é"); n >= max(columns, len(continued)+minRow+1) {
				t.Errorf("%d columns: a row of %d", columns, n)
			}
		}
		if line.String() != "x"+strings.Repeat(" ", columns)+fill || got[len(got)-1] != "agent: yes? " {
			t.Errorf("%d columns: %q", columns, got)
		}
	}
}

// TestCalm: a question is seen whatever a command has told the terminal before, and a terminal that
// understands nothing is told nothing.
func TestCalm(t *testing.T) {
	for term, want := range map[string][]string{
		"xterm": {
			"\x18\x1b\\",       // the sequence that the command has begun
			"\x1b<", "\x1b[4i", // the language of another terminal, a printer
			"\x1b[?2026l",                                                          // a picture that it holds back
			"\x1b]104\x1b\\", "\x1b]110\x1b\\", "\x1b]111\x1b\\", "\x1b]112\x1b\\", // colours by number, of letters, ground and cursor
			"\x1b]R\x1b\\", // those of the console of Linux
			"\x1b[m", "\r\x1b[J", "agent: a question\r\n",
		},
		"dumb": nil,
		"":     nil,
	} {
		t.Setenv("TERM", term)
		got := questionHeading([]string{"a question"}, 80)
		if want == nil && got != "\ragent: a question\r\n" {
			t.Errorf("TERM=%s: %q", term, got)
		}
		rest := got
		for _, part := range want {
			_, after, ok := strings.Cut(rest, part)
			rig.Is(t, ok, true, "TERM=%s: %q has %q in its place", term, got, part)
			rest = after
		}
	}
}
