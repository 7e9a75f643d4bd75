package paths

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestTerminal: a terminal in the place of a file does not become the controlling one of a program
// that has none.
func TestTerminal(t *testing.T) {
	const variable = "PATHS_TERMINAL"
	if terminal := os.Getenv(variable); terminal != "" {
		rig.Is(t, rig.Err(ReadRegular(terminal, 4)), ErrNotRegular, "")
		rig.Is[error](t, rig.Err(os.Open("/dev/tty")), syscall.ENXIO, "the controlling terminal")
		return
	}
	t.Parallel()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	defer master.Close()
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	rig.Must(t, err)
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTerminal$")
	again.Env = append(os.Environ(), fmt.Sprintf("%s=/dev/pts/%d", variable, number))
	again.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if out, err := again.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
