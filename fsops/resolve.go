package fsops

import (
	"strings"

	"golang.org/x/sys/unix"
)

// maxTurns bounds how often one path, including its links, may go up through
// "..". After each "..", the path is walked again from the base, so this bounds
// the work that links can cause.
const maxTurns = 4 * maxLinks

// maxNames bounds how many names one path may lead through, including the names
// in its links and names walked again after "..". A path without links has
// fewer.
const maxNames = unix.PathMax

// Resolver finds the objects that paths lead to, under rules (sandbox.md 13). It
// opens one name at a time, each in the directory that it opened before, and
// reads symbolic links itself. So the opened names are the canonical path of the
// object found, and the rules are asked only about this path. At ".." it removes
// a name from the path and walks down again from the base, because the directory
// above may have changed. The kernel never resolves a "..", nor a magic link
// (proc(5)).
//
// A [View] has one. So has a supervisor that does system calls for another process:
// there, paths start anywhere, and procfs is the procfs of that process. All
// methods may run at once, except Close.
type Resolver struct {
	rules Rules
	// base is the directory "/" that all paths start from, an O_PATH
	// descriptor.
	base Dir
	// fds is the directory of this process's descriptors in procfs, or -1.
	fds int
	// denies is true if DeniesFile denies some names.
	denies bool
	// wary makes the resolver follow a link at the end of a path only where the
	// kernel would: see isTrap.
	wary bool
}

// NewResolver returns a resolver under r, whose paths start in the root directory
// of this process. The caller closes it.
func NewResolver(r Rules) (*Resolver, error) {
	denies := r.DeniesFile != nil
	if !denies {
		r.DeniesFile = func(string) bool { return false }
	}
	base, err := openAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, pathError("open", "/", err)
	}
	d := Dir{FD: base, Path: "/", Access: r.Access("/")}
	var st unix.Stat_t
	if err := d.inspect(&Dir{}, &st); err != nil {
		unix.Close(base)
		return nil, pathError("stat", "/", err)
	}
	return &Resolver{rules: r, base: d, fds: openOwnFDs(), denies: denies, wary: protectsLinks()}, nil
}

// protectsLinks reports whether the kernel refuses to follow links that other
// users put into directories such as /tmp: protected_symlinks of proc_sys_fs(5).
// If the setting cannot be read, it returns true.
func protectsLinks() bool {
	fd, err := openAt(unix.AT_FDCWD, "/proc/sys/fs/protected_symlinks", unix.O_RDONLY, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	value := make([]byte, 1)
	n, err := read(fd, value) // package os would have descriptors of its own for this
	return err != nil || n != 1 || value[0] != '0'
}

// Close closes the resolver's own descriptors. No other method may run during
// or after it, and it is called once.
func (r *Resolver) Close() {
	unix.Close(r.base.FD)
	if r.fds >= 0 {
		unix.Close(r.fds)
	}
}

// Dir is a directory to work in. Without a policy only FD counts.
type Dir struct {
	FD     int    // O_PATH, or open for reading; the maker of the Dir owns it
	Path   string // canonical
	Access Access
	Kind   Kind
	// procRoot says that the directory is the root of a procfs.
	procRoot bool
	// device is the device of the file system that Kind describes; 0: unknown.
	device uint64
}

// inspect looks at the object d, which was found below at. An object on the same device as at is on
// the same file system: the descriptor of at keeps that file system mounted, so the kernel gives
// its number to no other.
func (d *Dir) inspect(at *Dir, st *unix.Stat_t) (err error) {
	if err = fstat(d.FD, st); err != nil {
		return err
	}
	d.Kind, d.device = at.Kind, st.Dev
	if at.device != st.Dev {
		d.Kind, err = KindOf(d.FD)
	}
	return err
}

// workingDir is for absolute paths, which start in no directory.
var workingDir = Dir{FD: unix.AT_FDCWD}

// Base returns the directory "/". Its descriptor is the resolver's.
func (r *Resolver) Base() Dir { return r.base }

// At returns the Dir of the object open as fd, of any type: the working directory
// of another process, or an object that it has open. The rules are asked about
// path, the canonical path of the object. The Dir has fd, which the caller still
// owns.
func (r *Resolver) At(fd int, path string) (Dir, error) {
	kind, err := KindOf(fd)
	return Dir{FD: fd, Path: path, Access: r.rules.Access(path), Kind: kind}, err
}

// Reading decides about names on file systems of the kernel and in /dev. There,
// the object of a path depends on the process that asks, and the access depends on
// more than the rules. Its methods may run concurrently, and return errnos.
type Reading interface {
	// Name returns the reason why name in d may not be looked up, or nil. It is
	// called where d is on a file system of the kernel, or name lies below /dev.
	Name(how Lookup, d Dir, name string) error
	// Object returns p, which was found in d, with its access. It may replace the
	// object in p by another one, and then closes the descriptor of the old one. An
	// object that it makes Ordinary may be changed as its access says. Object is
	// called where Name is called, and for every other object on a file system of
	// the kernel. If a path ends in d itself, d has the descriptor -1.
	Object(how Lookup, d Dir, p Place) (Place, error)
	// Follow is called to follow a link of a procfs, which was found in d. It
	// returns the link's text, or, if object.FD is not -1, the object that the link
	// leads to: the path continues there, and the resolver then owns the
	// descriptor.
	Follow(d Dir, link Place) (text string, object Dir, err error)
}

// Lookup says how a path is resolved.
type Lookup uint8

const (
	// FollowLast resolves a link at the end of the path. Links before the end
	// are always resolved.
	FollowLast Lookup = 1 << iota
	// Unopened does not look whether something is at the last name: the place never
	// has an object. That saves a system call if the next one finds out too, as
	// with O_EXCL. On file systems of the kernel and in /dev it changes nothing.
	Unopened
	// Unheld does not open the directory of the object: the place has no In. That saves a
	// system call if nothing is done to the name.
	Unheld
	// refuseLinks gives ENOTDIR for a link before the end. A link at the end is
	// the result.
	refuseLinks
	// forWriting gives EROFS for everything on a file system of the kernel.
	forWriting
)

func (l Links) lookup(follow Lookup) Lookup {
	switch {
	case l.refuses():
		return refuseLinks
	case l.keeps():
		return follow &^ FollowLast
	}
	return follow
}

// Place is the end of a path: an object, or a name without an object.
type Place struct {
	// The embedded Dir is the object, of whatever type. Its FD is an O_PATH
	// descriptor, or -1 if there is no object. A directory that only leads to
	// readable objects has the access Hidden.
	Dir
	Stat unix.Stat_t // of the object

	// In is the directory that has the object under Name. Its FD is -1 if the path
	// ended in the base, in "..", in the object of [Reading.Follow], or in the Dir
	// where it began.
	In     Dir
	Name   string
	shared bool // In.FD belongs to the base or to the caller
	closed bool // a directory that may not be passed, even to readable objects

	Linked bool // a link at the end of the path was resolved
	Slash  bool // the path ended in a slash: the object must be a directory
}

// Close closes all descriptors, except the one of the Dir where the path began.
func (p *Place) Close() {
	if p.FD >= 0 {
		unix.Close(p.FD)
	}
	if p.In.FD >= 0 && !p.shared {
		unix.Close(p.In.FD)
	}
	p.In.FD, p.FD = -1, -1
}

// Exists reports whether there is an object at the place.
func (p *Place) Exists() bool { return p.FD >= 0 }

func (p *Place) fileType() byte { return kindOf(&p.Stat) }

// errHidden is the error of a path that the rules hide, whether or not it exists.
// The caller of an operation sees ENOENT, as for a missing path. Only entryKind
// distinguishes the two: it lists a link to a hidden path, but no dangling link.
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
	*Resolver
	reading Reading
	how     Lookup
	at      Dir    // the current directory
	own     bool   // at.FD belongs to the walk, which closes it
	rest    string // the rest of the path to resolve, from at

	links, turns, names int
	linked              bool
	whole               Place // the result of leap, if done
	done                bool
	missing             bool // the last name is missing, as leap found out
	asked               int  // bytes of the paths that the rules were asked about
}

// Resolve finds the place that name leads to, under reading. It starts at d
// unless name is absolute; an empty name is d itself. The caller closes the
// place. A missing last name is no error. All errors are errnos: ENOENT for
// hidden objects, EACCES for denied objects and for names below a Dir without a
// path.
//
// Links can lead to a canonical path that is too long for the kernel. That is
// ENAMETOOLONG, as for a path that is too long itself: without a bound, the rules
// would be asked about ever longer paths.
func (r *Resolver) Resolve(reading Reading, d Dir, name string, how Lookup) (Place, error) {
	if name != "" && name[0] != '/' && !strings.HasPrefix(d.Path, "/") {
		return Place{}, unix.EACCES
	}
	p, _, err := r.measure(reading, d, name, how)
	return p, visible(err)
}

// measure is Resolve that also returns the cost: the bytes of all paths that the
// rules were asked about. Its error can be errHidden.
func (r *Resolver) measure(reading Reading, d Dir, name string, how Lookup) (p Place, asked int, err error) {
	if len(name) >= unix.PathMax {
		return Place{}, 0, unix.ENAMETOOLONG
	}
	w := walk{Resolver: r, reading: reading, how: how, at: d}
	defer w.leave()
	w.follow(name)
	p, err = w.run()
	return p, w.asked, err
}

func (w *walk) leave() {
	if w.own {
		unix.Close(w.at.FD)
		w.own = false
	}
}

func (w *walk) enter(d Dir) {
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
	if w.how&Unheld == 0 || !w.leap() {
		w.jump()
	}
}

func (w *walk) run() (Place, error) {
	for !w.done {
		name, rest, slash := strings.Cut(w.rest, "/")
		w.rest = rest
		switch name {
		case "", ".":
			if name != "" {
				if err := w.searchable(1); err != nil {
					return Place{}, err
				}
			}
			if !slash {
				return w.here()
			}
			if err := w.count(len(name)); err != nil {
				return Place{}, err
			}
			continue
		case "..":
			if err := w.up(); err != nil {
				return Place{}, err
			}
			continue
		}
		if err := w.count(1); err != nil {
			return Place{}, err
		}
		last := strings.TrimLeft(rest, "/") == ""
		p, err := w.step(name, last)
		if err != nil {
			return Place{}, err
		}
		done, err := w.take(&p, last, slash)
		if done && err == nil {
			return p, nil
		}
		if err != nil {
			p.Close()
			return Place{}, err
		}
	}
	return w.whole, nil
}

// count counts n more names of the path. Over maxNames it fails with ELOOP.
func (w *walk) count(n int) error {
	if w.names += n; w.names > maxNames {
		return unix.ELOOP
	}
	return nil
}

// take enters the directory, or follows the link, that step found. It returns done
// if the path ends with p, which is then the result.
func (w *walk) take(p *Place, last, slash bool) (done bool, err error) {
	if !p.Exists() {
		if !last {
			return false, unix.ENOENT
		}
		w.finish(p, slash)
		return true, nil
	}
	switch p.fileType() {
	case unix.DT_LNK:
		if last && !slash && w.how&FollowLast == 0 {
			w.finish(p, slash)
			return true, nil
		}
		return false, w.splice(p, last, slash)
	case unix.DT_DIR:
		if last {
			w.finish(p, slash)
			return true, nil
		}
		if p.closed {
			return false, unix.EACCES
		}
		w.enter(p.Dir)
		return false, nil
	}
	switch {
	case p.Access == Denied && !last:
		return false, unix.EACCES
	case !last || slash:
		return false, unix.ENOTDIR
	}
	w.finish(p, slash)
	return true, nil
}

// finish makes p the result, which then owns the current directory of the walk.
func (w *walk) finish(p *Place, slash bool) {
	p.In, p.Slash, p.Linked, p.shared = w.at, slash, w.linked, !w.own
	w.own = false
}

// splice continues with the target of the link p.
func (w *walk) splice(p *Place, last, slash bool) error {
	switch {
	case p.Access == Denied:
		return unix.EACCES
	case w.how&refuseLinks != 0:
		return unix.ENOTDIR
	}
	if w.links++; w.links > maxLinks {
		return unix.ELOOP
	}
	if last && w.wary && isTrap(w.at.FD, &p.Stat) {
		return unix.EACCES
	}
	object := Dir{FD: -1}
	var target string
	var err error
	if p.Kind == Procfs {
		target, object, err = w.reading.Follow(w.at, *p)
	} else {
		target, err = readLinkAt(p.FD, "")
	}
	if err != nil {
		return err
	}
	p.Close()
	w.linked = w.linked || last
	if object.FD >= 0 {
		object.device = 0 // whatever it was copied from
		w.enter(object)
		return w.passable(slash)
	}
	if slash {
		w.rest = "/" + w.rest
	}
	w.follow(target)
	return nil
}

// isTrap reports whether a link found in dir may be an attacker's replacement for a
// file: the directory is sticky and everybody may write it, and the link belongs
// neither to this process's user nor to the directory's owner.
func isTrap(dir int, link *unix.Stat_t) bool {
	if int(link.Uid) == unix.Geteuid() {
		return false
	}
	const shared = unix.S_ISVTX | unix.S_IWOTH
	var st unix.Stat_t
	return fstat(dir, &st) != nil || st.Mode&shared == shared && st.Uid != link.Uid
}

// passable returns the reason why the walk may not continue below the object that
// a link of procfs led it to, or nil. below says whether it must.
func (w *walk) passable(below bool) error {
	var st unix.Stat_t
	if err := fstat(w.at.FD, &st); err != nil || !below {
		return err
	}
	switch {
	case kindOf(&st) != unix.DT_DIR:
		return unix.ENOTDIR
	case !strings.HasPrefix(w.at.Path, "/"):
		return unix.EACCES
	}
	return nil
}

// searchable returns the reason why no name, not even "." and "..", may be looked
// up in the current directory or its parents, or nil. It checks the given number of
// directories. For all other names step checks this.
func (w *walk) searchable(directories int) error {
	var st unix.Stat_t
	return fstatAt(w.at.FD, strings.Repeat("../", directories-1)+".", &st, 0)
}

// up goes up one directory for a ".." and for each ".." that directly follows.
func (w *walk) up() error {
	if w.turns++; w.turns > maxTurns {
		return unix.ELOOP
	}
	dir, levels := w.at.Path, 0
	for more := true; more; levels++ {
		if err := w.count(1); err != nil {
			return err
		}
		dir, _ = splitPath(dir)
		w.rest, more = strings.CutPrefix(w.rest, "../")
	}
	if err := w.searchable(levels); err != nil {
		return err
	}
	if w.rest != "" || dir != "/" {
		w.rest = "/" + w.rest
	}
	w.follow(dir)
	return nil
}

// here is the result if the path ends in the current directory of the walk.
func (w *walk) here() (Place, error) {
	p := Place{Dir: w.at, In: Dir{FD: -1}, Linked: w.linked}
	if p.Access == Hidden && !w.rules.Leads(p.Path) {
		return Place{}, errHidden{}
	}
	if !w.own {
		fd, err := duplicate(w.at.FD)
		if err != nil {
			return Place{}, err
		}
		p.FD = fd
	}
	w.own = false
	err := fstat(p.FD, &p.Stat)
	if err == nil && (p.Kind != Ordinary || strings.HasPrefix(p.Path, devices)) {
		err = w.object(p.In, &p)
	}
	if err != nil {
		p.Close()
		return Place{}, err
	}
	return p, nil
}

// step opens name, of any type, in the current directory of the walk.
func (w *walk) step(name string, last bool) (Place, error) {
	p := Place{Dir: Dir{FD: -1, Path: join(w.at.Path, name)}, In: Dir{FD: -1}, Name: name}
	if len(p.Path) >= unix.PathMax {
		return Place{}, unix.ENAMETOOLONG
	}
	w.asked += len(p.Path)
	p.Access = w.rules.Access(p.Path)
	leads := p.Access < Read && w.rules.Leads(p.Path)
	switch {
	case p.Access >= Read || leads:
	case w.at.Access == Denied, p.Access == Denied && !last:
		return Place{}, unix.EACCES
	case p.Access == Hidden:
		return Place{}, errHidden{}
	}
	special := w.at.Kind != Ordinary || strings.HasPrefix(p.Path, devices)
	if special {
		if err := w.reading.Name(w.how, w.at, name); err != nil {
			return Place{}, err
		}
	}

	if last && (w.how&Unopened != 0 || w.missing) && !special {
		return p, nil
	}
	var err error
	p.FD, err = openBeneath(w.at.FD, name, unix.O_PATH|unix.O_NOFOLLOW)
	if err == unix.ENOENT {
		p.FD = -1
		return p, nil
	}
	if err != nil {
		return Place{}, err
	}
	err = p.inspect(&w.at, &p.Stat)
	if p.Kind == Ordinary && w.at.Kind != Ordinary {
		// A mount within a file system of the kernel counts as one too: the tmpfs at
		// /sys/fs/cgroup, for example, has the hierarchies of cgroup v1.
		p.Kind = Pseudo
	}
	p.procRoot = p.Kind == Procfs && w.at.Kind != Procfs && p.fileType() == unix.DT_DIR
	if err == nil && p.fileType() != unix.DT_DIR {
		switch {
		case p.Access == Hidden: // p passed as a directory that leads to readable objects; a file cannot
			err = errHidden{}
		case w.rules.DeniesFile(p.Path):
			p.Access = Denied
		}
	}
	if err == nil && (special || p.Kind != Ordinary) {
		err = w.object(w.at, &p)
	}
	if err != nil {
		p.Close()
		return Place{}, err
	}
	return p, nil
}

// object asks the reading about p, which was found in d.
func (w *walk) object(d Dir, p *Place) error {
	read, err := w.reading.Object(w.how, d, *p)
	if err == nil {
		*p = read
		p.device = 0 // it can be another object, or another kind by decision
	}
	return err
}

func duplicate(fd int) (int, error) {
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}
