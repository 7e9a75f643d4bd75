package supervise

import (
	"cmp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// A supervisor binds a name in the file system itself: in the caller's working
// directory, under its umask, and as the command wrote the name, because
// getsockname(2) later returns that name to the command. So the kernel looks up
// the whole path again. Three things ensure that it finds the judged directory:
//
//   - the lock names is held exclusively, so the command can move and replace
//     nothing on the way
//   - the supervisor first asks the kernel for the directory that the path leads
//     to from here. It refuses a magic link of procfs, which leads the supervisor
//     to other objects than the command, and any other difference
//   - the supervisor's ceiling: outside the writable roots it can make no socket
//
// The working directory belongs to the whole process. All other calls here use
// descriptors and absolute paths.

// workingDir is held while this process has the working directory of a caller.
var workingDir sync.Mutex

// bindPath binds the path in a.
func (r *request) bindPath(a *address) error {
	if len(a.sockaddr) == 2 {
		return unix.EPERM // the kernel would choose an abstract name
	}
	path, _, err := unixPath(a.sockaddr)
	if err != nil {
		return err
	}
	p, err := r.nameAt(unix.AT_FDCWD, path, 0)
	if err != nil {
		return err
	}
	defer p.close()
	switch {
	case p.dots != "" || p.Exists():
		return unix.EADDRINUSE
	case p.slash:
		return unix.ENOENT
	}
	if err := r.n.paths.Creatable(&p.Place, false); err != nil {
		r.n.note(refusals.Create, p.Path)
		return err
	}
	if err := p.leadsHere(path); err != nil {
		return err
	}
	err = r.underUmask(func() error { return p.from(func() error { return errOrNil(a.bind()) }) })
	if err == nil {
		r.n.noteChange(p.In.Path, p.Path)
	}
	return err
}

// leadsHere returns nil if the kernel finds the directory of the name when this
// process looks up the path.
func (n *name) leadsHere(path string) error {
	start := n.start
	if start < 0 {
		start = unix.AT_FDCWD // the path is absolute
	}
	parent := path[:strings.LastIndexByte(path, '/')+1]
	parent = cmp.Or(parent, ".")
	fd, err := unix.Openat2(start, parent, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var found, judged unix.Stat_t
	if err := unix.Fstat(fd, &found); err != nil {
		return err
	}
	if err := unix.Fstat(n.In.FD, &judged); err != nil {
		return err
	}
	if found.Dev != judged.Dev || found.Ino != judged.Ino {
		return unix.EACCES
	}
	return nil
}

// from calls do while the working directory of this process is the directory in
// which the path of the name began.
func (n *name) from(do func() error) error {
	if n.start < 0 {
		return do()
	}
	workingDir.Lock()
	defer workingDir.Unlock()
	own, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(own)
	if err := unix.Fchdir(n.start); err != nil {
		return err
	}
	err = do()
	if back := unix.Fchdir(own); back != nil {
		_ = unix.Chdir("/") // any directory that is not the command's
	}
	return err
}
