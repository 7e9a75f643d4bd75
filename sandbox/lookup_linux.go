package sandbox

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// The bounds of following a path.
const (
	maxLinks = 40    // as path_resolution(7)
	maxSteps = 16384 // names opened
)

// object is what a path leads to.
type object struct {
	path string // canonical; what is missing is as written
	// at is the deepest that exists of path, and fd an O_PATH descriptor of
	// it. The object owns it.
	at   string
	fd   int
	stat unix.Stat_t // of at
	// missing are the names below at that do not exist.
	missing []string
	// barred: what is below at is not ours to see (EACCES).
	barred bool
	links  []crossing // on the way, in order
}

// cannotWrite tells whether at is a directory of somebody else, or on a
// read-only file system, that this user cannot write to.
func (o *object) cannotWrite() bool {
	err := unix.Faccessat2(o.fd, "", unix.W_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	return err == unix.EROFS || err == unix.EACCES && int(o.stat.Uid) != os.Geteuid()
}

// crossing is a symlink that was followed.
type crossing struct {
	Link
	stat unix.Stat_t
}

// lookup follows a clean absolute path name by name. It is not an error if it
// leads nowhere. The caller has to close the object.
func lookup(name string) (*object, error) {
	o := &object{at: "/"}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	o.fd = fd
	if err := o.follow(strings.Split(name, "/")); err != nil {
		o.close()
		return nil, err
	}
	o.path = path.Join(o.at, path.Join(o.missing...))
	if err := unix.Fstat(o.fd, &o.stat); err != nil {
		o.close()
		return nil, err
	}
	if o.at != "/" && isPlaceholder(&o.stat) {
		// It goes when the process that needs it does (placeholders).
		o.missing = append([]string{path.Base(o.at)}, o.missing...)
		o.at = parent(o.at)
	}
	return o, nil
}

func (o *object) close() { _ = unix.Close(o.fd) }

// exists tells whether the path leads somewhere.
func (o *object) exists() bool { return len(o.missing) == 0 }

// follow goes from at to where the names lead. A ".." can only come from the
// text of a symlink; at has no symlinks, so what is above it is its parent.
func (o *object) follow(names []string) error {
	for range maxSteps {
		if len(names) == 0 {
			return nil
		}
		name := names[0]
		names = names[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			names = append(strings.Split(parent(o.at), "/"), names...)
			if err := o.restart(); err != nil {
				return err
			}
			continue
		}
		target, ok, err := o.enter(name)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
			o.barred = err == unix.EACCES
			return o.stop(name, names)
		case err != nil:
			return err
		case ok:
			continue
		}
		if len(o.links) > maxLinks {
			return unix.ELOOP
		}
		names = append(strings.Split(target, "/"), names...)
		if path.IsAbs(target) {
			if err := o.restart(); err != nil {
				return err
			}
		}
	}
	return unix.ELOOP
}

// enter makes name, which is in at, the new at. If it is a symlink, ok is false
// and its text is returned.
func (o *object) enter(name string) (target string, ok bool, err error) {
	fd, err := unix.Openat(o.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", false, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return "", false, err
	}
	full := path.Join(o.at, name)
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		o.close()
		o.fd, o.at = fd, full
		return "", true, nil
	}
	defer func() { _ = unix.Close(fd) }()
	text := make([]byte, MaxPath)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return "", false, err
	}
	if n == len(text) {
		return "", false, unix.ENAMETOOLONG
	}
	target = string(text[:n])
	o.links = append(o.links, crossing{Link{full, target}, st})
	return target, false, nil
}

// restart makes the root the new at.
func (o *object) restart() error {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	o.close()
	o.fd, o.at = fd, "/"
	return nil
}

// stop keeps the names that lead nowhere.
func (o *object) stop(name string, names []string) error {
	for _, n := range append([]string{name}, names...) {
		switch n {
		case "", ".":
		case "..":
			return unix.ENOENT // of a dangling symlink: where it would lead cannot be told
		default:
			o.missing = append(o.missing, n)
		}
	}
	return nil
}
