package supervise

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// Calls that change an object and not its name: mode, owner, times, attributes,
// size. Each opens the object without reading it, judges the object's own path,
// and acts on the open object. The forms with a descriptor do so too, because
// the command could put another file under the number in between.

// change returns a func that judges the object of a path or a descriptor, and changes it. do gets a
// path that leads to the object, even if its name now belongs to another object.
func (r *request) change(do func(object string) error) func(place, error) callResult {
	return func(p place, err error) callResult {
		if err != nil {
			return fail(err)
		}
		defer p.close()
		if err := p.Writable(); err != nil {
			return r.refuse(refusals.Change, p.Path, err)
		}
		return r.changed(result(do(ownPath(p.FD))), p.Path, false)
	}
}

// at finds the object of a call that has a directory, a path and flags.
func (r *request) at(dir, pathArg, flags int) (place, error) {
	return r.target(dir, pathArg, flags&unix.AT_EMPTY_PATH != 0, flags&unix.AT_SYMLINK_NOFOLLOW == 0)
}

func (r *request) chmod() callResult    { return r.changeMode(1)(r.at(unix.AT_FDCWD, 0, 0)) }
func (r *request) fchmod() callResult   { return r.changeMode(1)(r.opened(r.int(0))) }
func (r *request) fchmodat() callResult { return r.changeMode(2)(r.at(r.int(0), 1, 0)) }
func (r *request) fchmodat2() callResult {
	flags := r.int(3)
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return fail(unix.EINVAL)
	}
	return r.changeMode(2)(r.at(r.int(0), 1, flags))
}

func (r *request) changeMode(modeArg int) func(place, error) callResult {
	mode := uint32(r.int(modeArg)) & 0o7777
	return r.change(func(object string) error {
		if mode&setIDs != 0 {
			return unix.EPERM
		}
		return unix.Fchmodat(unix.AT_FDCWD, object, mode, 0)
	})
}

func (r *request) chown() callResult { return r.changeOwner(1)(r.at(unix.AT_FDCWD, 0, 0)) }
func (r *request) lchown() callResult {
	return r.changeOwner(1)(r.at(unix.AT_FDCWD, 0, unix.AT_SYMLINK_NOFOLLOW))
}
func (r *request) fchown() callResult { return r.changeOwner(1)(r.opened(r.int(0))) }
func (r *request) fchownat() callResult {
	flags := r.int(4)
	if flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return fail(unix.EINVAL)
	}
	return r.changeOwner(2)(r.at(r.int(0), 1, flags))
}

func (r *request) changeOwner(uidArg int) func(place, error) callResult {
	return r.change(func(object string) error {
		return unix.Fchownat(unix.AT_FDCWD, object, r.int(uidArg), r.int(uidArg+1), 0)
	})
}

// The times of a call, and how they are laid out in the caller's memory.
type timesLayout uint8

const (
	seconds      timesLayout = iota // struct utimbuf
	microseconds                    // struct timeval[2]
	nanoseconds                     // struct timespec[2]
)

// times reads the times of access and of modification that an argument points to;
// nil for the current time.
func (r *request) times(arg int, layout timesLayout) ([]unix.Timespec, error) {
	addr := r.pointer(arg)
	if addr == 0 {
		return nil, nil
	}
	size := 32
	if layout == seconds {
		size = 16
	}
	b, err := r.memory(addr, size)
	if err != nil {
		return nil, err
	}
	word := func(i int) int64 { return int64(binary.NativeEndian.Uint64(b[8*i:])) }
	if layout == seconds {
		return []unix.Timespec{{Sec: word(0)}, {Sec: word(1)}}, nil
	}
	times := []unix.Timespec{{Sec: word(0), Nsec: word(1)}, {Sec: word(2), Nsec: word(3)}}
	if layout == microseconds {
		for i := range times {
			if times[i].Nsec < 0 || times[i].Nsec >= 1e6 {
				return nil, unix.EINVAL
			}
			times[i].Nsec *= 1000
		}
	}
	return times, nil
}

func (r *request) utime() callResult  { return r.changeTimes(unix.AT_FDCWD, 0, 1, seconds, 0) }
func (r *request) utimes() callResult { return r.changeTimes(unix.AT_FDCWD, 0, 1, microseconds, 0) }
func (r *request) futimesat() callResult {
	return r.changeTimes(r.int(0), 1, 2, microseconds, 0)
}

func (r *request) utimensat() callResult { return r.changeTimes(r.int(0), 1, 2, nanoseconds, r.int(3)) }

// The special values of utimensat(2) for nanoseconds.
const (
	timeNow  = 1<<30 - 1 // UTIME_NOW
	timeOmit = 1<<30 - 2 // UTIME_OMIT
)

func isTime(t unix.Timespec) bool {
	return t.Nsec >= 0 && t.Nsec < 1e9 || t.Nsec == timeNow || t.Nsec == timeOmit
}

// changeTimes changes the times of the object of a path or, without a path, of
// a descriptor.
func (r *request) changeTimes(dir, pathArg, timesArg int, layout timesLayout, flags int) callResult {
	times, err := r.times(timesArg, layout)
	if err != nil {
		return fail(err)
	}
	if times != nil && times[0].Nsec == timeOmit && times[1].Nsec == timeOmit {
		return result(r.there(nil)) // whatever the path is
	}
	var p place
	switch {
	case flags&^(unix.AT_SYMLINK_NOFOLLOW|unix.AT_EMPTY_PATH) != 0:
		err = unix.EINVAL
	case r.pointer(pathArg) != 0 || layout == seconds:
		p, err = r.at(dir, pathArg, flags)
	case dir == unix.AT_FDCWD:
		err = unix.EFAULT
	case flags != 0:
		err = unix.EINVAL
	default:
		p, err = r.opened(dir)
	}
	if err == nil && times != nil && !(isTime(times[0]) && isTime(times[1])) {
		p.close()
		err = unix.EINVAL
	}
	return r.change(func(object string) error { return utimensat(object, times) })(p, err)
}

// maxAttribute is the longest value of an attribute, XATTR_SIZE_MAX.
const maxAttribute = 64 << 10

// maxAttributeName is the longest name of an attribute, XATTR_NAME_MAX.
const maxAttributeName = 255

// attributeName reads the name of an attribute.
func (r *request) attributeName(arg int) (string, error) {
	name, err := r.path(arg)
	if err == unix.ENAMETOOLONG || err == nil && (name == "" || len(name) > maxAttributeName) {
		err = unix.ERANGE
	}
	return name, err
}

func (r *request) setxattr() callResult {
	return r.setAttribute(func() (place, error) { return r.at(unix.AT_FDCWD, 0, 0) })
}

func (r *request) lsetxattr() callResult {
	return r.setAttribute(func() (place, error) { return r.at(unix.AT_FDCWD, 0, unix.AT_SYMLINK_NOFOLLOW) })
}

func (r *request) fsetxattr() callResult {
	return r.setAttribute(func() (place, error) { return r.opened(r.int(0)) })
}

// setAttribute sets an attribute of the object that find finds. As in the kernel,
// that comes after the other arguments.
func (r *request) setAttribute(find func() (place, error)) callResult {
	flags, size := r.int(4), r.pointer(3)
	if flags&^(unix.XATTR_CREATE|unix.XATTR_REPLACE) != 0 {
		return fail(unix.EINVAL)
	}
	attribute, err := r.attributeName(1)
	var value []byte
	if err == nil && size > maxAttribute {
		err = unix.E2BIG
	} else if err == nil {
		value, err = r.memory(r.pointer(2), int(size))
	}
	if err != nil {
		return fail(r.there(err))
	}
	return r.change(func(object string) error { return unix.Setxattr(object, attribute, value, flags) })(find())
}

func (r *request) removexattr() callResult {
	return r.removeAttribute(func() (place, error) { return r.at(unix.AT_FDCWD, 0, 0) })
}

func (r *request) lremovexattr() callResult {
	return r.removeAttribute(func() (place, error) { return r.at(unix.AT_FDCWD, 0, unix.AT_SYMLINK_NOFOLLOW) })
}

func (r *request) fremovexattr() callResult {
	return r.removeAttribute(func() (place, error) { return r.opened(r.int(0)) })
}

// removeAttribute is like setAttribute.
func (r *request) removeAttribute(find func() (place, error)) callResult {
	attribute, err := r.attributeName(1)
	if err != nil {
		return fail(r.there(err))
	}
	return r.change(func(object string) error { return unix.Removexattr(object, attribute) })(find())
}

// truncate does truncate(2).
func (r *request) truncate() callResult {
	length := int64(r.pointer(1))
	if length < 0 {
		return fail(unix.EINVAL)
	}
	p, err := r.at(unix.AT_FDCWD, 0, 0)
	if err == nil {
		switch p.Stat.Mode & unix.S_IFMT {
		case unix.S_IFREG:
		case unix.S_IFDIR:
			err = unix.EISDIR
		default:
			err = unix.EINVAL
		}
		if err == nil {
			err = r.withinFileSize(length, p.Stat.Size)
		}
		if err != nil {
			p.close()
			return fail(err)
		}
	}
	return r.change(func(object string) error { return unix.Truncate(object, length) })(p, err)
}

// withinFileSize fails with EFBIG if a file would grow beyond the caller's limit,
// because the supervisor has a different limit.
func (r *request) withinFileSize(length, size int64) error {
	if length <= size {
		return nil
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(r.thread(), unix.RLIMIT_FSIZE, nil, &limit); err != nil {
		return err
	}
	if uint64(length) > limit.Cur {
		return unix.EFBIG
	}
	return nil
}
