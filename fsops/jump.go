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
	if d.Kind, err = KindOf(d.FD); err != nil || d.Kind != Ordinary {
		unix.Close(d.FD)
		return
	}
	w.enter(d)
	w.rest = rest
	w.names += n
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
