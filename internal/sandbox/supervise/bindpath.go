package supervise

import (
	"cmp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// A supervisor binds a name in the file system itself: in the caller's working
// directory, under its umask, and as the command has written the name, since
// getsockname(2) tells the command that name later. So the kernel looks the whole
// path up once more. Three things keep it from coming to another directory than
// the one that was judged:
//
//   - the lock names is held alone meanwhile, so the command can move and replace
//     nothing on the way
//   - the kernel is asked before which directory the path leads to from here. A
//     magic link of procfs, behind which other objects are for the supervisor than
//     for the command, is refused; so is any other difference
//   - the supervisor's ceiling: outside the writable roots it can make no socket
//
// The working directory is that of the whole process. All other calls here use
// descriptors and absolute paths.

// workingDir is held while the working directory of this process is a caller's.
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
		return err
	}
	if err := p.leadsHere(path); err != nil {
		return err
	}
	return r.underUmask(func() error { return p.from(func() error { return errOrNil(a.bind()) }) })
}

// leadsHere returns nil if the kernel finds the directory of the name, when this
// process looks the path up.
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

// from calls do while the working directory of this process is the one in which the
// path of the name began.
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
		_ = unix.Chdir("/") // any directory will do that is not the command's
	}
	return err
}
