package supervise

import (
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

const devShm = "/dev/shm"

// shm is a command's replacement for /dev/shm.
type shm struct {
	host string // its path; "": the command has the host's /dev/shm
	fd   int    // O_PATH
}

// openShm opens that directory, unless the policy grants the host's.
func openShm(c *Config) (shm, error) {
	if c.Shm == "" || c.Policy.Grants(devShm) {
		return shm{fd: -1}, nil
	}
	fd, err := unix.Open(c.Shm, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return shm{}, &fs.PathError{Op: "open", Path: c.Shm, Err: err}
	}
	return shm{host: c.Shm, fd: fd}, nil
}

func (s *shm) inUse() bool { return s.host != "" }

// inside returns the command's path of an object at path, the kernel's path.
// foreign reports that the object is in the host's /dev/shm, which the command does
// not have.
func (s *shm) inside(path string) (inside string, foreign bool) {
	switch {
	case !s.inUse() || path == devShm || !within(path, devShm):
		return path, false
	case within(path, s.host):
		return devShm + path[len(s.host):], false
	}
	return path, true
}

// enter replaces p, the host's /dev/shm, by the private directory.
func (s *shm) enter(p fsops.Place) (fsops.Place, error) {
	own, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return p, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(own, &st); err != nil {
		unix.Close(own)
		return p, err
	}
	unix.Close(p.FD)
	p.FD, p.Stat = own, st
	return p, nil
}
