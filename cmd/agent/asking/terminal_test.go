package asking

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
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
	return New(tty), ptmx, tty
}

func types(t *testing.T, ptmx *os.File, text string) {
	t.Helper()
	if _, err := ptmx.WriteString(text); err != nil {
		t.Error(err)
	}
}

// sees reads what is on the screen up to a text.
func sees(t *testing.T, ptmx *os.File, end string) string {
	t.Helper()
	var seen strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(seen.String(), end); {
		if _, err := ptmx.Read(b); err != nil {
			t.Errorf("waiting for %q: %v", end, err)
			return ""
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
		if err := <-done; err != nil {
			t.Error(err)
		}
		return line
	}
	types(t, ptmx, "yes\n")
	for n := 0; n < len("yes\n"); n, _ = unix.IoctlGetInt(int(tty.Fd()), unix.TIOCINQ) {
	}
	sees(t, ptmx, "\n") // the echo
	if got := asked("no\n"); got != "no" {
		t.Errorf("what was typed before the question: %s", got)
	}
	raw, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	raw.Lflag &^= unix.ICANON | unix.ECHO
	if err := unix.IoctlSetTermios(int(tty.Fd()), unix.TCSETS, raw); err != nil {
		t.Fatal(err)
	}
	if got := asked("append\n", "no\r"); got != "no" {
		t.Errorf("letters without Enter: %s", got)
	}
	if got := asked("yes\n"); got != "yes" {
		t.Errorf("an answer: %s", got)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
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
		done <- a.Ask(ctx, []string{"yes? "}, func(line string) bool { return line == "yes\n" })
	}
	go ask(ctx)
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "yes") // without Enter
	sees(t, ptmx, "yes")  // the echo
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("the question has ended with %v", err)
	}
	sees(t, ptmx, strings.TrimSpace(Withdrawn))
	go ask(t.Context())
	sees(t, ptmx, "yes? ")
	types(t, ptmx, "\n")
	sees(t, ptmx, "yes? ") // it is no answer, and asked again
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, ErrNobody) {
		t.Errorf("the question has ended with %v", err)
	}
	if err := a.Ask(t.Context(), nil, nil); !errors.Is(err, ErrNobody) {
		t.Errorf("a question at a closed terminal: %v", err)
	}
}
