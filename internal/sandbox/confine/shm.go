package confine

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A supervised command has no /dev/shm of its own, unlike a command in a view.
// Its supervisor leads it to a directory in the host's /dev/shm instead. The
// agent makes and removes the directory, because the supervisor's ceiling
// allows writing in the directory, but not removing it.

const (
	shmDir    = "/dev/shm"
	shmPrefix = "execagent-shm-" // of the names of such directories
	// maxShmTries is how often a new directory may be taken away by others.
	maxShmTries = 10
)

// makeShm makes a directory in parent, for the shared memory of a command. The caller calls
// free once no process of the command runs any more. If parent is not writable,
// the command has none, which is no error: dir is then "".
func makeShm(parent string) (dir string, free func(), err error) {
	var held *os.File
	for try := 0; held == nil; try++ {
		dir, err = os.MkdirTemp(parent, shmPrefix)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			return "", func() {}, nil
		}
		if err != nil {
			return "", nil, err
		}
		// The lock says that the directory is in use. It ends with the agent, however
		// that ends. Another agent that sweeps can be faster, and take the new
		// directory for an abandoned one.
		if held, err = lockShm(dir); err != nil {
			_ = os.Remove(dir) // if it still exists
			if try == maxShmTries {
				return "", nil, err
			}
		}
	}
	return dir, sync.OnceFunc(func() {
		_ = removeShm(dir) // the rest does no harm
		_ = held.Close()
	}), nil
}

// lockShm locks the directory, and fails at once if another agent has locked or
// removed it.
func lockShm(dir string) (*os.File, error) {
	held, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "flock", Path: dir, Err: err}, held.Close())
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(held.Fd()), &st); err != nil || st.Nlink == 0 {
		return nil, errors.Join(&fs.PathError{Op: "flock", Path: dir, Err: cmp.Or(err, fs.ErrNotExist)}, held.Close())
	}
	return held, nil
}

// removeShm removes the directory and everything that a command left in it. The
// command may have removed mode bits, also of the directory, and made trees deeper
// than any path is long. So deeper directories are moved up, and removed there. No
// process of the command runs any more, and only this user can enter the directory.
func removeShm(dir string) error {
	top, err := openAnyway(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer top.Close()
	at, moved := int(top.Fd()), 0
	for {
		names, err := namesIn(top)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return os.Remove(dir)
		}
		for _, name := range names {
			if unix.Unlinkat(at, name, 0) == nil {
				continue
			}
			if err := moveUp(at, name, &moved); err != nil {
				return err
			}
			if err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR); err != nil {
				return err
			}
		}
	}
}

// moveUp empties the directory name in the directory top: directories get names
// in top, and everything else is removed. moved counts the directories.
func moveUp(top int, name string, moved *int) error {
	dir, err := openAnyway(top, name)
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := namesIn(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if unix.Unlinkat(int(dir.Fd()), name, 0) == nil {
			continue
		}
		below, err := openAnyway(int(dir.Fd()), name) // only a writable directory can be moved
		if err != nil {
			return err
		}
		_ = below.Close()
		for err = unix.EEXIST; err == unix.EEXIST; *moved++ {
			err = unix.Renameat2(int(dir.Fd()), name, top, fmt.Sprint("moved-", *moved), unix.RENAME_NOREPLACE)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// openAnyway opens the directory name in the directory at, after giving its owner
// all rights.
func openAnyway(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	own := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := os.Chmod(own, 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(own, os.O_RDONLY|unix.O_DIRECTORY, 0)
}

// namesIn lists the directory from its start.
func namesIn(dir *os.File) ([]string, error) {
	if _, err := dir.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return dir.Readdirnames(-1)
}

// shmParent returns the directory in which directories for commands are made: the agent's private
// one if it is in /dev/shm, because there no other command can see or change them, even if its
// policy grants it /dev/shm.
func (d *Door) shmParent() string {
	if filepath.Dir(d.StateDir) == shmDir {
		return d.StateDir
	}
	return shmDir
}

// sweepShm removes the directories in parent that killed agents of this user left.
func sweepShm(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), shmPrefix) || !e.IsDir() {
			continue
		}
		dir := filepath.Join(parent, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(dir, &st); err != nil || int(st.Uid) != os.Geteuid() {
			continue // uid 0 could remove another user's directory
		}
		if st.Mode&unix.S_IRUSR == 0 {
			_ = os.Chmod(dir, 0o700) // no other user can replace it: /dev/shm has the sticky bit, and another parent is private
		}
		if held, err := lockShm(dir); err == nil {
			_ = removeShm(dir)
			_ = held.Close()
		}
	}
}
