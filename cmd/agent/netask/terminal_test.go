package netask

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/protocol"
)

// TestTypedForTheCommand: nothing answers a question that was typed before it, or that is a letter
// typed for a command which has taken the terminal out of its lines.
func TestTypedForTheCommand(t *testing.T) {
	t.Parallel()
	ptmx, tty := pseudoterminal(t)
	types := func(text string) {
		if _, err := ptmx.WriteString(text); err != nil {
			t.Error(err)
		}
	}
	a := newAsker(tty)
	defer a.close()
	asked := func(host string, answers ...string) string {
		t.Helper()
		chosen := make(chan string)
		go func() {
			var answer protocol.PolicyAnswer
			err := a.answer(t.Context(), "", &protocol.PolicyRequestParams{Request: protocol.PolicyRequest{Host: host}}, &answer)
			chosen <- fmt.Sprint(answer.Decision.Type, err)
		}()
		for _, text := range answers {
			readUntil(t, ptmx, "? ")
			types(text)
		}
		return <-chosen
	}
	types("y\n")
	for n := 0; n < len("y\n"); n, _ = unix.IoctlGetInt(int(tty.Fd()), unix.TIOCINQ) {
	}
	readUntil(t, ptmx, "\n") // the echo
	if got := asked("before.example", "n\n"); got != "deny<nil>" {
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
	if got := asked("letter.example", "append\n", "no\r"); got != "deny<nil>" {
		t.Errorf("letters without Enter: %s", got)
	}
	if got := asked("yes.example", "a\n"); got != "allow<nil>" {
		t.Errorf("an answer: %s", got)
	}
}

// pseudoterminal returns both sides of a terminal.
func pseudoterminal(t *testing.T) (ptmx, tty *os.File) {
	t.Helper()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ptmx.Close() })
	n, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ptmx, tty
}

func readUntil(t *testing.T, from *os.File, end string) {
	t.Helper()
	var seen strings.Builder
	for b := make([]byte, 1); !strings.HasSuffix(seen.String(), end); {
		if _, err := from.Read(b); err != nil {
			t.Error(err)
			return
		}
		seen.Write(b)
	}
}
