package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/protocol"
)

// Tree is the directory root on the server as an [fs.FS], for io/fs, text/template,
// http.FS and so on. It is read-only, and follows links as the server does. Modes
// only say that files may be read; [FS.StatDetails] has the real ones. A name with
// U+FFFD cannot be opened, because the listing of a directory has U+FFFD for bytes that are
// not UTF-8. ctx bounds all use of the tree.
func (f *FS) Tree(ctx context.Context, root string) fs.FS { return &tree{ctx, f, root} }

type tree struct {
	ctx  context.Context
	fs   *FS
	root string
}

// native is the path on the server.
func (t *tree) native(op, name string) (string, error) {
	if !fs.ValidPath(name) || strings.ContainsRune(name, utf8.RuneError) {
		return "", pathError(op, name, fs.ErrInvalid)
	}
	return path.Join(t.root, name), nil
}

// within names the file in errors as the caller did.
func within(op, name string, err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err
	}
	return pathError(op, name, err)
}

// Open opens a file or a directory.
func (t *tree) Open(name string) (fs.File, error) {
	info, err := t.stat("open", name)
	if err != nil {
		return nil, err
	}
	native, err := t.native("open", name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return &treeDir{tree: t, name: name, info: info}, nil
	}
	file, err := t.fs.Open(t.ctx, native, protocol.OpenRead)
	if err != nil {
		return nil, within("open", name, err)
	}
	return &treeFile{ctx: t.ctx, file: file, info: info}, nil
}

// Stat describes a file without opening it.
func (t *tree) Stat(name string) (fs.FileInfo, error) { return t.stat("stat", name) }

func (t *tree) stat(op, name string) (fs.FileInfo, error) {
	native, err := t.native(op, name)
	if err != nil {
		return nil, err
	}
	m, err := t.fs.Stat(t.ctx, native)
	if err != nil {
		return nil, within(op, name, err)
	}
	return fileInfo{path.Base(name), m}, nil
}

// ReadFile reads a whole file with one request.
func (t *tree) ReadFile(name string) ([]byte, error) {
	native, err := t.native("read", name)
	if err != nil {
		return nil, err
	}
	data, err := t.fs.ReadFile(t.ctx, native)
	return data, within("read", name, err)
}

// ReadDir lists a directory, in the order of names.
func (t *tree) ReadDir(name string) ([]fs.DirEntry, error) {
	native, err := t.native("readdir", name)
	if err != nil {
		return nil, err
	}
	listed, err := t.fs.ReadDir(t.ctx, native)
	if err != nil {
		return nil, within("readdir", name, err)
	}
	entries := make([]fs.DirEntry, len(listed))
	for i, e := range listed {
		entries[i] = &dirEntry{t, path.Join(name, e.FileName), e}
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, nil
}

// treeFile is an open file of a tree: an io.Reader, io.Seeker and io.ReaderAt. Each Read
// makes a request, so use a bufio.Reader to read small pieces.
type treeFile struct {
	ctx    context.Context
	file   *File
	info   fs.FileInfo
	offset int64
}

// Read continues after the last Read. It ignores the size of the file, because files
// in procfs have the size 0.
func (f *treeFile) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.file.ReadAtContext(f.ctx, p[:min(len(p), maxBlock)], f.offset)
	f.offset += int64(n)
	if n > 0 && err == io.EOF {
		err = nil
	}
	return n, err
}

// ReadAt reads at an offset, and does not change the offset of Read.
func (f *treeFile) ReadAt(p []byte, offset int64) (int, error) {
	return f.file.ReadAtContext(f.ctx, p, offset)
}

// Seek sets the offset of Read. The end of the file is its end when it was opened.
func (f *treeFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += f.offset
	case io.SeekEnd:
		offset += f.info.Size()
	default:
		return 0, pathError("seek", f.info.Name(), fs.ErrInvalid)
	}
	if offset < 0 {
		return 0, pathError("seek", f.info.Name(), fs.ErrInvalid)
	}
	f.offset = offset
	return offset, nil
}

func (f *treeFile) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *treeFile) Close() error               { return f.file.Close() }

// treeDir is an open directory of a tree.
type treeDir struct {
	tree   *tree
	name   string
	info   fs.FileInfo
	listed bool
	rest   []fs.DirEntry
}

func (d *treeDir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *treeDir) Close() error               { return nil }
func (d *treeDir) Read([]byte) (int, error) {
	return 0, pathError("read", d.name, errors.New("is a directory"))
}

// ReadDir continues where the last call ended (fs.ReadDirFile).
func (d *treeDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !d.listed {
		all, err := d.tree.ReadDir(d.name)
		if err != nil {
			return nil, err
		}
		d.rest, d.listed = all, true
	}
	if n > 0 && len(d.rest) == 0 {
		return nil, io.EOF
	}
	if n <= 0 || n > len(d.rest) {
		n = len(d.rest)
	}
	entries := d.rest[:n:n]
	d.rest = d.rest[n:]
	return entries, nil
}

type dirEntry struct {
	tree  *tree
	path  string
	entry protocol.DirectoryEntry
}

func (e *dirEntry) Name() string               { return e.entry.FileName }
func (e *dirEntry) IsDir() bool                { return e.entry.IsDirectory }
func (e *dirEntry) Type() fs.FileMode          { return mode(e.entry.IsDirectory, e.entry.IsFile).Type() }
func (e *dirEntry) Info() (fs.FileInfo, error) { return e.tree.Stat(e.path) }
func (e *dirEntry) String() string             { return fs.FormatDirEntry(e) }

type fileInfo struct {
	name string
	m    *protocol.FileMetadata
}

func (i fileInfo) Name() string       { return i.name }
func (i fileInfo) Size() int64        { return int64(i.m.Size) }
func (i fileInfo) Mode() fs.FileMode  { return mode(i.m.IsDirectory, i.m.IsFile) }
func (i fileInfo) ModTime() time.Time { return time.UnixMilli(i.m.ModifiedAtMs) }
func (i fileInfo) IsDir() bool        { return i.m.IsDirectory }
func (i fileInfo) Sys() any           { return i.m }

func mode(directory, regular bool) fs.FileMode {
	switch {
	case directory:
		return fs.ModeDir | 0o555
	case regular:
		return 0o444
	}
	return fs.ModeIrregular | 0o444
}
