package fsops

import (
	"strings"

	"golang.org/x/sys/unix"
)

// maxTurns bounds how often one path, its links included, may go up through "..".
// After each time the way down from the base is walked again, so this bounds the
// work that links can cause.
const maxTurns = 4 * maxLinks

// maxNames bounds how many names one path may lead through, counting those of
// its links and those walked again after "..". A path without links has fewer.
const maxNames = unix.PathMax

// resolver finds what paths lead to under rules (sandbox.md 13). It opens one
// name at a time, each in the directory that it opened before, and reads symbolic
// links itself. So the names that it opened are the canonical path of what it
// finds, and the rules are asked about this path and no other. At ".." it takes a
// name off the path and goes down again from the base: the directory above may
// have changed. The kernel never resolves a "..", nor a magic link (proc(5)).
type resolver struct {
	rules Rules
	// base is the directory "/" that all paths start from, an O_PATH
	// descriptor.
	base dir
	// self gives the targets of "self" and "thread-self" in procfs, which
	// depend on the process that reads them; nil refuses them.
	self func(name string) (string, error)
}

// dir is a directory to work in. Without a policy only fd counts.
type dir struct {
	fd     int
	path   string // canonical
	access Access
	kind   fsKind
	// procRoot tells that the directory is the root of a procfs.
	procRoot bool
}

// workingDir is for absolute paths, which start in no directory.
var workingDir = dir{fd: unix.AT_FDCWD}

// lookup says how a path is resolved.
type lookup uint8

const (
	// followLast resolves a link at the end of the path. Links before the end
	// are always resolved.
	followLast lookup = 1 << iota
	// refuseLinks makes a link before the end ENOTDIR. A link at the end is the
	// result.
	refuseLinks
	// forWriting gives EROFS for everything on a file system of the kernel.
	forWriting
)

func (l Links) lookup(follow lookup) lookup {
	if l == RefuseLinks {
		return refuseLinks
	}
	return follow
}

// place is where a path leads to: an object, or a name at which nothing is.
type place struct {
	// The embedded dir is the object, of whatever type. Its fd is an O_PATH
	// descriptor, -1 when there is no object. A directory that only leads to
	// what may be read has the access Hidden.
	dir
	st unix.Stat_t // of the object

	// in is the directory that has the object under name. Its fd is -1 when the
	// path ended in the base or in "..".
	in     dir
	name   string
	shared bool // in.fd belongs to the base or to the caller

	linked bool // a link at the end of the path was resolved
	slash  bool // the path ended in a slash: only a directory will do
	// target is that of "self" and "thread-self" in procfs, as resolver.self gives
	// it. A place with a target has no descriptor.
	target string
}

// close gives all descriptors back.
func (p *place) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
	}
	if p.in.fd >= 0 && !p.shared {
		unix.Close(p.in.fd)
	}
	p.in.fd, p.fd = -1, -1
}

func (p *place) exists() bool { return p.fd >= 0 }

func (p *place) fileType() byte { return kindOf(&p.st) }

// errHidden is the error of a path that the rules hide, whatever is there. The
// caller of an operation sees ENOENT, as for a missing path. Only entryKind tells
// the two apart: it lists a link to a hidden path, but no link that leads nowhere.
type errHidden struct{}

func (errHidden) Error() string { return unix.ENOENT.Error() }

// visible turns errHidden into ENOENT.
func visible(err error) error {
	if err == (errHidden{}) {
		return unix.ENOENT
	}
	return err
}

// walk is one path under way.
type walk struct {
	*resolver
	how  lookup
	at   dir    // the directory where it stands
	own  bool   // at.fd belongs to the walk, which closes it
	rest string // what is still to be resolved, from at

	links, turns, names int
	linked              bool
	asked               int // bytes of the paths that the rules were asked about
}

// resolve finds what name leads to. It starts at d unless name is absolute. The
// caller closes the place. It is no error when the last name is missing.
//
// Links can lead to a canonical path that is too long for the kernel. That is
// ENAMETOOLONG, as for a path that is too long itself: without a bound, the rules
// would be asked about ever longer paths.
func (r *resolver) resolve(d dir, name string, how lookup) (place, error) {
	p, _, err := r.measure(d, name, how)
	return p, err
}

// measure does what resolve does, and returns the cost as well: the bytes of all
// paths that the rules were asked about.
func (r *resolver) measure(d dir, name string, how lookup) (p place, asked int, err error) {
	if len(name) >= unix.PathMax {
		return place{}, 0, unix.ENAMETOOLONG
	}
	w := walk{resolver: r, how: how, at: d}
	defer w.leave()
	w.follow(name)
	p, err = w.run()
	return p, w.asked, err
}

func (w *walk) leave() {
	if w.own {
		unix.Close(w.at.fd)
		w.own = false
	}
}

func (w *walk) enter(d dir) {
	w.leave()
	w.at, w.own = d, true
}

// follow puts the path target before the rest of the path.
func (w *walk) follow(target string) {
	if strings.HasPrefix(target, "/") {
		w.leave()
		w.at = w.base
	}
	w.rest = target + w.rest
	w.jump()
}

func (w *walk) run() (place, error) {
	for {
		name, rest, slash := strings.Cut(w.rest, "/")
		w.rest = rest
		switch name {
		case "", ".":
			if !slash {
				return w.here()
			}
			if err := w.count(len(name)); err != nil {
				return place{}, err
			}
			continue
		case "..":
			if err := w.up(); err != nil {
				return place{}, err
			}
			continue
		}
		if err := w.count(1); err != nil {
			return place{}, err
		}
		last := strings.TrimLeft(rest, "/") == ""
		p, err := w.step(name, last)
		if err != nil {
			return place{}, err
		}
		done, err := w.take(&p, last, slash)
		if done && err == nil {
			return p, nil
		}
		if err != nil {
			p.close()
			return place{}, err
		}
	}
}

// count counts n more names of the path. Over maxNames it fails with ELOOP.
func (w *walk) count(n int) error {
	if w.names += n; w.names > maxNames {
		return unix.ELOOP
	}
	return nil
}

// take enters the directory, or follows the link, that step found. It returns done
// when the path ends with p, which is the result then.
func (w *walk) take(p *place, last, slash bool) (done bool, err error) {
	if !p.exists() && p.target == "" {
		if !last {
			return false, unix.ENOENT
		}
		w.finish(p, slash)
		return true, nil
	}
	switch p.fileType() {
	case unix.DT_LNK:
		if last && !slash && w.how&followLast == 0 {
			w.finish(p, slash)
			return true, nil
		}
		return false, w.splice(p, last, slash)
	case unix.DT_DIR:
		if last {
			w.finish(p, slash)
			return true, nil
		}
		if w.closed(p) {
			return false, unix.EACCES
		}
		w.enter(p.dir)
		return false, nil
	}
	switch {
	case p.access == Denied && !last:
		return false, unix.EACCES
	case !last || slash:
		return false, unix.ENOTDIR
	}
	w.finish(p, slash)
	return true, nil
}

// finish makes p the result, which from now on owns the directory where the walk
// stands.
func (w *walk) finish(p *place, slash bool) {
	p.in, p.slash, p.linked, p.shared = w.at, slash, w.linked, !w.own
	w.own = false
}

// splice goes on with the target of the link p.
func (w *walk) splice(p *place, last, slash bool) error {
	switch {
	case p.access == Denied:
		return unix.EACCES
	case w.how&refuseLinks != 0:
		return unix.ENOTDIR
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	target := p.target
	if target == "" {
		var err error
		if target, err = readLinkAt(p.fd, ""); err != nil {
			return err
		}
	}
	p.close()
	w.linked = w.linked || last
	if slash {
		w.rest = "/" + w.rest
	}
	w.follow(target)
	return nil
}

// up goes to the directory above, for one ".." and those that directly follow.
func (w *walk) up() error {
	if w.turns++; w.turns > maxTurns {
		return unix.ELOOP
	}
	dir := w.at.path
	for more := true; more; {
		if err := w.count(1); err != nil {
			return err
		}
		dir, _ = splitPath(dir)
		w.rest, more = strings.CutPrefix(w.rest, "../")
	}
	if w.rest != "" || dir != "/" {
		w.rest = "/" + w.rest
	}
	w.follow(dir)
	return nil
}

// here is the result when the path ends in the directory where the walk stands.
func (w *walk) here() (place, error) {
	p := place{dir: w.at, in: dir{fd: -1}, linked: w.linked}
	if p.access == Hidden && !w.rules.Leads(p.path) {
		return place{}, errHidden{}
	}
	if !w.own {
		fd, err := duplicate(w.at.fd)
		if err != nil {
			return place{}, err
		}
		p.fd = fd
	}
	w.own = false
	if err := fstat(p.fd, &p.st); err != nil {
		p.close()
		return place{}, err
	}
	return p, nil
}

// step opens name, whatever it is, in the directory where the walk stands.
func (w *walk) step(name string, last bool) (place, error) {
	p := place{dir: dir{fd: -1, path: join(w.at.path, name)}, in: dir{fd: -1}, name: name}
	if len(p.path) >= unix.PathMax {
		return place{}, unix.ENAMETOOLONG
	}
	w.asked += len(p.path)
	p.access = w.rules.Access(p.path)
	leads := p.access < Read && w.rules.Leads(p.path)
	switch {
	case p.access >= Read || leads:
	case w.at.access == Denied, p.access == Denied && !last:
		return place{}, unix.EACCES
	case p.access == Hidden:
		return place{}, errHidden{}
	}
	if err := w.special(&p); err != nil || p.target != "" {
		p.st.Mode = unix.S_IFLNK
		return p, err
	}

	var err error
	p.fd, err = openBeneath(w.at.fd, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err == unix.ENOENT {
		p.fd = -1
		return p, nil
	}
	if err != nil {
		return place{}, err
	}
	if err = fstat(p.fd, &p.st); err == nil {
		p.kind, err = fsKindOf(p.fd)
	}
	if p.kind == ordinary && w.at.kind != ordinary {
		// What is mounted within a file system of the kernel counts as one too:
		// the tmpfs at /sys/fs/cgroup, for example, has the hierarchies of cgroup v1.
		p.kind = pseudo
	}
	if err == nil {
		err = w.judge(&p)
	}
	if err != nil {
		p.close()
		return place{}, err
	}
	return p, nil
}

// judge completes the access of p, whose type is known now.
func (w *walk) judge(p *place) error {
	if p.fileType() == unix.DT_DIR {
		p.procRoot = p.kind == procfs && w.at.kind != procfs
		if w.closed(p) {
			p.access = min(p.access, Denied)
		}
		return nil
	}
	switch {
	case p.access == Hidden: // p passed as one that leads to what may be read; a file cannot
		return errHidden{}
	case w.rules.DeniesFile(p.path):
		p.access = Denied
	case p.kind == procfs && w.at.kind != procfs && w.how&forWriting == 0:
		// A single file of procfs is mounted here, and nothing tells which one.
		p.access = Denied
	case w.closed(p):
		p.access = Denied
	}
	return nil
}

func duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}
