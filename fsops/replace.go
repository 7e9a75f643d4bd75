package fsops

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"

	"golang.org/x/sys/unix"
)

// WriteOptions say how [WriteFile] writes. The zero value writes in place, and makes a
// missing file as OpenWrite does.
type WriteOptions struct {
	Links Links
	// Mode has the permissions of the file afterwards, at most 0777, whatever the umask is.
	// nil: those of the file, or those of every new file. If the mode cannot be set, the
	// content stays.
	Mode *uint32
	// Parents makes the directories of the path that are missing.
	Parents bool
	// Exclusive makes a new file; a name that exists, even a link, is EEXIST.
	Exclusive bool
	// Atomic writes a new file beside the old one, and then renames it. So others see the
	// whole old content or the whole new one. Permissions, owner and ACL of the old file are
	// kept; if they cannot be kept, nothing is changed. Other names of the old file keep
	// the old content.
	Atomic bool
}

// WriteFile replaces the contents of the file at path. The files open, make and rename, so a
// policy behind them holds for each step. This process writes.
func WriteFile(ctx context.Context, files FS, path string, data []byte, o WriteOptions) error {
	err := writeFile(ctx, files, path, data, o)
	if dir, _ := splitPath(path); o.Parents && errors.Is(err, unix.ENOENT) {
		if err := files.CreateDirectory(ctx, dir, true, o.Links); err != nil {
			return err
		}
		return writeFile(ctx, files, path, data, o)
	}
	return err
}

func writeFile(ctx context.Context, files FS, path string, data []byte, o WriteOptions) error {
	if o.Atomic {
		err := replaceFile(ctx, files, path, data, o)
		for races := 0; err == errAppeared; races++ {
			if races == maxRaces {
				return pathError("write", path, unix.EBUSY)
			}
			err = replaceFile(ctx, files, path, data, o)
		}
		return err
	}
	how := Writing{Links: o.Links, New: o.Exclusive, Private: o.Mode != nil}
	if o.Mode == nil || o.Exclusive {
		fd, err := files.OpenWrite(ctx, path, how)
		if err == nil {
			err = setMode(files, fd, path, o.Mode)
		}
		if err != nil {
			return err
		}
		return WriteTo(fd, path, data)
	}
	// The old content goes after the mode was set.
	fd, err := files.OpenWrite(ctx, path, Writing{Links: o.Links, Old: true})
	if errors.Is(err, unix.ENOENT) {
		fd, err = files.OpenWrite(ctx, path, how)
	}
	if err != nil {
		return err
	}
	if err := setMode(files, fd, path, o.Mode); err != nil {
		return err
	}
	if err := unix.Ftruncate(fd, 0); err != nil {
		unix.Close(fd)
		return pathError("truncate", path, err)
	}
	return WriteTo(fd, path, data)
}

// takesMode returns the reason why the file st may not get a mode, or nil. Only its owner may change that,
// and behind a policy this process can have more rights than the process that has opened the file.
func takesMode(files FS, st *unix.Stat_t, mode uint32) error {
	if _, direct := files.(Host); !direct && st.Mode&0o777 != mode && int(st.Uid) != unix.Geteuid() {
		return unix.EPERM
	}
	return nil
}

// setMode gives the file fd, which files have opened, a mode. After an error it closes fd.
func setMode(files FS, fd int, path string, mode *uint32) error {
	if mode == nil {
		return nil
	}
	var st unix.Stat_t
	err := fstat(fd, &st)
	if err == nil && !isRegular(&st) {
		err = notRegular(path)
	}
	if err == nil {
		err = takesMode(files, &st, *mode)
	}
	if err == nil && st.Mode&0o7777 != *mode {
		err = unix.Fchmod(fd, *mode)
	}
	if err != nil {
		unix.Close(fd)
	}
	return pathError("chmod", path, err)
}

// errAppeared says that the file has appeared since it was looked for.
var errAppeared = errors.New("the file has appeared in the meantime")

// newPrefix begins the names of the files for new contents.
const newPrefix = ".agent-write-"

// replaceFile is WriteFile with Atomic, without Parents. Once links are resolved it follows none,
// so nobody can lead it elsewhere by a new link.
func replaceFile(ctx context.Context, files FS, path string, data []byte, o WriteOptions) (err error) {
	real := path
	dir, name := splitPath(path)
	switch {
	case name == "":
		return pathError("open", path, unix.EISDIR)
	case o.Links != FollowLinks:
	case o.Exclusive:
		if dir, err = files.Canonicalize(ctx, dir, false); err != nil {
			return err
		}
		real = join(dir, name)
	default:
		if real, err = files.Canonicalize(ctx, path, true); err != nil {
			return err
		}
	}

	var old *likeness
	if !o.Exclusive {
		if old, err = likenessOf(ctx, files, real); err != nil {
			return err
		}
	}
	mode := o.Mode
	if old != nil && mode == nil {
		mode = new(old.stat.Mode & 0o777)
	} else if old != nil {
		if err := takesMode(files, &old.stat, *mode); err != nil {
			return pathError("chmod", path, err)
		}
	}
	dir, _ = splitPath(real)
	temp := join(dir, newPrefix+rand.Text())
	fd, err := files.OpenWrite(ctx, temp, Writing{Links: RefuseLinks, New: true, Private: mode != nil})
	if err != nil {
		return about(path, err)
	}
	defer func() {
		if err == nil {
			return
		}
		if left := files.Remove(context.WithoutCancel(ctx), temp, false, true, RefuseLinks); left != nil {
			err = errors.Join(err, left) // which names the file
		}
	}()
	if err := old.give(fd); err != nil {
		unix.Close(fd)
		return pathError("chown", path, err)
	}
	if mode != nil {
		if err := unix.Fchmod(fd, *mode); err != nil {
			unix.Close(fd)
			return pathError("chmod", path, err)
		}
	}
	if err := writeAll(fd, data); err != nil {
		unix.Close(fd)
		return pathError("write", path, err)
	}
	err = unix.Fsync(fd) // so that a crash of the machine does not leave a file without content
	if cerr := unix.Close(fd); err == nil && cerr != unix.EINTR {
		err = cerr
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return pathError("write", path, err)
	}
	if err = files.Rename(ctx, temp, real, old != nil); errors.Is(err, unix.EEXIST) && !o.Exclusive {
		return errAppeared
	}
	return about(path, err)
}

// about returns an error about the file for a new content as one about the file that it is for.
func about(path string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError(e.Op, path, e.Err)
	}
	return err
}

// likeness is what a file has besides its content.
type likeness struct {
	stat unix.Stat_t
	acl  []byte // empty: none
}

// aclName is the attribute that has the ACL of a file; acl(5).
const aclName = "system.posix_acl_access"

// likenessOf returns the likeness of the regular file at path; nil if there is no file. The file must be
// one that may be written, as if it were written in place.
func likenessOf(ctx context.Context, files FS, path string) (*likeness, error) {
	fd, err := files.OpenWrite(ctx, path, Writing{Links: RefuseLinks, Old: true})
	if errors.Is(err, unix.ETXTBSY) {
		fd, err = files.OpenRead(ctx, path, RefuseLinks) // a program that runs is not written, but can be replaced
	}
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	l := new(likeness)
	if err := fstat(fd, &l.stat); err != nil {
		return nil, pathError("stat", path, err)
	}
	buf := make([]byte, 64<<10) // the most that an attribute can have
	n, err := unix.Fgetxattr(fd, aclName, buf)
	if err != nil && err != unix.ENODATA && err != unix.ENOTSUP {
		return nil, pathError("getxattr", path, err)
	}
	l.acl = buf[:max(n, 0)]
	return l, nil
}

// give gives a new file the owner and the ACL. The file may have an ACL from its directory, which
// must not let others in.
func (l *likeness) give(fd int) error {
	if l == nil {
		return nil
	}
	var st unix.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	if st.Uid != l.stat.Uid || st.Gid != l.stat.Gid {
		if err := unix.Fchown(fd, int(l.stat.Uid), int(l.stat.Gid)); err != nil {
			return err
		}
	}
	if len(l.acl) > 0 {
		return unix.Fsetxattr(fd, aclName, l.acl, 0)
	}
	err := unix.Fremovexattr(fd, aclName)
	if err == unix.ENODATA || err == unix.ENOTSUP {
		return nil
	}
	return err
}
