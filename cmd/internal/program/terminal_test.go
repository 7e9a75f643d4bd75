package program

import (
	"os"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

func TestTerminal(t *testing.T) {
	t.Parallel()
	ptmx, tty, err := pty.Open()
	rig.Must(t, err)
	defer ptmx.Close()
	defer tty.Close()
	term := NewTerminal(tty)
	if term == nil {
		t.Fatal("a terminal is not seen as one")
	}
	_, _, ok := term.Size()
	rig.Is(t, ok, false, "a terminal without a size has one")
	rig.Must(t, pty.Setsize(ptmx, &pty.Winsize{Rows: 33, Cols: 101}))
	rows, cols, ok := term.Size()
	rig.Is(t, rows == 33 && cols == 101 && ok, true, "size is %d, %d, %v", rows, cols, ok)
	before := termios(t, term)
	rig.Must(t, term.Raw())
	raw := termios(t, term)
	rig.Is(t, raw.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) == 0 && raw.Oflag&unix.OPOST == 0, true, "raw is %+v", raw)
	for range 2 {
		term.Restore()
		rig.Same(t, "restored", before, termios(t, term))
	}
}

func termios(t *testing.T, term *Terminal) unix.Termios {
	t.Helper()
	return *rig.Value(unix.IoctlGetTermios(term.fd, unix.TCGETS))
}

func TestNoTerminal(t *testing.T) {
	t.Parallel()
	null := rig.Value(os.Open(os.DevNull))
	closed := rig.Value(os.Open(os.DevNull))
	defer null.Close()
	closed.Close()
	for _, f := range []*os.File{null, closed} {
		term := NewTerminal(f)
		rig.Is(t, term, nil, "%v is a terminal", f)
		_, _, ok := term.Size()
		rig.Is(t, ok || term.Raw() != nil, false, "no terminal has a size, or cannot be left as it is")
		term.Restore()
	}
}
