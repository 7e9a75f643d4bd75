package console

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// atTerminal returns a terminal, and the side of its user.
func atTerminal(t *testing.T) (terminal *Terminal, ptmx, tty *os.File) {
	t.Helper()
	ptmx, tty, err := pty.Open()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ptmx.Close() })
	terminal = NewTerminal(tty)
	terminal.pause = 0
	return terminal, ptmx, tty
}

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

// TestTypedForTheCommand: nothing answers a question that was typed before it, or that is a letter
// typed for a command which has taken the terminal out of its lines.
func TestTypedForTheCommand(t *testing.T) {
	t.Parallel()
	a, ptmx, tty := atTerminal(t)
	asked := func(answers ...string) (line string) {
		t.Helper()
		done := make(chan error)
		go func() {
			done <- a.Ask(t.Context(), []string{"a question", "yes? "}, func(text string) bool {
				line = strings.TrimSpace(text)
				return line == "yes" || line == "no"
			})
		}()
		for _, text := range answers {
			sees(t, ptmx, "yes? ")
			types(t, ptmx, text)
		}
		rig.Check(t, <-done)
		return line
	}
	types(t, ptmx, "yes\n")
	for n := 0; n < len("yes\n"); n, _ = unix.IoctlGetInt(int(tty.Fd()), unix.TIOCINQ) {
	}
	sees(t, ptmx, "\n") // the echo
	rig.Is(t, asked("no\n"), "no", "what was typed before the question")
	raw := rig.Value(unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS))
	raw.Lflag &^= unix.ICANON | unix.ECHO
	rig.Must(t, unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, raw))
	rig.Is(t, asked("append\n", "no\r"), "no", "letters without Enter")
	rig.Is(t, asked("yes\n"), "yes", "an answer")
	rig.Check(t, a.Close())
}

// TestPastedAtTerminal: a line behind which more was typed answers nothing.
func TestPastedAtTerminal(t *testing.T) {
	t.Parallel()
	a, ptmx, _ := atTerminal(t)
	done := make(chan error, 1)
	var lines []string
	go func() {
		done <- a.Ask(t.Context(), []string{"a question", "yes? "}, func(line string) bool {
			lines = append(lines, line)
			return true
		})
	}()
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "yes\nno\n")
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "no\n")
	rig.Check(t, <-done)
	rig.Same(t, "answers", []string{"no\n"}, lines)
	rig.Check(t, a.Close())
}

// TestPause: what is typed while a question cannot have been read yet answers nothing.
func TestPause(t *testing.T) {
	t.Parallel()
	a, ptmx, _ := atTerminal(t)
	a.pause = time.Hour
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- a.Ask(ctx, []string{"a question", "yes? "}, func(line string) bool {
			t.Errorf("%q was taken", line)
			return true
		})
	}()
	sees(t, ptmx, "a question")
	types(t, ptmx, "yes\n")
	sees(t, ptmx, "yes\r\n") // the echo
	why := errors.New("another question")
	cancel(why)
	rig.Is(t, <-done, why, "the question has ended with")
	rig.Check(t, a.Close())
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

// TestWithdrawn: a question that needs no answer is taken away, what was typed for it answers none
// that comes later, and the terminal can be closed while there is one.
func TestWithdrawn(t *testing.T) {
	t.Parallel()
	a, ptmx, _ := atTerminal(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the command has ended")
	done := make(chan error, 1)
	ask := func(ctx context.Context) {
		done <- a.Ask(ctx, []string{"a question", "yes? "}, func(line string) bool { return line == "yes\n" })
	}
	go ask(ctx)
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "yes") // without Enter
	sees(t, ptmx, "yes")  // the echo
	cancel(why)
	rig.Is(t, <-done, why, "the question has ended with")
	sees(t, ptmx, strings.TrimSpace(questionWithdrawn))
	go ask(t.Context())
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "\n")
	sees(t, ptmx, "yes? ") // it is no answer, and asked again
	rig.Check(t, a.Close())
	rig.Is(t, <-done, errNobody, "the question has ended with")
	rig.Is(t, a.Ask(t.Context(), nil, nil), errNobody, "a question at a closed terminal")
}

// TestCalm: a question is seen whatever a command has told the terminal before, and a terminal that
// understands nothing is told nothing.
func TestCalm(t *testing.T) {
	for term, want := range map[string][]string{
		"xterm": {
			"\x18\x1b\\",                                                           // the sequence that the command has begun
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
