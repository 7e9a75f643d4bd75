package confine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A supervised command has no /dev/shm of its own, as one in a view has. Its
// supervisor leads it to a directory in the host's /dev/shm instead. The agent
// makes and removes that: the supervisor's ceiling lets it write in the
// directory, and not remove it.

const (
	shmDir    = "/dev/shm"
	shmPrefix = "execagent-shm-" // of the names of such directories
)

// makeShm makes a directory for the shared memory of a command. The caller calls
// free once nothing of the command runs any more. Where there is no /dev/shm that
// can be written the command has none, which is no error: dir is "" then.
func makeShm() (dir string, free func(), err error) {
	dir, err = os.MkdirTemp(shmDir, shmPrefix)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return "", func() {}, nil
	}
	if err != nil {
		return "", nil, err
	}
	// The lock says that the directory is in use. It ends with the agent, however
	// that ends.
	held, err := lockShm(dir)
	if err != nil {
		return "", nil, errors.Join(err, os.Remove(dir))
	}
	return dir, sync.OnceFunc(func() {
		_ = os.RemoveAll(dir) // what is left stays in the way of nobody
		_ = held.Close()
	}), nil
}

// lockShm locks the directory, and fails at once if somebody else has locked it.
func lockShm(dir string) (*os.File, error) {
	held, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "flock", Path: dir, Err: err}, held.Close())
	}
	return held, nil
}

// sweepShm removes the directories that agents of this user have left when they
// were killed.
func sweepShm() {
	entries, err := os.ReadDir(shmDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), shmPrefix) || !e.IsDir() {
			continue
		}
		dir := filepath.Join(shmDir, e.Name())
		if held, err := lockShm(dir); err == nil {
			_ = os.RemoveAll(dir) // those of other users stay
			_ = held.Close()
		}
	}
}
