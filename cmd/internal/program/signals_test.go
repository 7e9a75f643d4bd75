package program

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

const stops = 1000

// In the child of TestStopsOnce this is the first thread. It blocks the signal, as the thread of package
// signal does if it is the first. So the kernel keeps the signal although it is ignored.
func init() {
	if os.Getenv("STOPS") == "" {
		return
	}
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &unix.Sigset_t{Val: [16]uint64{1 << (syscall.SIGTTIN - 1)}}, nil)
	done := make(chan bool)
	go func() {
		for range stops {
			Stop(syscall.SIGTTIN, true)
		}
		close(done)
	}()
	<-done
	os.Exit(0)
}

// TestStopsOnce: a program that stops itself is stopped until a shell continues it, and not once more.
func TestStopsOnce(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(rig.Value(os.Executable()))
	cmd.Env, cmd.SysProcAttr = []string{"STOPS=1"}, &syscall.SysProcAttr{Setpgid: true}
	rig.Must(t, cmd.Start())
	status, n := syscall.WaitStatus(0), 0
	for ; rig.Value(syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil)) > 0 && status.Stopped(); n++ {
		rig.Must(t, cmd.Process.Signal(syscall.SIGCONT))
	}
	rig.Is(t, n, stops, "stops")
}
