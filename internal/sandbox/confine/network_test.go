package confine

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/test/rig"
)

// TestNetworkOnlyAlone: a command that is restricted in its network alone can
// get no socket from another process of its user, and can do everything else as
// before. Before ABI 6 of Landlock another ruleset has to see to that, so older
// ABIs are tried too.
func TestNetworkOnlyAlone(t *testing.T) {
	t.Parallel()
	self := rig.Value(os.Executable())
	for _, abi := range []int{2, 5, enforce.LandlockABI()} {
		root := t.TempDir()
		victim := exec.Command("sleep", "1000")
		socket, ours := socketPair(t)
		victim.ExtraFiles = []*os.File{socket}
		rig.Must(t, victim.Start())
		t.Cleanup(func() { _ = victim.Process.Kill(); _ = victim.Wait() })
		socket.Close()

		c := networkOnly(self, connectChild)
		c.backend.Landlock, c.Stdin, c.Dir = abi, true, root
		c.Env = []string{"GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
		a := &puppet{run: c.start(t)}
		a.until("ready\n")
		put(t, root+"/a/file", "old")
		put(t, root+"/b/file", "old")
		a.wantTable("others", map[string]any{"pid": victim.Process.Pid, "root": root})
		ours.Close()
	}
}

// socketPair returns a pair of connected sockets.
func socketPair(t *testing.T) (theirs, ours *os.File) {
	t.Helper()
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	return os.NewFile(uintptr(pair[0]), "socket"), os.NewFile(uintptr(pair[1]), "socket")
}

// performOnOthers does one thing in the puppet, to another process or to files.
// known is false if what is no such thing.
func performOnOthers(what string, args []string) (answer string, known bool) {
	switch what {
	case "getfd":
		pid, _ := strconv.Atoi(args[0])
		n, _ := strconv.Atoi(args[1])
		fd, err := unix.PidfdOpen(pid, 0)
		if err == nil {
			_, err = unix.PidfdGetfd(fd, n, 0)
			unix.Close(fd)
		}
		return outcome(err), true
	case "open":
		f, err := os.OpenFile(args[0], os.O_RDWR, 0)
		if err == nil {
			err = f.Close()
		}
		return outcome(err), true
	case "peek":
		pid, _ := strconv.Atoi(args[0])
		b := make([]byte, 1)
		_, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&unix.Iovec{Base: &b[0], Len: 1})), 1, 0, 0, 0)
		return outcome(errno), true
	case "signal":
		pid, _ := strconv.Atoi(args[0])
		return outcome(unix.Kill(pid, unix.SIGCONT)), true
	case "shell":
		out, err := exec.Command("sh", "-c", strings.Join(args, " ")).CombinedOutput()
		if err != nil {
			return fmt.Sprintf("%q, %v", out, err), true
		}
		return "ok", true
	}
	return "", false
}
