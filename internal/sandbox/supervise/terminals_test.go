package supervise

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestTerminalEnded: the number of a terminal that has ended means no terminal of
// the command any more, whoever has it next.
func TestTerminalEnded(t *testing.T) {
	t.Parallel()
	var known knownTerminals
	master, number, err := newPTY()
	if err != nil {
		t.Skip(err)
	}
	rig.Must(t, known.note(ptyPath(number)))
	var st unix.Stat_t
	rig.Check(t, unix.Stat(ptyPath(number), &st))
	rig.Is(t, known.has(&st), true, "the terminal is known")
	unix.Close(master)
	// A child that another test starts may still have the master until it executes its program.
	rig.Until(t, "the terminal that has ended is not known", func() bool { return !known.has(&st) })
	// Those that have ended do not count.
	for range 520 {
		master, number, err := newPTY()
		rig.Must(t, err, known.note(ptyPath(number)))
		unix.Close(master)
	}
}
