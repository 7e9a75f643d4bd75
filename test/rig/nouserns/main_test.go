package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// The tests' own program takes the part of the launcher, or of the program that it executes, when
// this variable says so.
const part = "NOUSERNS_PART"

func TestMain(m *testing.M) {
	switch os.Getenv(part) {
	case "launcher":
		_ = os.Setenv(part, "probe")
		main()
	case "probe":
		_ = json.NewEncoder(os.Stdout).Encode(probe())
		os.Exit(0)
	}
	syscall.Umask(0o022) // other users execute what tests write
	os.Exit(m.Run())
}

// probed is what a program sees of how it was launched.
type probed struct {
	Refused map[string]string // calls, with their errors
	Status  map[string]string // members of proc_pid_status(5)
	UID     int
}

// probe makes calls that would change nothing if they were allowed.
func probe() probed {
	p := probed{Refused: map[string]string{}, Status: map[string]string{}, UID: os.Getuid()}
	for name, call := range map[string][]uintptr{
		"unshare": {unix.SYS_UNSHARE}, "setns": {unix.SYS_SETNS, ^uintptr(0)}, "mount": {unix.SYS_MOUNT}, "chroot": {unix.SYS_CHROOT},
		"pivot_root": {unix.SYS_PIVOT_ROOT}, "pidfd_getfd": {unix.SYS_PIDFD_GETFD, ^uintptr(0)}, "clone3": {unix.SYS_CLONE3},
		// Of two flags that exclude each other, so that it fails in any case.
		"clone with CLONE_NEWUSER": {unix.SYS_CLONE, unix.CLONE_NEWUSER | unix.CLONE_FS},
		"clone":                    {unix.SYS_CLONE, unix.CLONE_THREAD},
		"ptrace":                   {unix.SYS_PTRACE, unix.PTRACE_PEEKDATA, 1},
		"listener":                 {unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER},
		"landlock":                 {unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION},
	} {
		call = append(call, make([]uintptr, 4-len(call))...)
		if _, _, errno := unix.Syscall(call[0], call[1], call[2], call[3]); errno != 0 {
			p.Refused[name] = unix.ErrnoName(errno)
		}
	}
	status, _ := os.ReadFile("/proc/thread-self/status")
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		if slices.Contains([]string{"CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd", "NoNewPrivs", "Groups"}, name) {
			p.Status[name] = strings.TrimSpace(value)
		}
	}
	return p
}

// TestLaunch: what a launched program may not do any more.
func TestLaunch(t *testing.T) {
	t.Parallel()
	const none = "0000000000000000"
	for _, tt := range []struct {
		flags    []string
		uid      int
		landlock string // the error of its calls
		listener string // the error of asking for one, without a filter
		ptrace   string // the error of a request about a process that is not traced
	}{
		{nil, os.Getuid(), "", "EFAULT", "ESRCH"},
		{[]string{"-no-landlock"}, os.Getuid(), "ENOSYS", "EFAULT", "ESRCH"},
		{[]string{"-no-listener"}, os.Getuid(), "", "EBUSY", "ESRCH"},
		{[]string{"-no-trace"}, os.Getuid(), "", "EFAULT", "EPERM"},
		{[]string{"-uid", "1000"}, 1000, "", "EFAULT", "ESRCH"},
	} {
		t.Run(fmt.Sprint(tt.flags), func(t *testing.T) {
			t.Parallel()
			if os.Getuid() != 0 && tt.uid != os.Getuid() {
				t.Skip("only root can become somebody else")
			}
			got := launched(t, tt.flags...)
			want := map[string]string{
				"unshare": "EPERM", "setns": "EPERM", "mount": "EPERM", "chroot": "EPERM", "pivot_root": "EPERM", "pidfd_getfd": "EPERM",
				"clone3": "ENOSYS", "clone with CLONE_NEWUSER": "EPERM", "clone": "EINVAL", "landlock": tt.landlock,
				"listener": tt.listener, "ptrace": tt.ptrace,
			}
			for name, errno := range want {
				if name == "landlock" && errno == "" {
					continue // the kernel's own answer
				}
				rig.Is(t, got.Refused[name], errno, "%s", name)
			}
			for _, set := range []string{"CapPrm", "CapEff", "CapInh", "CapAmb", "CapBnd"} {
				rig.Is(t, got.Status[set] == none || set == "CapBnd" && os.Getuid() != 0, true, "%s is %s", set, got.Status[set])
			}
			rig.Is(t, got.Status["NoNewPrivs"], "1", "no_new_privs")
			rig.Is(t, got.UID, tt.uid, "uid")
			rig.Is(t, tt.uid == 1000 && got.Status["Groups"] != "", false, "the groups %q are left", got.Status["Groups"])
		})
	}
}

// launched launches the probe and returns what it has seen.
func launched(t *testing.T, flags ...string) probed {
	t.Helper()
	self := rig.Value(os.Executable())
	// go test keeps its programs where only their user may read.
	program := rig.Value(os.ReadFile(self))
	dir := rig.Value(os.MkdirTemp("", "nouserns"))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "probe")
	rig.Must(t, rig.WriteProgram(path, program), os.Chmod(dir, 0o755))
	cmd := exec.CommandContext(t.Context(), path, append(flags, "--", path)...)
	cmd.Env = append(os.Environ(), part+"=launcher")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	rig.Must(t, err)
	var got probed
	rig.Must(t, json.Unmarshal(out, &got))
	return got
}
