package hold

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// StateDirs are the usual candidates for StateDir, best first: what is in
// /dev/shm can be seen by no sandbox that has no grant on it, for each has a /dev
// of its own, and costs no disk.
func StateDirs() []string {
	uid := strconv.Itoa(os.Geteuid())
	dirs := []string{"/dev/shm/execagent-" + uid}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "execagent"))
	}
	return append(dirs, "/run/execagent-"+uid, "/tmp/execagent-"+uid)
}

// StateDir returns the first of the candidates, which are absolute paths, that
// is a directory of ours alone, or can be made one: it belongs to our effective
// user, nobody else may enter it, and its name is no symlink. Every agent of a
// user has to choose the same one, and pass it as Profile.Private wherever it
// is. The error says why each was refused.
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
		return fmt.Errorf("state directory %s has mode %#o, which lets others in", dir, st.Mode&0o777)
	}
	// Made once, filled at every start: a read-only file system shows here.
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return &os.PathError{Op: "access", Path: dir, Err: err}
	}
	return nil
}
