package applypatch

import (
	"context"
	"errors"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// touchedFile is a file that a patch has touched, but that is unchanged on disk.
type touchedFile struct {
	path    string // without links; a link that was removed is an entry of its own
	named   string // the path by which it was touched first, for the texts of errors
	existed bool
	stat    unix.Stat_t  // of the existing file that was read or will be replaced
	special bool         // the existing file is a link, a fifo or the like
	gone    bool         // the patch has removed it
	like    *unix.Stat_t // file whose mode and owner a new content gets; nil for none
	temp    string       // the file beside it that has the new content, "" for none
	data    []byte       // the new content, where it is kept in memory
	filled  bool         // there is a new content
}

// overlay is what the hunks so far would make of the files.
type overlay struct {
	*Target
	entries map[string]*touchedFile
	order   []*touchedFile
	noLinks bool // a link was removed, and other links may have led through it
}

// errLinks says why a link is no longer followed.
var errLinks = errors.New("where this link leads is not known any more: the patch has removed another one")

// locate returns the file that path leads to.
func (o *overlay) locate(ctx context.Context, path string) (*touchedFile, error) {
	name, err := o.name(ctx, path)
	if err != nil {
		return nil, err
	}
	if e := o.entries[name]; e != nil {
		return e, nil
	}
	file, err := o.Files.Canonicalize(ctx, name, false)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return &touchedFile{path: name, named: path}, nil
	case err != nil:
		return nil, err
	case file != name && o.noLinks:
		return nil, errLinks
	}
	if e := o.entries[file]; e != nil {
		return e, nil
	}
	return &touchedFile{path: file, named: path, existed: true}, nil
}

// name returns path with the links in all but its last name resolved.
func (o *overlay) name(ctx context.Context, path string) (string, error) {
	dir, err := o.directory(ctx, filepath.Dir(path))
	return filepath.Join(dir, filepath.Base(path)), err
}

// directory returns path without links. Its missing part has none.
func (o *overlay) directory(ctx context.Context, path string) (string, error) {
	dir, err := o.Files.Canonicalize(ctx, path, false)
	if path == "/" || !errors.Is(err, syscall.ENOENT) {
		return dir, err
	}
	dir, err = o.name(ctx, path)
	if err == nil && o.entries[dir] != nil && !o.entries[dir].gone {
		err = syscall.ENOTDIR
	}
	return dir, err
}

// keep makes e part of the overlay.
func (o *overlay) keep(e *touchedFile) {
	if o.entries[e.path] == nil {
		o.entries[e.path] = e
		o.order = append(o.order, e)
	}
}

// fresh returns the file at path, ready for a new content. An existing file must be regular.
func (o *overlay) fresh(ctx context.Context, path string) (*touchedFile, error) {
	e, err := o.locate(ctx, path)
	if err != nil || !e.existed || o.entries[e.path] != nil {
		return e, err
	}
	fd, st, err := o.open(ctx, e.path, fsops.RefuseLinks)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	e.stat, e.like = st, &st
	return e, mayWrite(fd)
}

// again returns the file that was read, ready for a new content. It refuses a path that now leads
// to another file, because the one who changed the path could read content that they may not read.
func (o *overlay) again(ctx context.Context, src *source) (*touchedFile, error) {
	e, err := o.fresh(ctx, src.path)
	if err == nil && o.entries[e.path] == nil && (!e.existed || e.stat.Dev != src.stat.Dev || e.stat.Ino != src.stat.Ino) {
		err = syscall.EBUSY
	}
	return e, err
}

// mayWrite returns the reason why an open file may not be written, or nil. A rename would not check
// that, but a read-only file should keep its content.
func mayWrite(fd int) error {
	err := unix.Faccessat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.W_OK, unix.AT_EACCESS)
	if errors.Is(err, syscall.ENOENT) {
		return nil // there is no procfs
	}
	return err
}

// read returns the file at path as the hunks so far have made it.
func (o *overlay) read(ctx context.Context, path string) (*source, error) {
	e, err := o.locate(ctx, path)
	if err != nil {
		return nil, err
	}
	if e.gone {
		return nil, syscall.ENOENT
	}
	if e.data != nil || e.filled && e.temp == "" {
		return &source{path: path, data: e.data, stat: e.stat, kept: true}, nil
	}
	file := e.path
	if e.temp != "" {
		file = e.temp
	}
	src, err := o.readBy(ctx, file, fsops.RefuseLinks) // its place was already found
	if err != nil {
		return nil, err
	}
	src.path = path
	return src, nil
}

// take notes that the file at path is gone.
func (o *overlay) take(ctx context.Context, path string) error {
	name, err := o.name(ctx, path)
	if err != nil {
		return err
	}
	e := o.entries[name]
	if e == nil {
		m, err := o.removable(ctx, name)
		if err != nil {
			return err
		}
		// A link is removed, but only one that leads to a file.
		there, err := o.locate(ctx, name)
		if err != nil {
			return err
		}
		if there.gone {
			return syscall.ENOENT
		}
		e = &touchedFile{path: name, named: path, existed: true, special: m.IsSymlink || !m.IsFile}
		o.keep(e)
		o.noLinks = o.noLinks || m.IsSymlink
	}
	if e.gone {
		return syscall.ENOENT
	}
	e.gone, e.like = true, nil
	return nil
}

// same reports whether to leads to the file that was read at from, so that removing from would lose
// the file.
func (o *overlay) same(ctx context.Context, from *source, to *touchedFile) (bool, error) {
	name, err := o.name(ctx, from.path)
	if err != nil || name == to.path {
		return true, err
	}
	// In a directory that is mounted twice, one file has two paths.
	there, err := o.Files.Stat(ctx, name, fsops.FollowLinks)
	return err == nil && !there.IsSymlink && to.existed && to.stat.Dev == from.stat.Dev && to.stat.Ino == from.stat.Ino && to.stat.Nlink == 1, nil
}
