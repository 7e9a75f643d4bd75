package supervise

import (
	"testing"

	"golang.org/x/sys/unix"
)

// newNumberedPTY makes a pair of terminals and returns the number of the one that programs
// use, which is unlocked.
func newNumberedPTY() (master, number int, err error) {
	master, err = unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, err
	}
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return -1, 0, err
	}
	number, err = unix.IoctlGetInt(master, unix.TIOCGPTN)
	return master, number, err
}

// TestTerminalEnded: the number of a terminal that has ended means no terminal of
// the command any more, whoever has it next.
func TestTerminalEnded(t *testing.T) {
	t.Parallel()
	var known knownTerminals
	master, number, err := newNumberedPTY()
	if err != nil {
		t.Skip(err)
	}
	if err := known.Note(ptyPath(number)); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(ptyPath(number), &st); err != nil || !known.Has(&st) {
		t.Errorf("the terminal is not known, %v", err)
	}
	unix.Close(master)
	if known.Has(&st) {
		t.Error("the terminal is known after its end")
	}
	// Those that have ended do not count.
	for range 520 {
		master, number, err := newNumberedPTY()
		if err != nil {
			t.Fatal(err)
		}
		if err := known.Note(ptyPath(number)); err != nil {
			t.Fatal(err)
		}
		unix.Close(master)
	}
}
