package fsops

import (
	"io/fs"
	"strings"

	"golang.org/x/sys/unix"
)

// jump saves steps: it opens the directory before the last name, or before the
// first "..", in one system call. It does so only if that directory may be read,
// since every directory above a readable one may be passed, so that no step could
// have been refused. Where it is missing, jump opens the one above: a path whose last
// directory is missing is how most files are looked for in vain. In all other cases, and
// when the call fails because of a link on the way, jump changes nothing and run goes
// step by step.
func (w *walk) jump() {
	if w.at.Kind != Ordinary {
		return
	}
	rel, n, rest := leading(w.rest)
	if n == 0 {
		return
	}
	if w.jumpTo(rel, n, rest) == unix.ENOENT && n > 1 {
		above, name := splitPath(rel)
		_ = w.jumpTo(above, n-1, name+"/"+rest) // or run finds out
	}
}

// jumpTo goes to the directory rel, which is n names below, with rest still to be resolved.
// Its error is that of opening the directory, nil also if it may not be opened in this way.
func (w *walk) jumpTo(rel string, n int, rest string) error {
	d := Dir{Path: join(w.at.Path, rel)}
	if len(d.Path) >= unix.PathMax {
		return nil
	}
	w.asked += len(d.Path)
	if d.Access = w.rules.Access(d.Path); d.Access < Read || stepped(d.Path) {
		return nil
	}
	var err error
	if d.FD, err = openBeneath(w.at.FD, rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW); err != nil {
		return err
	}
	var st unix.Stat_t
	if err = d.inspect(&w.at, &st); err != nil || d.Kind != Ordinary {
		unix.Close(d.FD)
		return nil
	}
	w.enter(d)
	w.rest = rest
	w.names += n
	return nil
}

// whole opens the object that name leads to in one system call, with flags. It does so where
// jump would, for a name that is a clean path without any link, and where the object may be
// read itself. The place has the object alone, without the directory that has it. In all
// other cases the answer is false, and says nothing about the path.
func (r *Resolver) whole(d Dir, name string, flags int) (Place, bool) {
	if strings.HasPrefix(name, "/") {
		d, name = r.base, name[1:]
	}
	// Without procfs, Reopen needs the directory around.
	if d.Kind != Ordinary || r.fds < 0 || name == "." || !fs.ValidPath(name) {
		return Place{}, false
	}
	p := Place{Dir: Dir{Path: join(d.Path, name)}, In: Dir{FD: -1}}
	if len(p.Path) >= unix.PathMax || stepped(p.Path) {
		return Place{}, false
	}
	if p.Access = r.rules.Access(p.Path); p.Access < Read {
		return Place{}, false
	}
	var err error
	if p.FD, err = openBeneath(d.FD, name, flags|unix.O_NOFOLLOW); err != nil {
		return Place{}, false
	}
	if err = p.inspect(&d, &p.Stat); err != nil || p.Kind != Ordinary || p.fileType() == unix.DT_LNK {
		p.Close()
		return Place{}, false
	}
	if p.fileType() != unix.DT_DIR && r.rules.DeniesFile(p.Path) {
		p.Access = Denied
	}
	return p, true
}

// leading cuts path before its last name or the first "..". It returns the
// names before that, without "" and ".", their number, and the rest. It returns
// no names when they are longer than a path can be.
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
