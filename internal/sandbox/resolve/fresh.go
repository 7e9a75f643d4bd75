package resolve

import (
	"path"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"golang.org/x/sys/unix"
)

// watch is one observation of Policy.
type watch struct {
	path string // canonical
	// dir is the descriptor of the directory above path if that is pinned, else
	// -1. Then name is relative to dir, and another watch checks that the
	// directory is still at its path.
	dir  int
	name string
	// want is the object seen; the zero value means that nothing was there.
	want  unix.Stat_t
	depth depth
}

// depth says how exactly an object must be the same.
type depth uint8

const (
	kind     depth = iota // that there is an object of the same type, or still none
	identity              // and that it is the same object
	content               // and that it was not changed
)

// Fresh reports whether nothing that Policy saw has changed: the objects that
// the policy grants, the symlinks on the way, the .git pointer files, and the
// missing names. A placeholder counts as nothing. After Close, Fresh is false.
// It makes one to three system calls for each path and symlink.
func (r *Resolved) Fresh() bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.closed {
		return false
	}
	for i := range r.watches {
		if !r.watches[i].same() {
			return false
		}
	}
	return true
}

// Descriptors returns how many descriptors the Resolved holds open, 0 after
// Close.
func (r *Resolved) Descriptors() int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return len(r.pins)
}

// watches returns the observations that Fresh must check.
func (s *resolution) watches() []watch {
	all := s.looked
	add := func(name string, want unix.Stat_t, d depth) {
		w := watch{path: name, dir: -1, name: path.Base(name), want: want, depth: d}
		if fd, ok := s.pins[pathname.Parent(name)]; ok {
			w.dir = fd
		}
		all = append(all, w)
	}
	for _, o := range s.seen {
		for _, link := range o.links {
			add(link.Path, link.stat, content)
		}
		_, pinned := s.pins[o.path]
		switch {
		case o.path == "/", o.barred:
		case !o.exists():
			add(path.Join(o.at, o.missing[0]), unix.Stat_t{}, kind)
		case o.pointer:
			add(o.path, o.stat, content)
		case pinned:
			add(o.path, o.stat, identity)
		default:
			add(o.path, o.stat, kind)
		}
	}
	return all
}

// same reports whether the object is still the one that the watch wants.
func (w *watch) same() bool {
	var st unix.Stat_t
	switch err := w.look(&st); {
	case err == unix.ENOENT, err == unix.ENOTDIR:
		return w.want.Mode == 0
	case err != nil:
		return false
	case w.want.Mode == 0:
		return placeholder.IsPlaceholder(&st)
	}
	if st.Mode&unix.S_IFMT != w.want.Mode&unix.S_IFMT || placeholder.IsPlaceholder(&st) {
		return false
	}
	if w.depth >= identity && (st.Dev != w.want.Dev || st.Ino != w.want.Ino) {
		return false
	}
	return w.depth < content || st.Mtim == w.want.Mtim && st.Ctim == w.want.Ctim && st.Size == w.want.Size
}

// look finds the current object at the canonical path. A symlink on the way is an
// error, because it is newer than the resolved path.
func (w *watch) look(st *unix.Stat_t) error {
	if w.dir >= 0 {
		return unix.Fstatat(w.dir, w.name, st, unix.AT_SYMLINK_NOFOLLOW)
	}
	if len(w.path) == len(w.name)+1 {
		return unix.Fstatat(unix.AT_FDCWD, w.path, st, unix.AT_SYMLINK_NOFOLLOW)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, pathname.Parent(w.path), &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Fstatat(fd, w.name, st, unix.AT_SYMLINK_NOFOLLOW)
}
