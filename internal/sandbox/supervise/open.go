package supervise

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// A call that opens a file is judged by the object of its path. Then exactly that
// object is opened here, and the caller gets the descriptor. An open only for
// reading comes here only if reads are judged too.
//
// Errors have the kernel's order: missing objects, directories and existing names
// come before a lack of write access. Six things differ from an open that the caller
// does itself: no terminal becomes its controlling one, an open of a FIFO that
// blocks is interrupted by fatal signals only, a descriptor of /dev/shm with O_PATH
// is one for reading, F_GETFL does not show O_NOFOLLOW, EMFILE comes after the file
// was made, and the open waits for another process's lease as for a FIFO.

// opening is the request of a call that opens a file.
type opening struct {
	dir   int // the caller's descriptor at which a relative path begins
	path  string
	flags int
	mode  uint32
	// alone says that the object must no longer be open here when the caller
	// continues, because the caller may check whether the other end of a FIFO or
	// terminal is open, or execute the program that it wrote.
	alone bool
}

// Flags of open(2). knownFlags has all flags that the kernel knows; it ignores others.
const (
	knownFlags = 0x7fffc3
	pathFlags  = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	tmpfile    = unix.O_TMPFILE &^ unix.O_DIRECTORY
)

// errAgain restarts an open.
var errAgain = errors.New("the name has appeared")

// maxRaces is how often an open starts over because a name appeared or vanished
// between the look at it and the call.
const maxRaces = 64

// open does open(2).
func (r *request) open() callResult {
	return r.openPath(unix.AT_FDCWD, 0, r.int(1), r.pointer(2))
}

// openat does openat(2).
func (r *request) openat() callResult {
	return r.openPath(r.int(0), 1, r.int(2), r.pointer(3))
}

// creat does creat(2).
func (r *request) creat() callResult {
	return r.openPath(unix.AT_FDCWD, 0, unix.O_CREAT|unix.O_WRONLY|unix.O_TRUNC, r.pointer(1))
}

// openPath opens the path that argument arg points to.
func (r *request) openPath(dir, arg, flags int, mode uint64) callResult {
	o := opening{dir: dir, flags: flags & knownFlags, mode: uint32(mode)}
	if err := o.check(); err != nil {
		return fail(err)
	}
	var err error
	if o.path, err = r.path(arg); err != nil {
		return fail(r.there(err))
	}
	for range maxRaces {
		a, err := r.openOnce(o)
		if err != errAgain {
			return a
		}
	}
	return fail(unix.EBUSY)
}

// check refuses flags that do not go together, as the kernel does, and a file
// with the set-user-ID or set-group-ID bit: executing it outside would give the
// ids of the agent's user.
func (o *opening) check() error {
	switch {
	case o.flags&unix.O_PATH != 0:
		o.flags &= pathFlags
		return nil
	case o.flags&(unix.O_CREAT|tmpfile) == 0:
		return nil
	case o.mode&setIDs != 0:
		return unix.EPERM
	case o.flags&tmpfile == 0 && o.flags&unix.O_DIRECTORY != 0:
		return unix.EINVAL // before Linux 6.4 a file was made, and then ENOTDIR
	case o.flags&tmpfile != 0 && (o.flags&unix.O_CREAT != 0 || o.flags&unix.O_DIRECTORY == 0 || o.flags&unix.O_ACCMODE == unix.O_RDONLY):
		return unix.EINVAL
	}
	return nil
}

// writes reports whether the call opens an existing file to change it.
func (o *opening) writes() bool {
	return o.flags&unix.O_ACCMODE != unix.O_RDONLY || o.flags&unix.O_TRUNC != 0
}

// operation is what the call does with an object that exists.
func (o *opening) operation() refusals.Operation {
	if o.writes() {
		return refusals.Write
	}
	return refusals.Read
}

// creates reports whether the call makes a file under a missing name.
func (o *opening) creates() bool { return o.flags&unix.O_CREAT != 0 }

// has reports whether all bits of flag are set.
func (o *opening) has(flag int) bool { return o.flags&flag == flag }

// openOnce finds and opens the path. The error is errAgain if the name was made
// in the meantime.
func (r *request) openOnce(o opening) (callResult, error) {
	how := fsops.FollowLast
	if o.has(unix.O_NOFOLLOW) || o.has(unix.O_CREAT|unix.O_EXCL) {
		how = 0
	}
	path := o.path
	slash := o.creates() && endsInSlash(path)
	if slash { // a file cannot be made under such a name
		path, how = strings.TrimRight(path, "/"), 0
	}
	first := how
	switch {
	case !o.creates():
		first |= fsops.Unheld
	case !slash:
		first = fsops.Unopened
	}
	p, err := r.find(o.dir, path, first)
	if err != nil {
		return r.refuseFound(o.operation(), o.dir, path, err), nil
	}
	defer p.close()
	if first == fsops.Unopened {
		// Most calls that may make a file do make one, and this takes the fewest steps.
		if a, made := r.createFirst(&p, o); made {
			return a, nil
		}
		if err := r.complete(&p, how); err != nil {
			return r.refuseFound(o.operation(), o.dir, path, err), nil
		}
	}
	switch {
	case o.has(unix.O_PATH):
		return r.openNothing(&p, o), nil
	case o.has(tmpfile):
		return r.makeNameless(&p, o), nil
	case slash:
		return fail(unix.EISDIR), nil
	case p.Exists():
		return r.openObject(&p, o), nil
	case o.creates() && p.Slash: // a link whose target has such a name
		return fail(unix.EISDIR), nil
	case o.creates():
		return r.create(&p, o)
	}
	return fail(unix.ENOENT), nil
}

// endsInSlash reports whether a slash comes after the last name of the path; "."
// and ".." are no names.
func endsInSlash(path string) bool {
	name := strings.TrimRight(path, "/")
	if name == path {
		return false
	}
	name = name[strings.LastIndexByte(name, '/')+1:]
	return name != "" && name != "." && name != ".."
}

// openNothing lets the kernel open an object with O_PATH. The object cannot be read
// through such a descriptor, and later uses of it are judged again. The caller
// could make the path lead elsewhere in between, and learn the type and times of an
// object that it may not see.
func (r *request) openNothing(p *place, o opening) callResult {
	switch {
	case !p.Exists():
		return fail(unix.ENOENT)
	case p.Access < fsops.Read && p.Stat.Mode&unix.S_IFMT != unix.S_IFDIR || p.Access == fsops.Denied:
		return fail(unix.EACCES)
	case within(p.Path, devShm) && r.n.shm.inUse():
		// The kernel would open the object in the host's /dev/shm, and a descriptor
		// with O_PATH cannot be given away.
		o.flags = o.flags&^unix.O_PATH | unix.O_RDONLY
		return r.openObject(p, o)
	}
	return proceed()
}

// openObject opens the object at the place.
func (r *request) openObject(p *place, o opening) callResult {
	kind := p.Stat.Mode & unix.S_IFMT
	isDir := kind == unix.S_IFDIR
	switch {
	case o.has(unix.O_CREAT | unix.O_EXCL):
		return fail(unix.EEXIST)
	case o.creates() && isDir:
		return fail(unix.EISDIR)
	case o.has(unix.O_DIRECTORY) && !isDir:
		return fail(unix.ENOTDIR)
	case kind == unix.S_IFLNK:
		return fail(unix.ELOOP)
	case isDir && o.writes():
		return fail(unix.EISDIR)
	case p.Access < fsops.Read, strings.HasPrefix(p.Path, hostPrefix):
		return r.refuse(o.operation(), p.Path, unix.EACCES) // a directory that only leads to readable objects is not listed
	case kind == unix.S_IFCHR, kind == unix.S_IFBLK:
		return r.openDevice(p, o)
	}
	o.alone = kind != unix.S_IFREG && !isDir || o.writes() && p.Stat.Mode&0o111 != 0
	if o.creates() && r.n.isTrap(p) {
		return fail(unix.EACCES)
	}
	if o.writes() && p.Writable() != nil {
		return r.refuse(refusals.Write, p.Path, refusal(p, o))
	}
	if kind == unix.S_IFIFO && p.Path != "" && p.Path[0] == '/' && !o.has(unix.O_NONBLOCK) {
		return r.openFIFO(p, o)
	}
	fd, err := r.reopen(p.FD, o)
	if err == unix.EAGAIN && !o.has(unix.O_NONBLOCK) { // another process has a lease, fcntl(2)
		return r.openApart(p, o)
	}
	if err != nil {
		return fail(err)
	}
	if o.writes() {
		return r.changed(o.given(fd), p.Path, false)
	}
	return o.given(fd)
}

// refusal returns the error of opening the read-only object p for writing: EROFS
// as on a read-only mount, unless the mode of the file forbids it too; O_TRUNC
// comes before that. On a read-only mount, FIFOs and sockets can be opened; here
// the policy refuses them.
func refusal(p *place, o opening) error {
	if p.Stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	if !o.has(unix.O_TRUNC) && faccessat2(ownPath(p.FD), unix.W_OK, unix.AT_EACCESS) == unix.EACCES {
		return unix.EACCES
	}
	return unix.EROFS
}

// reopen opens the object of the descriptor fd. It does not wait for anything.
func (r *request) reopen(fd int, o opening) (int, error) {
	const atFirst = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	p := fsops.Place{Dir: fsops.Dir{FD: fd}}
	own, err := r.n.paths.Reopen(&p, o.flags&^atFirst)
	if err != nil {
		return -1, err
	}
	return own, o.block(own)
}

// block gives the descriptor fd, which was opened with O_NONBLOCK, the flags that
// the caller asked for. It closes fd if it cannot.
func (o *opening) block(fd int) error {
	if o.has(unix.O_NONBLOCK) {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, o.flags); err != nil {
		unix.Close(fd)
		return err
	}
	return nil
}

// createFirst makes a file at the place without first checking whether something
// is there. It returns made as false if something is, or if no file may be made
// there.
func (r *request) createFirst(p *place, o opening) (a callResult, made bool) {
	if p.Exists() || p.In.FD < 0 || p.Slash || r.n.paths.Creatable(&p.Place, false) != nil {
		return callResult{}, false
	}
	a, err := r.create(p, o)
	return a, err == nil
}

// create makes a file at the place. The error is errAgain if the name exists.
func (r *request) create(p *place, o opening) (callResult, error) {
	if err := r.n.paths.Creatable(&p.Place, false); err != nil {
		return r.refuse(refusals.Create, p.Path, err), nil
	}
	o.alone = o.mode&0o111 != 0
	flags := o.flags&^unix.O_NOFOLLOW | unix.O_EXCL
	fd, err := r.makeFile(p.In.FD, p.Name, flags, o)
	if err == unix.EEXIST && !o.has(unix.O_EXCL) {
		return callResult{}, errAgain
	}
	return r.changed(opened(fd, err, o), p.Path, false), nil
}

// makeNameless makes a file without a name in the directory at the place.
func (r *request) makeNameless(p *place, o opening) callResult {
	switch {
	case !p.Exists():
		return fail(unix.ENOENT)
	case p.Stat.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fail(unix.ENOTDIR)
	}
	if err := p.Writable(); err != nil {
		return r.refuse(refusals.Create, p.Path, err)
	}
	fd, err := r.makeFile(p.FD, ".", o.flags, o)
	return r.changed(opened(fd, err, o), p.Path+"/a file without a name", false)
}

// makeFile makes the file name in the directory dir, with the caller's umask.
func (r *request) makeFile(dir int, name string, flags int, o opening) (fd int, err error) {
	err = r.underUmask(func() error {
		fd, err = unix.Openat(dir, name, flags|unix.O_CLOEXEC, o.mode&^unix.S_IFMT)
		return err
	})
	return fd, err
}

// given gives the caller fd.
func (o *opening) given(fd int) callResult {
	a := give(fd, o.has(unix.O_CLOEXEC))
	a.alone = o.alone
	return a
}

// opened gives the caller fd, unless there is an error.
func opened(fd int, err error, o opening) callResult {
	if err != nil {
		return fail(err)
	}
	return o.given(fd)
}
