package fsops

import (
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// Access is what a policy allows with the object at a path.
type Access uint8

// The kinds of access, from none to all.
const (
	// Hidden objects do not exist: ENOENT.
	Hidden Access = iota
	// Denied objects exist and cannot be opened: EACCES.
	Denied
	// Read objects may be read and listed; writing is EROFS.
	Read
	// Write objects may also be changed.
	Write
)

// Rules are the policy of a [View]: pure functions of a canonical path. A view
// calls them for every name of a path, from several goroutines at once. A rule for
// a path holds for everything below it that has no nearer rule.
type Rules struct {
	// Access returns the access to path, whether or not path exists.
	Access func(path string) Access
	// DeniesFile reports whether anything but a directory is denied at path;
	// nil denies nothing.
	DeniesFile func(path string) bool
	// Leads reports whether something strictly below path may be read.
	Leads func(path string) bool
	// Bound reports whether a rule is about path or something below it. Such a
	// path may neither be moved nor removed.
	Bound func(path string) bool
	// HiddenPIDs are processes whose directories in procfs may not be opened.
	HiddenPIDs []int
}

// Watchable returns the reason why a path may not be watched, or nil. A path that may
// not be seen may not be watched, because a watch reveals that something appears at
// path or changes. directory says that path is or was a directory; rules about names
// of files do not apply to it.
func (r *Rules) Watchable(path string, directory bool) error {
	switch access := r.Access(path); {
	case access == Hidden && !r.Leads(path):
		return pathError("watch", path, unix.ENOENT)
	case access == Denied || !directory && r.DeniesFile != nil && r.DeniesFile(path):
		return pathError("watch", path, unix.EACCES)
	}
	return nil
}

// View is an [FS] under a policy (sandbox.md 9 and 13). Its methods work like
// those of [Host], except:
//
//   - A hidden path is ENOENT, a denied path EACCES, a change of a read-only
//     object EROFS. The type of a denied object is visible, but its size and
//     times are 0. The same holds for a hidden directory that leads to a
//     readable object; it lists only names that lead to readable objects.
//   - A name can be created only if both the name and its directory may be
//     written. A path with a rule, or with a rule below it, is neither moved nor
//     removed (EBUSY). A recursive removal looks for such paths before it
//     removes anything.
//   - Only regular files and directories are opened; others are an
//     [InvalidError].
//   - Nothing on a file system of the kernel, such as procfs or sysfs, is
//     written (EROFS). Entries of procfs that show the memory, environment or
//     files of a process cannot be read. /dev has only the devices that every
//     process may use.
//
// A file with several hard links is judged by the path that was used. All methods
// may run concurrently, except Close. Only this package uses a nil *View: it restricts
// nothing.
type View struct {
	paths *Resolver
	close sync.Once
}

// NewView returns a view under r. The caller closes it.
func NewView(r Rules) (*View, error) {
	paths, err := NewResolver(r)
	if err != nil {
		return nil, err
	}
	return &View{paths: paths}, nil
}

// resolve finds the place that name leads to in the view. Its error can be errHidden.
func (v *View) resolve(d Dir, name string, how Lookup) (Place, error) {
	p, _, err := v.measure(d, name, how)
	return p, err
}

// measure is resolve that also returns the cost.
func (v *View) measure(d Dir, name string, how Lookup) (p Place, asked int, err error) {
	return v.paths.measure(viewReading{&v.paths.rules}, d, name, how)
}

// ownFDs is the directory in which each open descriptor of this process is a
// magic link to its object.
const ownFDs = "/proc/self/fd"

// openOwnFDs opens ownFDs. It returns -1 if there is no procfs.
func openOwnFDs() int {
	fd, err := openAt(unix.AT_FDCWD, ownFDs, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1
	}
	if kind, err := KindOf(fd); err != nil || kind != Procfs {
		unix.Close(fd)
		return -1
	}
	return fd
}

// Close closes the descriptors of the view. No other method may run during or
// after it. It may be called more than once.
func (v *View) Close() error {
	v.close.Do(v.paths.Close)
	return nil
}

// Reopen opens the object p, which has only an O_PATH descriptor, for reading or
// writing. It opens this object even if its name now belongs to another object.
// Besides flags, the descriptor has O_NONBLOCK and close-on-exec.
func (r *Resolver) Reopen(p *Place, flags int) (int, error) {
	if r.fds >= 0 {
		return openAt(r.fds, strconv.Itoa(p.FD), flags, 0)
	}
	if p.fileType() == unix.DT_DIR {
		return openAt(p.FD, ".", flags, 0)
	}
	// Without procfs, a file can only be opened by its name and then compared.
	// O_TRUNC must wait for the comparison, because it could empty another
	// file.
	fd, err := openAt(p.In.FD, p.Name, flags&^unix.O_TRUNC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if err = fstat(fd, &st); err == nil && idOf(&st) != idOf(&p.Stat) {
		err = errMoved
	}
	if err == nil && flags&unix.O_TRUNC != 0 {
		err = unix.Ftruncate(fd, 0)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// PathOf returns the kernel's path of the object open as fd, or the kernel's text
// for an object without a path; proc_pid_fd(5). Without procfs it is ENOENT.
func (r *Resolver) PathOf(fd int) (string, error) {
	if r.fds < 0 {
		return "", unix.ENOENT
	}
	return readLinkAt(r.fds, strconv.Itoa(fd))
}

// Readable returns the reason why an object with this access may not be read, or nil.
func (a Access) Readable() error {
	switch a {
	case Hidden:
		return unix.ENOENT
	case Denied:
		return unix.EACCES
	}
	return nil
}

// writable returns the reason why an object with this access may not be changed, or nil.
func (a Access) writable() error {
	if a == Read {
		return unix.EROFS
	}
	return a.Readable()
}

// Writable returns the reason why the object may not be changed, or nil.
func (d *Dir) Writable() error {
	if err := d.Access.writable(); err != nil {
		return err
	}
	if d.Kind != Ordinary {
		return unix.EROFS
	}
	return nil
}

// Creatable returns the reason why nothing may be created at p, or nil.
func (r *Resolver) Creatable(p *Place, isDirectory bool) error {
	switch {
	case p.Access < Read:
		return p.Access.Readable()
	case !isDirectory && r.rules.DeniesFile(p.Path):
		return unix.EACCES
	case p.Access < Write || p.In.Writable() != nil:
		return unix.EROFS
	}
	return nil
}

// Removable returns the reason why the object may neither be removed nor moved, or
// nil. A rule about the object, or about something below it, gives EBUSY if the
// object or its directory may be written; otherwise the lack of access comes first.
func (r *Resolver) Removable(p *Place) error {
	top := p.In.FD < 0
	within := !top && p.In.Access == Write
	switch {
	case p.Exists() && r.rules.Bound(p.Path) && (within || p.Access == Write):
		return unix.EBUSY
	case p.Access < Write:
		return p.Access.writable()
	case top || p.Kind != Ordinary || p.In.Writable() != nil:
		return unix.EROFS
	}
	return nil
}
