package fsops

import (
	"errors"
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// jump saves steps: it opens the directory before the last name, or before the first
// "..", in one system call. It does so only if that directory may be read: every
// directory above a readable one may be passed, so no step could have been refused. If
// it is missing, jump opens its parent, because most searches for a missing file have a
// path whose last directory is missing. In all other cases, and if the call fails
// because of a link on the way, jump changes nothing and run goes step by step.
func (w *walk) jump() {
	missing := w.missing
	w.missing = false
	if w.at.Kind != Ordinary {
		return
	}
	rel, n, rest := leading(w.rest)
	if n == 0 {
		return
	}
	switch err := w.jumpTo(rel, n, rest); {
	case err == nil:
		w.missing = missing
	case err == unix.ENOENT && n > 1:
		above, name := splitPath(rel)
		_ = w.jumpTo(above, n-1, name+"/"+rest) // or run finds out
	}
}

// errStepwise is the error for a path that must be resolved step by step.
var errStepwise = errors.New("the path has to be gone step by step")

// jumpTo goes to the directory rel, n names below; rest is still to be resolved. See reach.
func (w *walk) jumpTo(rel string, n int, rest string) error {
	w.asked += len(w.at.Path) + len("/") + len(rel)
	var st unix.Stat_t
	d, err := w.reach(&w.at, rel, unix.O_PATH|unix.O_DIRECTORY, &st)
	if err != nil {
		return err
	}
	w.enter(d)
	w.rest, w.names = rest, w.names+n
	return nil
}

// reach opens the object rel below at in one system call, with flags, and describes it in st. The
// error is the error of opening it, or errStepwise if the object must not be read, is not
// [Ordinary], or needs its own step.
func (r *Resolver) reach(at *Dir, rel string, flags int, st *unix.Stat_t) (d Dir, err error) {
	d.Path = join(at.Path, rel)
	if len(d.Path) >= unix.PathMax || stepped(d.Path) {
		return Dir{}, errStepwise
	}
	if d.Access = r.rules.Access(d.Path); d.Access < Read {
		return Dir{}, errStepwise
	}
	if d.FD, err = openBeneath(at.FD, rel, flags|unix.O_NOFOLLOW); err != nil {
		return Dir{}, err
	}
	if err = d.inspect(at, st); err != nil || d.Kind != Ordinary {
		unix.Close(d.FD)
		return Dir{}, errStepwise
	}
	return d, nil
}

// leap saves the last step too: the object that the path leads to is the result, see whole. It
// returns false if jump must be tried. If it finds a name missing, the name is not looked up again
// once jump has found the directory.
func (w *walk) leap() bool {
	dir, n, name := leading(w.rest)
	if n == 0 || w.names+n >= maxNames {
		return false
	}
	rel := dir + "/" + name
	w.asked += len(w.at.Path) + len("/") + len(rel)
	p, err := w.Resolver.whole(w.at, rel, unix.O_PATH, w.how)
	if err != nil {
		w.missing = err == unix.ENOENT
		return false
	}
	p.Name, p.Linked = name, w.linked
	w.names += n + 1
	w.whole, w.done = p, true
	return true
}

// whole opens the object that name leads to in one system call, with flags. It does so where jump
// would, if name is a clean path without any link before its end, and if the object itself may be
// read. A link at the end is the object unless how follows it. The place has only the object,
// without its directory. ENOENT means that nothing is there; any other error says nothing about the
// path.
func (r *Resolver) whole(d Dir, name string, flags int, how Lookup) (p Place, err error) {
	if strings.HasPrefix(name, "/") {
		d, name = r.base, name[1:]
	}
	// Without procfs, Reopen needs the object's directory.
	if d.Kind != Ordinary || r.fds < 0 || name == "." || !fs.ValidPath(name) {
		return Place{}, errStepwise
	}
	p.In.FD = -1
	if p.Dir, err = r.reach(&d, name, flags, &p.Stat); err != nil {
		return Place{}, err
	}
	if p.fileType() == unix.DT_LNK && how&FollowLast != 0 {
		p.Close()
		return Place{}, errStepwise
	}
	if p.fileType() != unix.DT_DIR && r.rules.DeniesFile(p.Path) {
		p.Access = Denied
	}
	return p, nil
}

// leading splits path before its last name or the first "..". It returns the
// names before that, without "" and ".", their number, and the rest. It returns
// no names if they are longer than a path can be.
func leading(path string) (names string, n int, rest string) {
	var b strings.Builder
	for rest = path; ; {
		name, after, more := strings.Cut(rest, "/")
		if !more || name == ".." || strings.Trim(after, "/") == "" {
			return b.String(), n, rest
		}
		rest = after
		if name == "" || name == "." {
			continue
		}
		if n++; n > 1 {
			b.WriteByte('/')
		}
		b.WriteString(name)
		if b.Len() >= unix.PathMax {
			return "", 0, path
		}
	}
}
