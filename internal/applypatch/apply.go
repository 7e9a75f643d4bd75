package applypatch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
)

// maxFile bounds a file that is updated, in bytes.
const maxFile = 256 << 20

// Target says where a patch is applied.
type Target struct {
	Files fsops.FS
	// Dir is the folder of relative paths in the patch; absolute and clean.
	Dir string
	// Alloc returns the memory for reading a file; nil means make. Free gets the memory back; it
	// may be nil.
	Alloc fsops.Alloc
	Free  func([]byte)
}

// source is a file that was read.
type source struct {
	path string
	data []byte
	stat unix.Stat_t
	kept bool // data belongs to an overlay
}

// tree is the files while a patch is applied: each hunk finds the files as changed by earlier
// hunks. Paths are absolute and clean; links are followed.
type tree interface {
	// read returns the file at path.
	read(ctx context.Context, path string) (*source, error)
	// add makes the file at path, with its parents, or gives it a new content.
	add(ctx context.Context, path string, h *hunk) error
	// update gives the file that was read a new content.
	update(ctx context.Context, src *source, u *updated) error
	// move makes the file at path like add, and then removes the file that was read, unless both
	// are the same. The new file is executable if the old one was.
	move(ctx context.Context, src *source, path string, u *updated) error
	// remove removes the file at path.
	remove(ctx context.Context, path string) error
}

// inOrder applies p file by file. After an error the files of earlier hunks are changed: the
// changes list them.
func (t *Target) inOrder(ctx context.Context, p *Patch) ([]Change, error) {
	return t.apply(ctx, p, &inPlace{t})
}

// apply applies the hunks to the files of a tree.
func (t *Target) apply(ctx context.Context, p *Patch, files tree) (changes []Change, err error) {
	for i := range p.hunks {
		h := &p.hunks[i]
		change := Change{Kind: h.kind, Path: h.path, Name: absolute(t.Dir, h.path)}
		for _, path := range []string{h.path, h.moveTo} {
			if strings.ContainsRune(path, 0) {
				return changes, &FileError{Text: "'" + path + "' is invalid on 'linux'", Err: unix.EINVAL}
			}
		}
		switch h.kind {
		case Add:
			err = files.add(ctx, change.Name, h)
		case Delete:
			err = files.remove(ctx, change.Name)
		case Update:
			if h.moveTo != "" {
				change.Path, change.From, change.Name = h.moveTo, change.Name, absolute(t.Dir, h.moveTo)
			}
			err = t.update(ctx, files, h, &change)
		}
		if err != nil {
			return changes, err
		}
		changes = append(changes, change)
	}
	return changes, nil
}

// update updates the file of h, and moves it if the change says so.
func (t *Target) update(ctx context.Context, files tree, h *hunk, change *Change) error {
	from := absolute(t.Dir, h.path)
	src, err := files.read(ctx, from)
	if err == nil {
		err = checkUTF8(src.data)
	}
	if err != nil {
		return readError(from, err)
	}
	if t.Free != nil && !src.kept {
		defer t.Free(src.data)
	}
	u, err := place(ctx, src.data, h, from)
	if err != nil {
		return err
	}
	if change.From == "" {
		return files.update(ctx, src, u)
	}
	return files.move(ctx, src, change.Name, u)
}

// open opens the regular file at path for reading.
func (t *Target) open(ctx context.Context, path string, links fsops.Links) (fd int, st unix.Stat_t, err error) {
	fd, err = t.Files.OpenRead(ctx, path, links)
	if err != nil {
		return -1, st, err
	}
	if err = unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// read reads the regular file at path.
func (t *Target) read(ctx context.Context, path string) (*source, error) {
	return t.readBy(ctx, path, fsops.FollowLinks)
}

func (t *Target) readBy(ctx context.Context, path string, links fsops.Links) (*source, error) {
	fd, st, err := t.open(ctx, path, links)
	if err != nil {
		return nil, err
	}
	if st.Size > maxFile {
		unix.Close(fd)
		return nil, unix.EFBIG
	}
	data, err := fsops.ReadFrom(fd, path, t.Alloc)
	if err != nil {
		return nil, err
	}
	return &source{path: path, data: data, stat: st}, nil
}

// inPlace is a tree that writes each hunk at once into the existing files, so that their modes,
// owners and further names stay.
type inPlace struct{ *Target }

func (t *inPlace) add(ctx context.Context, path string, h *hunk) error {
	_, err := t.fill(ctx, path, 0, h.content)
	return err
}

func (t *inPlace) update(ctx context.Context, src *source, u *updated) error {
	_, err := t.fill(ctx, src.path, 0, u.content)
	return err
}

// fill writes the file at path, and makes it executable if mode is. It returns the description of
// the written file.
func (t *inPlace) fill(ctx context.Context, path string, mode uint32, content func(io.Writer) error) (st unix.Stat_t, err error) {
	fd, err := t.Files.OpenWrite(ctx, path, fsops.Writing{})
	if errors.Is(err, syscall.ENOENT) {
		if err := t.Files.CreateDirectory(ctx, filepath.Dir(path), true, fsops.FollowLinks); err != nil {
			return st, parentsError(path, err)
		}
		fd, err = t.Files.OpenWrite(ctx, path, fsops.Writing{})
	}
	if err != nil {
		return st, writeError(path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	err = unix.Fstat(fd, &st)
	if err == nil {
		err = makeExecutable(f, &st, mode)
	}
	if err == nil {
		err = pour(f, content)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return st, writeError(path, err)
	}
	return st, nil
}

// makeExecutable lets everybody execute a file who may read it, if mode is executable.
func makeExecutable(f *os.File, st *unix.Stat_t, mode uint32) error {
	want := st.Mode | mode&0o111&(st.Mode>>2)
	if want == st.Mode {
		return nil
	}
	err := f.Chmod(os.FileMode(want & 0o777))
	if errors.Is(err, unix.EPERM) {
		return nil // the file existed, and belongs to somebody else
	}
	return err
}

// pour writes content to f.
func pour(f *os.File, content func(io.Writer) error) error {
	w := bufio.NewWriterSize(f, 64<<10)
	if err := content(w); err != nil {
		return err
	}
	return w.Flush()
}

func (t *inPlace) move(ctx context.Context, from *source, to string, u *updated) error {
	st, err := t.fill(ctx, to, from.stat.Mode, u.content)
	if err != nil {
		return err
	}
	if st.Dev == from.stat.Dev && st.Ino == from.stat.Ino {
		switch last, err := t.lastName(ctx, from, to); {
		case err != nil:
			return deleteError(from.path, err)
		case last:
			return nil
		}
	}
	return t.remove(ctx, from.path)
}

// lastName reports whether to leads to the name by which a file was read, so that removing the name
// would lose the file.
func (t *inPlace) lastName(ctx context.Context, from *source, to string) (bool, error) {
	there, err := t.Files.Stat(ctx, from.path, fsops.FollowLinks)
	if err != nil || there.IsSymlink {
		return false, err // only a link is removed
	}
	if from.stat.Nlink == 1 {
		return true, nil
	}
	a, err := t.Files.Canonicalize(ctx, from.path, false)
	if err != nil {
		return false, err
	}
	b, err := t.Files.Canonicalize(ctx, to, false)
	return a == b, err
}

func (t *inPlace) remove(ctx context.Context, path string) error {
	_, err := t.removable(ctx, path)
	if err == nil {
		err = t.Files.Remove(ctx, path, false, false, fsops.FollowLinks)
	}
	if err != nil {
		return deleteError(path, err)
	}
	return nil
}

// removable describes the object at path, or returns the reason why a patch may not remove
// it: a patch removes only files, and links to files.
func (t *Target) removable(ctx context.Context, path string) (fsops.Metadata, error) {
	m, err := t.Files.Stat(ctx, path, fsops.FollowLinks)
	if err == nil && m.IsDirectory {
		err = unix.EISDIR
	}
	return m, err
}
