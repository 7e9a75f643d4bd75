package programs

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

var inRoot = flag.String("root", "", "run in this root directory, which needs the right to mount; programs that it lacks are failures")

const (
	// rootTools is where our programs are in a root directory.
	rootTools = "/opt/execagent"
	// entered says that the process has a mount namespace of its own, to enter the root in.
	entered = "PROGRAMS_ENTERED"
)

// TestMain runs the tests in the root directory that a flag names.
func TestMain(m *testing.M) {
	flag.Parse()
	syscall.Umask(0o022) // what programs make is compared with its mode
	if *inRoot == "" {
		code := m.Run()
		_ = os.RemoveAll(tools.dir)
		os.Exit(code)
	}
	if os.Getenv(entered) == "" {
		os.Exit(relaunch())
	}
	if err := enter(*inRoot); err != nil {
		fmt.Fprintln(os.Stderr, "entering", *inRoot+":", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// relaunch installs our programs in the root directory and runs the tests again, in a mount
// namespace. All threads of a process that is started in one are in it.
func relaunch() (code int) {
	err := rig.Outside(context.Background(), func(t rig.T) {
		dir := filepath.Join(*inRoot, rootTools)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatalf("%w", err)
		}
		if err := install(t, dir); err != nil {
			t.Fatalf("%w", err)
		}
		cmd := rig.Leash(exec.CommandContext(t.Context(), "/proc/self/exe", os.Args[1:]...))
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.Env = append(os.Environ(), entered+"=1")
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWNS
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = max(exit.ExitCode(), 1)
		} else if err != nil {
			t.Fatalf("%w", err)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// enter makes a directory the root of this process.
func enter(root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, m := range []struct {
		source, target, kind string
		flags                uintptr
		data                 string
	}{
		{root, "", "", unix.MS_BIND, ""},
		{"/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"/sys", "/sys", "", unix.MS_BIND | unix.MS_REC, ""},
		{"proc", "/proc", "proc", 0, ""},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
	} {
		if err := unix.Mount(m.source, root+m.target, m.kind, m.flags, m.data); err != nil {
			return &os.PathError{Op: "mount", Path: root + m.target, Err: err}
		}
	}
	if err := os.Chdir(root); err != nil {
		return err
	}
	// The old root is mounted over the new one, and taken off again (pivot_root(2)).
	if err := unix.PivotRoot(".", "."); err != nil {
		return os.NewSyscallError("pivot_root", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return os.NewSyscallError("umount2", err)
	}
	for name, value := range map[string]string{"PATH": "/usr/local/bin:/usr/bin:/bin", "TMPDIR": "/tmp"} {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return os.Chdir("/")
}
