package probe

import (
	"encoding/json"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestInside: a pid namespace is found to work only together with a user
// namespace. Without it, the process outside can be read.
func TestInside(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a pid namespace without a user namespace needs uid 0")
	}
	outside := exec.Command("sleep", "60") // the test itself has other capabilities
	rig.Must(t, outside.Start())
	t.Cleanup(func() { _, _ = outside.Process.Kill(), outside.Wait() })
	for _, tt := range []struct {
		name  string
		flags uintptr
		want  string // the step that fails
	}{
		{"both", unix.CLONE_NEWUSER | unix.CLONE_NEWPID, ""},
		{"no pid namespace", unix.CLONE_NEWUSER, "entering the namespace"},
		{"no user namespace", unix.CLONE_NEWPID, "reading environ of a process outside"},
	} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Args = []string{os.Args[0], Arg, whatInside, strconv.Itoa(outside.Process.Pid), "0", "0"}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: tt.flags}
		out, err := cmd.Output()
		rig.Must(t, err)
		var r report
		if err := json.Unmarshal(out, &r); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if failure := r.Failed[sandbox.PIDNS]; failure.Step != tt.want || r.Done[sandbox.PIDNS] != (tt.want == "") {
			t.Errorf("%s: %s", tt.name, strings.TrimSpace(string(out)))
		}
	}
}
