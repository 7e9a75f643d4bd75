package supervise

import (
	"cmp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// place is the place that a path of a call leads to. It owns its descriptors.
type place struct {
	fsops.Place
	start  int         // the descriptor where a relative path began; -1: there is none
	own    bool        // start belongs to the place
	empty  bool        // the path was empty: this is the object of a descriptor
	parent fsops.Place // that complete replaced
}

// close closes the descriptors.
func (p *place) close() {
	p.Close()
	if p.parent.Name != "" {
		p.parent.Close()
	}
	if p.own {
		unix.Close(p.start)
		p.start, p.own = -1, false
	}
}

// find finds the place that path leads to for the caller. A relative path begins in
// the directory of the caller's descriptor dir, or in the working directory if dir
// is AT_FDCWD. A missing last name is no error. An empty path is ENOENT; with
// AT_EMPTY_PATH it means [request.object]. The caller of find holds the lock names,
// which [request.answer] takes, and closes the place.
//
// This is the last look at the caller's descriptors: find also returns errGone if
// the caller no longer waits.
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
	if dir == unix.AT_FDCWD {
		d, ok := r.knownCwd()
		if err := r.there(nil); err != nil {
			return place{}, err
		}
		if ok {
			found, err := r.n.paths.Resolve((*reading)(r), d, path, how)
			return place{Place: found, start: d.FD}, err
		}
	}
	own, err := r.hold(dir)
	if err != nil {
		return place{}, err
	}
	found, err := r.findAt(own, path, how)
	if err != nil {
		unix.Close(own)
		return place{}, err
	}
	return place{Place: found, start: own, own: true}, nil
}

// complete finds the object at a place that was found with Unopened.
func (r *request) complete(p *place, how fsops.Lookup) error {
	if p.In.FD < 0 || p.Exists() && (how != fsops.FollowLast || p.Stat.Mode&unix.S_IFMT != unix.S_IFLNK) {
		return nil
	}
	found, err := r.n.paths.Resolve((*reading)(r), p.In, p.Name, how)
	if err != nil {
		return err
	}
	found.Slash = found.Slash || p.Slash
	p.parent, p.Place = p.Place, found
	return nil
}

// findAt finds the place of a relative path that begins at the descriptor at.
func (r *request) findAt(at int, path string, how fsops.Lookup) (fsops.Place, error) {
	o, err := r.n.origin(at)
	if err != nil {
		return fsops.Place{}, err
	}
	if o.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return fsops.Place{}, unix.ENOTDIR
	}
	return r.n.paths.Resolve((*reading)(r), o.Dir, path, how)
}

// object finds the object of the caller's descriptor fd or, for AT_FDCWD, the
// working directory. Otherwise it is like find.
func (r *request) object(fd int) (place, error) {
	own, err := r.hold(fd)
	if err != nil {
		return place{}, err
	}
	o, err := r.n.origin(own)
	if err != nil {
		unix.Close(own)
		return place{}, err
	}
	if o.FD == own && o.Kind == fsops.Ordinary {
		return place{Place: fsops.Place{Dir: o.Dir, Stat: o.stat, In: fsops.Dir{FD: -1}}, start: -1}, nil
	}
	found, err := r.n.paths.Resolve((*reading)(r), o.Dir, "", 0)
	if err != nil {
		unix.Close(own)
		return place{}, err
	}
	return place{Place: found, start: own, own: true}, nil
}

// opened is object for a call that works on an open descriptor: a descriptor with
// O_PATH is EBADF.
func (r *request) opened(fd int) (place, error) {
	open, err := r.isOpen(fd)
	if err != nil || !open {
		return place{}, r.there(cmp.Or[error](err, unix.EBADF))
	}
	return r.object(fd)
}

// hold opens the object of the caller's descriptor, or the working directory,
// with O_PATH.
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

// origin is an object of the caller in which a path may begin.
type origin struct {
	fsops.Dir
	own  int // the descriptor that it was made from
	stat unix.Stat_t
	text string // the path, or the kernel's text for an object without a path
}

// origin returns the object of fd as an origin of paths.
//
// Everything is allowed with an object without a path, such as a pipe or a file
// that exists only in memory, because only its descriptor leads to it. The path of
// a removed object has the suffix " (deleted)", but the name of an existing object
// may have it too. So the rules are asked about both readings. Nothing can be below
// a removed directory. A directory that no path leads to any more is denied.
func (n *Notifier) origin(fd int) (origin, error) {
	o := origin{own: fd}
	var err error
	if o.text, err = n.paths.PathOf(fd); err != nil {
		return o, err
	}
	if err = unix.Fstat(fd, &o.stat); err != nil {
		return o, err
	}
	const unreachable = "(unreachable)"
	switch {
	case strings.HasPrefix(o.text, unreachable):
		o.Dir = fsops.Dir{FD: fd, Path: o.text, Access: fsops.Denied}
		return o, nil
	case o.text[0] != '/' || o.stat.Dev == n.memory:
		o.Dir = fsops.Dir{FD: fd, Path: strings.TrimPrefix(o.text, "/"), Access: fsops.Write}
		return o, nil
	}
	path, foreign := n.shm.inside(o.text)
	if path == devShm && n.shm.inUse() {
		fd = n.shm.fd // the host's /dev/shm may be the caller's working directory
	}
	if o.Dir, err = n.paths.At(fd, path); err != nil {
		return o, err
	}
	if before, ok := strings.CutSuffix(path, " (deleted)"); ok {
		o.Access = min(o.Access, n.access(before))
	}
	switch {
	case foreign:
		// Nothing below it can be named, because such names mean the private directory.
		o.Path, o.Access = hostPrefix+path, min(fsops.Access(n.config.Policy.Access(path)), fsops.Read)
	case o.Kind == fsops.Procfs && isOfOthers(path):
		// If the kernel enters directories without asking here, the caller's working
		// directory may be the directory of an outside process, or of this process,
		// which may read everything about itself.
		o.Path, o.Access = hostPrefix+path, fsops.Denied
	}
	if n.denies(path, o.stat.Mode) {
		o.Access = min(o.Access, fsops.Denied)
	}
	return o, nil
}

// hostPrefix comes before the path of an object that the command could not have
// found itself: no path can begin there, and it is not opened.
const hostPrefix = "host:"

// denies reports whether a glob denies the object with that path and mode.
func (n *Notifier) denies(path string, mode uint32) bool {
	return mode&unix.S_IFMT != unix.S_IFDIR && n.config.Policy.DeniesFile(strings.TrimSuffix(path, " (deleted)"))
}

// target finds the object that the path of an argument leads to, which must exist.
// With empty, an empty or missing path means the object of the descriptor dir.
// follow follows a link at the end.
func (r *request) target(dir, pathArg int, empty, follow bool) (place, error) {
	path := ""
	if !empty || r.pointer(pathArg) != 0 {
		var err error
		if path, err = r.path(pathArg); err != nil {
			return place{}, r.there(err)
		}
	}
	if empty && path == "" {
		p, err := r.object(dir)
		p.empty = true
		return p, err
	}
	how := fsops.Unheld
	if follow {
		how |= fsops.FollowLast
	}
	p, err := r.find(dir, path, how)
	if err == nil && !p.Exists() {
		p.close()
		err = unix.ENOENT
	}
	return p, err
}
