package probe

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/sandbox"
)

// Arg is the first argument that makes the agent's executable a child of the
// probe: it calls [Main].
const Arg = "sandbox-probe"

// The tasks of a child. The task is the argument after Arg; the flags of the child's
// namespaces, its uid and its gid follow.
const (
	whatNamespaces = "namespaces"
	whatOutside    = "outside"
	whatInside     = "inside" // a child of whatOutside
	whatLandlock   = "landlock"
	whatSeccomp    = "seccomp"
	whatSupervised = "supervised"
	whatCaller     = "supervised-caller" // a child of whatSupervised
)

// Steps of a failure from which hostFacts.remedy guesses the cause.
const (
	stepCreate = "creating the namespace"
	stepMaps   = "mapping the ids"
	stepProc   = "mounting a fresh procfs"
)

// errNotRefused is the error of a layer that can be put on, but does not forbid an action
// that it must forbid.
var errNotRefused = errors.New("an action that the layer forbids succeeded")

// Main is the main of a child that [Host] started: it tries the layers that the
// arguments name and writes a report to standard output, one line of JSON. It
// returns the exit code, 0 whenever there is a report.
func Main() int {
	// The process ends by itself, because nothing kills it if the agent dies.
	time.AfterFunc(timeout, func() { os.Exit(1) })
	if len(os.Args) != 6 {
		return 1
	}
	var args [3]int
	for i := range args {
		n, err := strconv.Atoi(os.Args[3+i])
		if err != nil {
			return 1
		}
		args[i] = n
	}
	report := newReport()
	switch os.Args[2] {
	case whatNamespaces:
		report.tryNamespaces(uintptr(args[0]), args[1], args[2])
	case whatOutside:
		if report.tryOutside() {
			return 0 // the child has written a report
		}
	case whatInside:
		report.tryInside(args[0])
	case whatLandlock:
		report.tryLandlock()
	case whatSeccomp:
		report.trySeccomp()
	case whatSupervised:
		report.trySupervised()
	case whatCaller:
		return callSupervisor()
	case whatRound, whatTransparent:
		return tryRound(args[0], args[1], args[2], os.Args[2] == whatTransparent)
	}
	if err := json.NewEncoder(os.Stdout).Encode(report); err != nil {
		return 1
	}
	return 0
}

// tryNamespaces tries the namespaces of flags. This process has been started in
// them, and no id is mapped yet.
func (r *report) tryNamespaces(flags uintptr, uid, gid int) {
	r.Namespaces = namespaceIDs()
	if !r.note(sandbox.UserNS, stepMaps, linux.MapIDs(uid, gid)) {
		return
	}
	for _, n := range sandbox.Namespaces() {
		if flags&n.CloneFlag() == 0 {
			continue
		}
		switch n {
		case sandbox.MountNS:
			r.note(sandbox.MountNS, "building a read-only root", tryMounts())
		case sandbox.PIDNS:
			r.note(sandbox.PIDNS, "", nil)
			r.note(sandbox.Procfs, stepProc, tryProc())
		default:
			r.note(n, "", nil)
		}
	}
}

// tryMounts makes the kinds of mounts that a view is built of (sandbox.md 14.2).
// Afterwards a read-only clone of the root is the root of this process.
func tryMounts() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := tryTmpfs(); err != nil {
		return err
	}
	root, err := unix.OpenTree(unix.AT_FDCWD, "/", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE)
	if err != nil {
		return fmt.Errorf("cloning the root: %w", err)
	}
	defer unix.Close(root)
	readOnly := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if err := unix.MountSetattr(root, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &readOnly); err != nil {
		return fmt.Errorf("making the clone read-only: %w", err)
	}
	if err := unix.MoveMount(root, "", unix.AT_FDCWD, "/", unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mounting the clone: %w", err)
	}
	if err := unix.Fchdir(root); err != nil {
		return fmt.Errorf("entering the clone: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivoting to the clone: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detaching the old root: %w", err)
	}
	return refused(unix.Mkdir(filepath.Join("/", ownName()), 0o700), unix.EROFS)
}

// tryTmpfs makes a tmpfs, and makes sure that the tmpfs can be written to before it is
// made read-only, but not afterwards.
func tryTmpfs() error {
	config, err := unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("opening a tmpfs: %w", err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return fmt.Errorf("creating a tmpfs: %w", err)
	}
	tmpfs, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	defer unix.Close(tmpfs)
	if err := unix.Mkdirat(tmpfs, "before", 0o700); err != nil {
		return fmt.Errorf("writing to a tmpfs: %w", err)
	}
	if err := unix.MountSetattr(tmpfs, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}); err != nil {
		return fmt.Errorf("making a tmpfs read-only: %w", err)
	}
	return refused(unix.Mkdirat(tmpfs, "after", 0o700), unix.EROFS)
}

// tryProc mounts the procfs of this process's pid namespace.
func tryProc() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=ptraceable"); err != nil {
		return err
	}
	self, err := os.Readlink("/proc/self")
	if err != nil {
		return err
	}
	if self != "1" {
		return fmt.Errorf("this process has the number %s in the namespace, not 1", self)
	}
	return nil
}

// refused turns err, the result of a forbidden system call, into the result
// of the try. That is nil if the call was refused with one of the errnos in want.
func refused(err error, want ...unix.Errno) error {
	if err == nil {
		return errNotRefused
	}
	for _, errno := range want {
		if errors.Is(err, errno) {
			return nil
		}
	}
	return fmt.Errorf("trying a forbidden action: %w, not %w", err, want[0])
}

// ownName returns a file name that no other process uses.
func ownName() string { return ".agent-probe-" + strconv.Itoa(os.Getpid()) }

// tryLandlock restricts one thread and makes sure that the thread can no longer
// do actions that it could do before.
func (r *report) tryLandlock() {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		r.note(sandbox.Landlock, "asking for the ABI", errno)
		return
	}
	runtime.LockOSThread()
	dir, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if !r.note(sandbox.Landlock, "opening a directory", err) {
		return
	}
	unix.Close(dir)
	rights := sandbox.Ruleset{FS: unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR}
	if !r.note(sandbox.Landlock, "restricting a thread", enforce.RestrictThread(rights)) {
		return
	}
	_, err = unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if !r.note(sandbox.Landlock, "reading", refused(err, unix.EACCES)) {
		return
	}
	// In a directory in which this user cannot create anything without Landlock, a
	// refusal proves nothing. So several directories are tried. If a directory can be
	// created in any of them, Landlock has failed.
	for _, dir := range []string{"/", "/tmp", "/dev/shm", os.TempDir()} {
		path := filepath.Join(dir, ownName())
		if err := unix.Mkdir(path, 0o700); err == nil {
			r.note(sandbox.Landlock, "creating", errors.Join(errNotRefused, unix.Rmdir(path)))
			return
		}
	}
	r.Landlock = int(abi)
}
