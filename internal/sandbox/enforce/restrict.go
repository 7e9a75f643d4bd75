package enforce

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/sandbox"
	landlock "github.com/landlock-lsm/go-landlock/landlock/syscall"
	"golang.org/x/sys/unix"
)

// LandlockABI returns the version of the kernel's Landlock ABI, or 0 if the kernel has no
// Landlock.
func LandlockABI() int {
	abi, err := landlock.LandlockGetABIVersion()
	if err != nil {
		return 0
	}
	return abi
}

// RestrictThread sets no_new_privs and restricts, by the ruleset, the calling thread
// and everything that it forks or executes. The caller must be locked to the thread.
// Paths are left out if they are missing, if this user cannot reach them, or if they
// contain a symbolic link now. This allows less than the ruleset. Any other error leaves
// the thread unrestricted, though no_new_privs may be set. A ruleset that handles nothing
// is an error.
func RestrictThread(r sandbox.Ruleset) error {
	fd, err := open(r)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := setNoNewPrivs(); err != nil {
		return err
	}
	if err := landlock.LandlockRestrictSelf(fd, 0); err != nil {
		return fmt.Errorf("restricting by landlock: %w", err)
	}
	return nil
}

// RestrictProcess does what RestrictThread does, for all threads of this process.
// The caller need not be locked to its thread.
func RestrictProcess(r sandbox.Ruleset) error {
	fd, err := open(r)
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
		if err := landlock.LandlockRestrictSelf(fd, unix.LANDLOCK_RESTRICT_SELF_TSYNC); err != nil {
			return fmt.Errorf("restricting all threads by landlock: %w", err)
		}
		return nil
	}
	// An older kernel restricts thread by thread. Each thread gets a domain of its
	// own: all have the same rules, but no thread is in the domain of another.
	if err := landlock.AllThreadsPrctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("setting no_new_privs on all threads: %w", err)
	}
	if err := landlock.AllThreadsLandlockRestrictSelf(fd, 0); err != nil {
		return fmt.Errorf("restricting all threads by landlock: %w", err)
	}
	return nil
}

// open creates the ruleset in the kernel. The caller closes the descriptor.
func open(r sandbox.Ruleset) (fd int, err error) {
	if r.FS == 0 && r.Scoped == 0 {
		return -1, errors.New("making a landlock ruleset: it handles nothing")
	}
	// The struct may be longer than the struct of an old kernel if the part that the
	// kernel does not know is zero. It is zero, because the ruleset was made for the
	// kernel's ABI.
	fd, err = landlock.LandlockCreateRuleset(&landlock.RulesetAttr{HandledAccessFS: r.FS, Scoped: r.Scoped}, 0)
	if err != nil {
		return -1, fmt.Errorf("making a landlock ruleset: %w", err)
	}
	for _, rule := range r.Rules {
		if err := add(fd, rule); err != nil {
			unix.Close(fd)
			return -1, fmt.Errorf("allowing %s in a landlock ruleset: %w", rule.Path, err)
		}
	}
	return fd, nil
}

// add puts a rule into the ruleset. For a rule with exceptions it descends to the
// exceptions. The directories on the way get at most the right to be listed. Their entries
// that are not exceptions and contain none get the rights of the rule.
func add(ruleset int, r sandbox.PathRule) error {
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
		inner := sandbox.PathRule{Path: filepath.Join(r.Path, entry.Name()), Rights: r.Rights}
		for _, except := range r.Except {
			if except == inner.Path {
				continue next
			}
			if pathname.Below(except, inner.Path) {
				inner.Except = append(inner.Except, except)
			}
		}
		if err := add(ruleset, inner); err != nil {
			return err
		}
	}
	return nil
}

// fileRights are the rights that a rule for anything but a directory may have. The kernel
// refuses other rights in such a rule.
const fileRights = unix.LANDLOCK_ACCESS_FS_EXECUTE | unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE |
	unix.LANDLOCK_ACCESS_FS_TRUNCATE | unix.LANDLOCK_ACCESS_FS_IOCTL_DEV | unix.LANDLOCK_ACCESS_FS_RESOLVE_UNIX

// addPath allows the rights on the file or directory at the path.
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
	if err := landlock.LandlockAddPathBeneathRule(ruleset, &landlock.PathBeneathAttr{AllowedAccess: rights, ParentFd: fd}, 0); err != nil {
		return fmt.Errorf("adding %s: %w", path, err)
	}
	return nil
}
