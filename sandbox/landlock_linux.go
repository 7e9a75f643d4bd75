package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// LandlockABI is the version that the kernel speaks; 0 without Landlock.
func LandlockABI() int {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return 0
	}
	return int(abi)
}

// RestrictThread sets no_new_privs and restricts the calling thread, to which
// the caller must be locked, and what it forks or executes. Paths that are
// missing, that this user cannot reach, or that a symbolic link now leads to,
// are left out, which allows less; any other error leaves the thread as it was,
// but for no_new_privs. A ruleset that handles nothing is an error.
func (r Ruleset) RestrictThread() error {
	fd, err := r.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("restricting by landlock: %w", errno)
	}
	return nil
}

// RestrictProcess is RestrictThread for all threads of this process. Before
// ABI 8 the runtime does it thread by thread, which a build with cgo cannot:
// the error then wraps ENOTSUP.
func (r Ruleset) RestrictProcess() error {
	fd, err := r.open()
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if LandlockABI() >= 8 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := setNoNewPrivs(); err != nil {
			return err
		}
		if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), unix.LANDLOCK_RESTRICT_SELF_TSYNC, 0); errno != 0 {
			return fmt.Errorf("restricting all threads by landlock: %w", errno)
		}
		return nil
	}
	if _, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0); errno != 0 {
		return fmt.Errorf("setting no_new_privs on all threads: %w", errno)
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_LANDLOCK_RESTRICT_SELF, uintptr(fd), 0, 0); errno != 0 {
		return fmt.Errorf("restricting all threads by landlock: %w", errno)
	}
	return nil
}

// open makes the ruleset in the kernel; the caller closes the descriptor.
func (r Ruleset) open() (fd int, err error) {
	if r.FS == 0 {
		return -1, errors.New("making a landlock ruleset: it handles nothing")
	}
	// Only what is not zero may be longer than the kernel's struct, so an old
	// kernel takes this as well.
	attr := unix.LandlockRulesetAttr{Handled_access_fs: r.FS, Scoped: r.Scoped}
	n, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr), 0)
	if errno != 0 {
		return -1, fmt.Errorf("making a landlock ruleset: %w", errno)
	}
	fd = int(n)
	for _, rule := range r.Rules {
		if err := rule.add(fd); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("allowing %s in a landlock ruleset: %w", rule.Path, err)
		}
	}
	return fd, nil
}

// add puts the rule into the ruleset.
func (r PathRule) add(ruleset int) error {
	if len(r.Except) == 0 {
		return addPath(ruleset, r.Path, r.Rights)
	}
	if err := addPath(ruleset, r.Path, r.Rights&unix.LANDLOCK_ACCESS_FS_READ_DIR); err != nil {
		return err
	}
	entries, err := os.ReadDir(r.Path)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, os.ErrPermission) {
		return nil
	} else if err != nil {
		return err
	}
next:
	for _, entry := range entries {
		inner := PathRule{Path: filepath.Join(r.Path, entry.Name()), Rights: r.Rights}
		for _, except := range r.Except {
			if except == inner.Path {
				continue next
			}
			if liesBelow(except, inner.Path) {
				inner.Except = append(inner.Except, except)
			}
		}
		if err := inner.add(ruleset); err != nil {
			return err
		}
	}
	return nil
}

// addPath allows the rights on what is at the path.
func addPath(ruleset int, path string, rights uint64) error {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES:
		return nil
	default:
		return fmt.Errorf("opening %s: %w", path, err)
	}
	defer unix.Close(fd)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fmt.Errorf("looking at %s: %w", path, err)
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
	case unix.S_IFLNK:
		return nil
	default:
		rights &= fileRights
	}
	if rights == 0 {
		return nil
	}
	attr := unix.LandlockPathBeneathAttr{Allowed_access: rights, Parent_fd: int32(fd)}
	_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, uintptr(ruleset), unix.LANDLOCK_RULE_PATH_BENEATH,
		uintptr(unsafe.Pointer(&attr)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("adding %s: %w", path, errno)
	}
	return nil
}
