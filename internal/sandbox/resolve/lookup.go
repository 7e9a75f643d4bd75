package resolve

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

const (
	// maxLinks bounds the symlinks of a path, as path_resolution(7) does.
	maxLinks = 40
	// maxSteps bounds the names that are looked up for all paths of a policy
	// and all symlinks on the way. That many take some tenths of a second.
	maxSteps = 1 << 18
)

// budget is how many steps a resolution has left.
type budget int

var errBudget = fmt.Errorf("the sandbox paths take more than %d steps", maxSteps)

func (b *budget) take() error {
	if *b == 0 {
		return errBudget
	}
	*b--
	return nil
}

// object is the object that a path leads to.
type object struct {
	path string // canonical; missing names are as written
	// at is the deepest part of path that exists, and fd an O_PATH descriptor of
	// it, which close closes.
	at   string
	fd   int
	stat unix.Stat_t // of at
	// in is a descriptor of the directory that fd was found in. It is -1 for the
	// root, and once lookup has returned.
	in int
	// missing are the names below at that do not exist.
	missing []string
	// barred: this user may not look for anything in at (EACCES).
	barred bool
	links  []crossing // on the way, in order
}

// cannotWrite reports whether at is a directory of somebody else, or on a
// read-only file system, that this user cannot write to.
func (o *object) cannotWrite() bool {
	err := unix.Faccessat2(o.fd, "", unix.W_OK, unix.AT_EACCESS|unix.AT_EMPTY_PATH)
	return err == unix.EROFS || err == unix.EACCES && !placeholder.Owns(o.fd)
}

// crossing is a symlink that was followed.
type crossing struct {
	sandbox.Link
	stat unix.Stat_t
}

// lookup follows an absolute path name by name, and takes each step from the
// budget. A path that leads nowhere is no error; a canonical path of more than
// MaxPath bytes is one. The caller must close the object.
func lookup(name string, left *budget) (*object, error) {
	o := &object{at: "/", in: -1}
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	o.fd = fd
	if err := o.follow(name, left); err != nil {
		o.close()
		return nil, err
	}
	o.path = path.Join(o.at, path.Join(o.missing...))
	if len(o.path) > sandbox.MaxPath {
		o.close()
		return nil, unix.ENAMETOOLONG
	}
	err = unix.Fstat(o.fd, &o.stat)
	if err == nil && o.in >= 0 && placeholder.IsPlaceholder(&o.stat) {
		// A placeholder is removed when no process needs it any more, so its name
		// counts as missing, and the object is the directory around it.
		o.missing = append([]string{path.Base(o.at)}, o.missing...)
		o.at = pathname.Parent(o.at)
		o.fd, o.in = o.in, o.fd
		err = unix.Fstat(o.fd, &o.stat)
	}
	o.leave()
	if err != nil {
		o.close()
		return nil, err
	}
	return o, nil
}

func (o *object) close() {
	_ = unix.Close(o.fd)
	o.leave()
}

// leave closes in.
func (o *object) leave() {
	if o.in >= 0 {
		_ = unix.Close(o.in)
	}
	o.in = -1
}

// exists reports whether the path leads somewhere.
func (o *object) exists() bool { return len(o.missing) == 0 }

// follow goes from at to the object that the names of a path lead to. A ".."
// can only come from the text of a symlink. It means the parent of at, because
// at is canonical; follow looks up that path from the root again, and does not
// open "..", because the directory may have been moved in the meantime.
func (o *object) follow(name string, left *budget) error {
	pending := push(nil, name) // a stack: the next name is the last
	for len(pending) > 0 {
		if err := left.take(); err != nil {
			return err
		}
		name := pending[len(pending)-1]
		pending = pending[:len(pending)-1]
		switch name {
		case "", ".":
			continue
		case "..":
			pending = push(pending, pathname.Parent(o.at))
			if err := o.restart(); err != nil {
				return err
			}
			continue
		}
		target, ok, err := o.enter(name)
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EACCES):
			o.barred = err == unix.EACCES
			return o.stop(append(pending, name))
		case err != nil:
			return err
		case ok:
			continue
		}
		if len(o.links) > maxLinks {
			return unix.ELOOP
		}
		pending = push(pending, target)
		if path.IsAbs(target) {
			if err := o.restart(); err != nil {
				return err
			}
		}
	}
	return nil
}

// push puts the names of a path on the stack of pending ones.
func push(pending []string, name string) []string {
	n := len(pending)
	for element := range strings.SplitSeq(name, "/") {
		pending = append(pending, element)
	}
	slices.Reverse(pending[n:])
	return pending
}

// enter goes from at to the object with that name in it. If the object is a
// symlink, enter stays at at, and returns the link's text and false.
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
	if len(full) > sandbox.MaxPath {
		_ = unix.Close(fd)
		return "", false, unix.ENAMETOOLONG
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		o.leave()
		o.in, o.fd, o.at = o.fd, fd, full
		return "", true, nil
	}
	defer func() { _ = unix.Close(fd) }()
	text := make([]byte, sandbox.MaxPath)
	n, err := unix.Readlinkat(fd, "", text)
	if err != nil {
		return "", false, err
	}
	if n == len(text) {
		return "", false, unix.ENAMETOOLONG
	}
	target = string(text[:n])
	o.links = append(o.links, crossing{sandbox.Link{Path: full, Target: target}, st})
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

// stop makes the pending names, which lead nowhere, the missing ones.
func (o *object) stop(pending []string) error {
	for _, n := range slices.Backward(pending) {
		switch n {
		case "", ".":
		case "..":
			return unix.ENOENT // of a dangling symlink, whose target is unknown
		default:
			o.missing = append(o.missing, n)
		}
	}
	return nil
}
