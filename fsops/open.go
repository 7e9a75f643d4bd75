package fsops

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Links says how an operation treats symbolic links in its path.
type Links uint8

const (
	// FollowLinks resolves them, as every system call does by default.
	FollowLinks Links = iota
	// RefuseLinks allows none in any component. An intermediate link is
	// ENOTDIR; a final link is ELOOP where a file would be opened, and an
	// [InvalidError] elsewhere (rpc.md 5.2).
	RefuseLinks
	// KeepLast resolves them, except one at the end of the path, which is the object
	// itself. KeepRefuse is the same, and refuses the others as RefuseLinks does. Only
	// Stat knows these two.
	KeepLast
	KeepRefuse
)

// refuses reports whether links before the end of a path are refused.
func (l Links) refuses() bool { return l == RefuseLinks || l == KeepRefuse }

// keeps reports whether a link at the end of a path is the object itself.
func (l Links) keeps() bool { return l == KeepLast || l == KeepRefuse }

// Alloc returns an empty slice with room for at least n bytes, or an error. With
// it, a caller bounds and recycles the memory for the data it reads; nil means
// make.
type Alloc func(n int) ([]byte, error)

func (a Alloc) get(n int) ([]byte, error) {
	if a == nil {
		return make([]byte, 0, n), nil
	}
	return a(n)
}

// fileID identifies a file: two descriptors with the same fileID are of one file.
type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{dev: st.Dev, ino: st.Ino} }

func isRegular(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFREG }

// openFlags are in every open: no descriptor leaks into a child, no open
// blocks, and no terminal becomes the controlling one of this process.
const openFlags = unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_NOCTTY

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY

// openAt is openat(2) with openFlags. It repeats a call that a signal
// interrupted, because the Go runtime sends signals to its own threads, and
// slow file systems then return EINTR.
func openAt(dir int, path string, flags int, mode uint32) (int, error) {
	for {
		fd, err := unix.Openat(dir, path, flags|openFlags, mode)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// openBeneath opens path, relative to dir unless absolute, without any symbolic
// link in it: a link gives ENOTDIR.
func openBeneath(dir int, path string, flags int) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | openFlags),
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	}
	if !strings.HasPrefix(path, "/") {
		how.Resolve |= unix.RESOLVE_BENEATH
	}
	if flags&unix.O_PATH != 0 {
		// With O_PATH, openat ignores these two and openat2 refuses them.
		how.Flags &^= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	for races := 0; ; {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case unix.EINTR:
			continue
		case unix.EXDEV:
			// The object was moved out of dir while the kernel looked for it.
			if races++; races < maxRaces {
				continue
			}
			return -1, unix.ENOENT
		case unix.ELOOP:
			return -1, unix.ENOTDIR
		case unix.ENOSYS, unix.EPERM:
			// An old kernel, or a filter that does not know the call.
			return stepBeneath(dir, path, flags)
		}
		return fd, err
	}
}

// stepBeneath is openBeneath without openat2, one component at a time.
func stepBeneath(dir int, path string, flags int) (int, error) {
	if strings.HasPrefix(path, "/") {
		root, err := openAt(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(root)
		dir, path = root, strings.TrimLeft(path, "/")
	}
	at := dir
	for path != "" {
		name, rest, _ := strings.Cut(path, "/")
		f := unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW
		if rest == "" {
			f = flags | unix.O_NOFOLLOW
		}
		next, err := openAt(at, name, f, 0)
		if at != dir {
			unix.Close(at)
		}
		if err == unix.ELOOP {
			err = unix.ENOTDIR
		}
		if err != nil || rest == "" {
			return next, err
		}
		at, path = next, rest
	}
	return openAt(dir, ".", flags, 0)
}

// openParent opens the directory that holds path, refusing links on the way,
// and returns it with the last name of path. The caller closes it.
func openParent(path string) (fd int, name string, err error) {
	dir, name := splitPath(path)
	if name == "" {
		return -1, "", invalidf("path %q does not name an entry of a directory", path)
	}
	fd, err = openBeneath(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY)
	return fd, name, err
}

// splitPath cuts an absolute path before its last name.
func splitPath(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/')
	return path[:max(i, min(1, len(path)))], path[i+1:]
}

// openFile opens path for reading or writing as links says, for a [Host].
func openFile(path string, flags int, mode uint32, links Links) (int, error) {
	if links == FollowLinks {
		return openHost(unix.AT_FDCWD, path, flags, mode)
	}
	dir, name, err := openParent(path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	fd, err := openAt(dir, name, flags|unix.O_NOFOLLOW, mode)
	return admit(fd, dir, flags, err)
}

// readLinkAt reads the link name in dir. With an empty name it reads the link that
// dir itself is a descriptor of.
func readLinkAt(dir int, name string) (string, error) {
	var buf [unix.PathMax]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func fstat(fd int, st *unix.Stat_t) error {
	for {
		if err := unix.Fstat(fd, st); err != unix.EINTR {
			return err
		}
	}
}

func fstatAt(dir int, path string, st *unix.Stat_t, flags int) error {
	for {
		if err := unix.Fstatat(dir, path, st, flags); err != unix.EINTR {
			return err
		}
	}
}
