package supervise

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// place is where a path of a call leads to. It owns its descriptors, also that of
// the directory in which the path began.
type place struct {
	fsops.Place
	start int // -1: none
}

// close gives the descriptors back.
func (p *place) close() {
	p.Close()
	if p.start >= 0 {
		unix.Close(p.start)
		p.start = -1
	}
}

// find finds what path leads to for the caller. A relative path begins in the
// directory that the caller's descriptor dir is of, or in the working directory if
// that is AT_FDCWD. It is no error when the last name is missing. An empty path is
// ENOENT; where the call has AT_EMPTY_PATH it means [request.object]. The caller of
// find holds the lock names, which [request.answer] takes, and closes the place.
//
// This is the last look at the caller's descriptors: find also tells, by errGone,
// that the caller does not wait any more.
func (r *request) find(dir int, path string, how fsops.Lookup) (place, error) {
	switch {
	case path == "":
		return place{}, r.there(unix.ENOENT)
	case path[0] == '/':
		if err := r.there(nil); err != nil {
			return place{}, err
		}
		found, err := r.n.paths.Resolve((*reading)(r), r.n.paths.Base(), path, how)
		return place{Place: found, start: -1}, err
	}
	at, err := r.hold(dir)
	if err != nil {
		return place{}, err
	}
	found, err := r.findAt(at, path, how)
	if err != nil {
		unix.Close(at)
	}
	return place{Place: found, start: at}, err
}

// findAt finds what the relative path leads to that begins at the descriptor at.
func (r *request) findAt(at int, path string, how fsops.Lookup) (fsops.Place, error) {
	d, st, err := r.n.dir(at)
	if err != nil {
		return fsops.Place{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fsops.Place{}, unix.ENOTDIR
	}
	return r.n.paths.Resolve((*reading)(r), d, path, how)
}

// object finds the object that the caller's descriptor fd is of, or, for AT_FDCWD,
// the working directory. All else is as for find.
func (r *request) object(fd int) (place, error) {
	own, err := r.hold(fd)
	if err != nil {
		return place{}, err
	}
	d, st, err := r.n.dir(own)
	if err != nil {
		unix.Close(own)
		return place{}, err
	}
	if d.FD == own && d.Kind == fsops.Ordinary {
		return place{Place: fsops.Place{Dir: d, Stat: st, In: fsops.Dir{FD: -1}}, start: -1}, nil
	}
	found, err := r.n.paths.Resolve((*reading)(r), d, "", 0)
	if err != nil {
		unix.Close(own)
	}
	return place{Place: found, start: own}, err
}

// hold opens what the caller's descriptor is of, or the working directory, with
// O_PATH.
func (r *request) hold(fd int) (own int, err error) {
	if fd == unix.AT_FDCWD {
		own, err = r.cwd()
	} else {
		own, err = r.descriptor(fd)
	}
	if gone := r.there(nil); gone != nil {
		if err == nil {
			unix.Close(own)
		}
		return -1, gone
	}
	return own, err
}

// dir returns the object that fd is of as one in which paths may begin, and
// what fstat(2) tells of fd.
//
// Of an object without a path, such as a pipe or a file that exists only in memory,
// everything may be done: only its descriptor leads to it. An object that has been
// removed has the suffix " (deleted)"; so may the name of one that has not. Both
// readings are asked about, and nothing can be below a directory that has been
// removed. A directory that no path leads to any more is denied.
func (n *Notifier) dir(fd int) (d fsops.Dir, st unix.Stat_t, err error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return fsops.Dir{}, st, errnoOf(err)
	}
	if err := unix.Fstat(fd, &st); err != nil {
		return fsops.Dir{}, st, err
	}
	const unreachable = "(unreachable)"
	switch {
	case strings.HasPrefix(path, unreachable):
		return fsops.Dir{FD: fd, Path: path, Access: fsops.Denied}, st, nil
	case path[0] != '/' || st.Dev == n.memory:
		return fsops.Dir{FD: fd, Path: strings.TrimPrefix(path, "/"), Access: fsops.Write}, st, nil
	}
	path, foreign := n.shm.inside(path)
	if path == devShm && n.shm.inUse() {
		fd = n.shm.fd // the host's may be the caller's working directory
	}
	if d, err = n.paths.At(fd, path); err != nil {
		return d, st, err
	}
	if before, ok := strings.CutSuffix(path, " (deleted)"); ok {
		d.Access = min(d.Access, n.access(before))
	}
	if foreign {
		// Below it nothing can be named: those names mean the private directory.
		d.Path, d.Access = "host:"+path, min(fsops.Access(n.config.Policy.Access(path)), fsops.Read)
	}
	if n.denies(path, st.Mode) {
		d.Access = min(d.Access, fsops.Denied)
	}
	return d, st, nil
}

// denies tells whether a glob denies the object with that path and mode.
func (n *Notifier) denies(path string, mode uint32) bool {
	return mode&unix.S_IFMT != unix.S_IFDIR && n.config.Policy.DeniesFile(strings.TrimSuffix(path, " (deleted)"))
}

// target finds what the path of an argument leads to, which has to exist. With
// empty, an empty path or none is the object that the descriptor dir is of. follow
// follows a link at the end.
func (r *request) target(dir, pathArg int, empty, follow bool) (place, error) {
	path := ""
	if !empty || r.pointer(pathArg) != 0 {
		var err error
		if path, err = r.path(pathArg); err != nil {
			return place{}, r.there(err)
		}
	}
	if empty && path == "" {
		return r.object(dir)
	}
	var how fsops.Lookup
	if follow {
		how = fsops.FollowLast
	}
	p, err := r.find(dir, path, how)
	if err == nil && !p.Exists() {
		p.close()
		err = unix.ENOENT
	}
	return p, err
}
