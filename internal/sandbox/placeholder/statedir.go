package placeholder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// StateDirs returns the usual candidates for StateDir, best first. /dev/shm is the
// best, because each view has its own /dev, so that no process in a view sees the
// host's /dev/shm without a grant; and it uses no disk.
func StateDirs() []string {
	uid := strconv.Itoa(os.Geteuid())
	dirs := []string{"/dev/shm/execagent-" + uid}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "execagent"))
	}
	return append(dirs, "/run/execagent-"+uid, "/tmp/execagent-"+uid)
}

// StateDir returns the first of the candidates, which are absolute paths, that
// is a directory of ours alone or could be made: it belongs to our effective
// user, nobody else may enter it, and its name is no symlink. Every agent of a
// user must choose the same directory, and name it in Profile.Private. The
// error says why each candidate was refused.
func StateDir(candidates ...string) (string, error) {
	var refused []error
	for _, dir := range candidates {
		err := ownDir(dir)
		if err == nil {
			return dir, nil
		}
		refused = append(refused, err)
	}
	return "", fmt.Errorf("no directory for the state of the sandbox: %w", errors.Join(refused...))
}

// ownDir makes dir, or finds it fit.
func ownDir(dir string) error {
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("state directory %q is not absolute", dir)
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "fstat", Path: dir, Err: err}
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("state directory %s belongs to user %d", dir, st.Uid)
	case st.Mode&0o077 != 0:
		return fmt.Errorf("state directory %s has mode %#o, so others can enter it", dir, st.Mode&0o777)
	}
	// The directory may have been made long ago, on a file system that is
	// read-only by now: say so here, and not when a ledger is made.
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	return nil
}
