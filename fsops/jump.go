package fsops

import (
	"strings"

	"golang.org/x/sys/unix"
)

// jump saves steps: it opens the directory before the last name, or before the
// first "..", in one system call. It does so only if that directory may be read,
// since every directory above a readable one may be passed, so that no step could
// have been refused. In all other cases, and when the call fails because of a link
// on the way, jump changes nothing and run goes step by step.
func (w *walk) jump() {
	missing := w.missing
	w.missing = false
	if w.at.Kind != Ordinary {
		return
	}
	rel, n, rest := leading(w.rest)
	d := Dir{Path: join(w.at.Path, rel)}
	if n == 0 || len(d.Path) >= unix.PathMax {
		return
	}
	w.asked += len(d.Path)
	if d.Access = w.rules.Access(d.Path); d.Access < Read || stepped(d.Path) {
		return
	}
	var err error
	if d.FD, err = openBeneath(w.at.FD, rel, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW); err != nil {
		return
	}
	var st unix.Stat_t
	if err = fstat(d.FD, &st); err == nil {
		d.Kind, err = w.kind(d.FD, &st)
	}
	if err != nil || d.Kind != Ordinary {
		unix.Close(d.FD)
		return
	}
	w.enter(d)
	w.rest = rest
	w.names += n
	w.missing = missing
}

// leap saves the other step too: it opens what the path leads to in one system call, under the
// conditions of jump, and that is the result. It returns false if jump has to be tried, also for
// a link at the end that is to be followed. A name that it finds missing need not be looked for
// again once jump has found the directory.
func (w *walk) leap() bool {
	dir, n, name := leading(w.rest)
	if w.at.Kind != Ordinary || n == 0 || w.names+n >= maxNames || name == "." || name == ".." || strings.Contains(name, "/") {
		return false
	}
	rel := dir + "/" + name
	p := Place{Dir: Dir{Path: join(w.at.Path, rel)}, In: Dir{FD: -1}, Name: name, Linked: w.linked}
	if len(p.Path) >= unix.PathMax {
		return false
	}
	w.asked += len(p.Path)
	if p.Access = w.rules.Access(p.Path); p.Access < Read || stepped(p.Path) {
		return false
	}
	var err error
	if p.FD, err = openBeneath(w.at.FD, rel, unix.O_PATH|unix.O_NOFOLLOW); err != nil {
		w.missing = err == unix.ENOENT
		return false
	}
	if err = fstat(p.FD, &p.Stat); err == nil {
		p.Kind, err = w.kind(p.FD, &p.Stat)
	}
	if err != nil || p.Kind != Ordinary || p.fileType() == unix.DT_LNK && w.how&FollowLast != 0 {
		p.Close()
		return false
	}
	if p.fileType() != unix.DT_DIR && w.rules.DeniesFile(p.Path) {
		p.Access = Denied
	}
	w.names += n + 1
	w.whole, w.done = p, true
	return true
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
