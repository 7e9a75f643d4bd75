package fsops

import (
	"cmp"
	"errors"

	"golang.org/x/sys/unix"
)

// maxOpenDirs is how many directories of one branch are held open at once.
const maxOpenDirs = 64

// errMoved ends an operation if its directory is no longer where it was entered,
// or its file no longer has its name. Somebody moved it, so continuing would work
// on another tree or file.
var errMoved = errors.New("directory was moved during the operation")

// dirStack is a chain of directories, each a child of the one before. The
// outermost and the innermost directories are held open, so depth costs no
// descriptors. The others are opened again through "..", and must be the same
// as before.
type dirStack struct {
	dirs []stackDir
}

type stackDir struct {
	Dir // its fd is -1 when not held open
	id  fileID
}

// push enters d, which the stack owns from now on, also on error.
func (s *dirStack) push(d Dir) error {
	var st unix.Stat_t
	if err := fstat(d.FD, &st); err != nil {
		unix.Close(d.FD)
		return err
	}
	s.dirs = append(s.dirs, stackDir{Dir: d, id: idOf(&st)})
	if i := len(s.dirs) - 1 - maxOpenDirs; i > 0 {
		unix.Close(s.dirs[i].FD)
		s.dirs[i].FD = -1
	}
	return nil
}

// top is the innermost directory.
func (s *dirStack) top() stackDir { return s.dirs[len(s.dirs)-1] }

// pop leaves the innermost directory. It reports whether the parent had to be
// opened again; reading then starts from its first name.
func (s *dirStack) pop() (reopened bool, err error) {
	inner := s.top()
	s.dirs = s.dirs[:len(s.dirs)-1]
	defer unix.Close(inner.FD)
	if len(s.dirs) == 0 || s.top().FD >= 0 {
		return false, nil
	}
	fd, err := openAt(inner.FD, "..", dirFlags|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, err
	}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil || idOf(&st) != s.top().id {
		unix.Close(fd)
		return false, cmp.Or(err, errMoved)
	}
	s.dirs[len(s.dirs)-1].FD = fd
	return true, nil
}

// close leaves all directories.
func (s *dirStack) close() {
	for _, d := range s.dirs {
		if d.FD >= 0 {
			unix.Close(d.FD)
		}
	}
	s.dirs = nil
}
