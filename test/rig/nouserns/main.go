package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"golang.org/x/sys/unix"
)

func main() {
	uid := flag.Int("uid", -1, "become this user and group, without supplementary groups")
	var o options
	flag.BoolVar(&o.noLandlock, "no-landlock", false, "refuse Landlock too, as a kernel without it")
	flag.BoolVar(&o.noListener, "no-listener", false, "refuse listeners of system call filters too, as where another program has one")
	flag.BoolVar(&o.noTrace, "no-trace", false, "refuse ptrace too, as Docker did before Linux 4.8")
	flag.BoolVar(&o.onlyPidfd, "only-pidfd", false, "refuse pidfd_getfd and nothing else, and keep capabilities, as a profile that allows namespaces and forgets it")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: nouserns [flags] [--] program [argument]...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	err := launch(flag.Args(), *uid, o)
	fmt.Fprintln(os.Stderr, "nouserns:", err)
	os.Exit(126)
}

// options say what the filter refuses in addition.
type options struct{ noLandlock, noListener, noTrace, onlyPidfd bool }

// launch replaces this program by another one, and returns only if that fails.
func launch(argv []string, uid int, o options) error {
	// Capabilities, no_new_privs and filters belong to a thread. The thread that executes a program
	// remains, with its own; all other threads end.
	runtime.LockOSThread()
	if o.onlyPidfd {
		return execute(argv, onlyPidfd())
	}
	if err := dropBounding(); err != nil {
		return err
	}
	if uid >= 0 {
		if err := become(uid); err != nil {
			return err
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("dropping ambient capabilities: %w", os.NewSyscallError("prctl", err))
	}
	header, none := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, [2]unix.CapUserData{}
	if err := unix.Capset(&header, &none[0]); err != nil {
		return fmt.Errorf("dropping capabilities: %w", os.NewSyscallError("capset", err))
	}
	return execute(argv, filter(o))
}

// execute executes a program under a filter.
func execute(argv []string, program []unix.SockFilter) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("forbidding new privileges: %w", os.NewSyscallError("prctl", err))
	}
	// The program is looked up before the filter is loaded, and as its user, who must be able to
	// find it.
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	if err := load(program); err != nil {
		return err
	}
	return &os.PathError{Op: "exec", Path: path, Err: unix.Exec(path, argv, os.Environ())}
}

// dropBounding empties the bounding set, if this process may do so. Otherwise only no_new_privs
// would keep a program of uid 0 from getting its capabilities back.
func dropBounding() error {
	for capability := uintptr(0); ; capability++ {
		switch err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); {
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EPERM):
			return nil // the kernel has no such capability; this process has no CAP_SETPCAP
		case err != nil:
			return fmt.Errorf("emptying the bounding set: %w", os.NewSyscallError("prctl", err))
		}
	}
}

// become changes the user and the group to one number. No id of another user remains.
func become(id int) error {
	if err := unix.Setgroups(nil); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	if err := unix.Setresgid(id, id, id); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	return os.NewSyscallError("setresuid", unix.Setresuid(id, id, id))
}
