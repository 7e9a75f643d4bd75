package fsops_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// TestHostHidesItself: no operation gives out what procfs shows of this process's memory, environment and
// descriptors, or of a child's that runs the same program, however a path leads there. All else of procfs
// stays readable.
func TestHostHidesItself(t *testing.T) {
	const marker = "FSOPS_TEST_CHILD"
	if os.Getenv(marker) != "" {
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	t.Parallel()
	self := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$")
	self.Env = append(os.Environ(), marker+"=1")
	other := exec.CommandContext(t.Context(), "cat")
	for _, cmd := range []*exec.Cmd{self, other} {
		in := rig.Value(cmd.StdinPipe())
		rig.Must(t, cmd.Start())
		defer func() { rig.Must(t, in.Close()); _ = cmd.Wait() }()
	}
	file := rig.Value(os.Open("/etc/passwd"))
	defer file.Close()
	fd, pid, tid := fmt.Sprint("/proc/self/fd/", file.Fd()), fmt.Sprint("/proc/", os.Getpid()), fmt.Sprint("/proc/", unix.Gettid())
	root := tree(t, "l -> /proc/self/environ", "fd -> "+fd, "m -> l2", "l2 -> /dev/fd/../maps", "d/", "up -> ../../../../../../../../..")
	var group fsops.WatchGroup
	defer group.Close()
	read := func(path string) error {
		return rig.Err(fsops.ReadFile(t.Context(), host, path, fsops.FollowLinks, nil))
	}
	walk := func(root string) error {
		found, err := host.Walk(t.Context(), root, fsops.WalkOptions{MaxDepth: 2, MaxDirectories: 100, MaxEntries: 10_000})
		for _, failed := range found.Errors {
			err = errors.Join(err, failed.Err)
		}
		return err
	}
	for _, path := range []string{
		"/proc/self/environ", pid + "/mem", tid + "/smaps_rollup", pid + "/task" + tid[len("/proc"):] + "/auxv", "/proc/self/root/proc/self/environ",
		fd, strings.Replace(fd, "fd", "fdinfo", 1), root + "/l", root + "/fd", root + "/m", fmt.Sprint("/proc/", self.Process.Pid, "/environ"),
	} {
		rig.Is(t, errors.Is(read(path), unix.EACCES), true, "%s is refused", path)
	}
	for name, err := range map[string]error{
		"no link":          rig.Err(host.OpenRead(t.Context(), pid+"/mem", fsops.RefuseLinks)),
		"writing":          rig.Err(host.OpenWrite(t.Context(), "/proc/self/mem", fsops.Writing{})),
		"writing a name":   rig.Err(host.OpenWrite(t.Context(), "/proc/self/comm", fsops.Writing{})),
		"writing a fd":     rig.Err(host.OpenWrite(t.Context(), fd, fsops.Writing{})),
		"a copy":           host.Copy(t.Context(), pid+"/maps", root+"/copy", false),
		"a copy onto":      host.Copy(t.Context(), "/proc/version", pid+"/mem", false),
		"a copied link":    host.Copy(t.Context(), fd, root+"/copy", false),
		"a copied folder":  host.Copy(t.Context(), pid+"/fdinfo", root+"/copies", true),
		"a list":           rig.Err(host.ReadDirectory(t.Context(), "/dev/fd", false)),
		"a walk's root":    walk(pid + "/map_files"),
		"in a walk":        walk(pid),
		"metadata":         rig.Err(host.Stat(t.Context(), fd, fsops.FollowLinks)),
		"a canonical path": rig.Err(host.Canonicalize(t.Context(), fd, false)),
		"a watch":          rig.Err(fsops.WatchMissing(&group, []string{pid + "/fd/9999"}, "")),
	} {
		rig.Is(t, errors.Is(err, unix.EACCES), true, "%s: %v", name, err)
	}
	for _, path := range []string{
		"/proc/self/status", "/proc/self/mountinfo", "/proc/mounts", tid + "/stat", "/proc/self/root/etc/passwd", "/proc/sys/kernel/ostype", "/proc/version",
		fmt.Sprint("/proc/", other.Process.Pid, "/environ"), fmt.Sprint("/proc/", other.Process.Pid, "/root/etc/passwd"), root + "/up/etc/passwd",
	} {
		rig.Is(t, read(path), nil, "%s", path)
	}
	rig.Is(t, rig.Err(os.Lstat(root+"/copy")) != nil, true, "nothing was copied")
}
