package filecopy

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// node is a name in an open directory. Sent files are reached by one name after the other, and no
// link is followed. So if another user replaces a directory by a link while it is sent, the target
// of the link is not read.
type node struct {
	dir   int
	name  string
	path  string // for people
	depth int    // names that it has in the stream
}

// open opens the directory that contains a source. Links are followed only in the path of this
// directory. The caller closes it.
func (r root) open() (node, error) {
	dir, err := unix.Open(filepath.Dir(r.path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	n := node{dir: dir, name: filepath.Base(r.path), path: r.path, depth: 1}
	if r.name == "." {
		n.depth = 0
	}
	return n, err
}

func (n node) below(dir *os.File, name string) node {
	return node{dir: int(dir.Fd()), name: name, path: filepath.Join(n.path, name), depth: n.depth + 1}
}

func (n node) stat() (st unix.Stat_t, err error) {
	err = unix.Fstatat(n.dir, n.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return st, err
}

// open opens a file. It follows no link, and does not wait for the other end of a FIFO.
func (n node) open() (f *os.File, st unix.Stat_t, err error) {
	fd, err := unix.Openat(n.dir, n.name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, st, err
	}
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd) // nothing was written to it
		return nil, st, err
	}
	return os.NewFile(uintptr(fd), n.path), st, nil
}

// list opens a directory and returns its entries, sorted by name. With an error, it returns the
// entries that could be read. The type of an entry may have changed since.
func (n node) list() (*os.File, []fs.DirEntry, error) {
	fd, err := unix.Openat(n.dir, n.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	dir := os.NewFile(uintptr(fd), n.path)
	entries, err := dir.ReadDir(-1)
	if n.depth == maxDepth && len(entries) > 0 {
		entries, err = nil, errDeep
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return dir, entries, err
}

func (n node) readlink() (string, error) {
	buf := make([]byte, unix.PathMax)
	length, err := unix.Readlinkat(n.dir, n.name, buf)
	if err == nil && length == len(buf) {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		return "", err
	}
	return string(buf[:length]), nil
}

// measure returns the size of the files of a source, as far as they can be read.
func measure(ctx context.Context, r root) int64 {
	n, err := r.open()
	if err != nil {
		return 0
	}
	defer unix.Close(n.dir)
	return n.measure(ctx)
}

func (n node) measure(ctx context.Context) (size int64) {
	st, err := n.stat()
	if err != nil || ctx.Err() != nil {
		return 0
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return st.Size
	case unix.S_IFDIR:
		dir, entries, _ := n.list() // the error is reported when the directory is sent
		if dir == nil {
			return 0
		}
		defer dir.Close()
		for _, entry := range entries {
			if entry.IsDir() || entry.Type().IsRegular() {
				size += n.below(dir, entry.Name()).measure(ctx)
			}
		}
	}
	return size
}
