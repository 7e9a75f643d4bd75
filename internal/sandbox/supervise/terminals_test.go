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
	if err := unix.Stat(ptyPath(number), &st); err != nil || !known.has(&st) {
		t.Errorf("the terminal is not known, %v", err)
	}
	unix.Close(master)
	if known.has(&st) {
		t.Error("the terminal is known after its end")
	}
	// Those that have ended do not count.
	for range 520 {
		master, number, err := newPTY()
		rig.Must(t, err)
		rig.Must(t, known.note(ptyPath(number)))
		unix.Close(master)
	}
}
