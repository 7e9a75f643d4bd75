package filecopy

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

// Records of a list, in the headers of its entries.
const (
	// RecordListed is the size of the file.
	RecordListed = "EXECAGENT.listed"
	// RecordTarget is the type of what a link leads to: file, directory, other, or missing. Of another
	// file it can be socket.
	RecordTarget = "EXECAGENT.target"
)

// Type returns the type of a file for people: file, directory or other.
func Type(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode.IsRegular():
		return "file"
	}
	return "other"
}

// list writes a tar archive with the headers of a file, or of the files in a directory, and no content.
// A path that ends in a slash means the directory that a link leads to.
func list(ctx context.Context, w io.Writer, path string, note Note) error {
	buffer := bufio.NewWriterSize(w, gathered)
	l := lister{tar: tar.NewWriter(buffer), note: note}
	names := []string{""}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		dir, err := os.Open(path)
		if err != nil {
			return about(path, reason(err))
		}
		names, err = dir.Readdirnames(-1)
		_ = dir.Close() // nothing was written to it
		if err != nil {
			l.omit(path, err) // the names that could be read follow
		}
		slices.Sort(names)
	}
	for _, name := range names {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := l.entry(path, name); err != nil {
			return err
		}
	}
	if err := errors.Join(l.tar.Close(), buffer.Flush()); err != nil {
		return err
	}
	if l.failed {
		return ErrIncomplete
	}
	return nil
}

// asPipe is a socket, which archives do not have.
type asPipe struct{ fs.FileInfo }

func (p asPipe) Mode() fs.FileMode { return p.FileInfo.Mode()&^fs.ModeSocket | fs.ModeNamedPipe }

type lister struct {
	tar    *tar.Writer
	note   Note
	failed bool
}

func (l *lister) omit(path string, err error) {
	l.failed = true
	l.note(path, reason(err))
}

// entry writes the header of a file in dir, or of dir itself.
func (l *lister) entry(dir, name string) error {
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) && name != "" {
		return nil // it was removed meanwhile
	}
	if err != nil {
		l.omit(path, err)
		return nil
	}
	target := ""
	records := map[string]string{RecordListed: strconv.FormatInt(info.Size(), 10)}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, _ = os.Readlink(path) // it may be replaced meanwhile
		records[RecordTarget] = "missing"
		if there, err := os.Stat(path); err == nil {
			records[RecordTarget] = Type(there.Mode())
		}
	}
	if info.Mode()&fs.ModeSocket != 0 {
		info = asPipe{info}
		records[RecordTarget] = "socket"
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		l.omit(path, err)
		return nil
	}
	h.Name, h.Size, h.PAXRecords, h.Format = name, 0, records, tar.FormatPAX
	if name == "" {
		h.Name = filepath.Base(path)
	}
	h.ModTime, h.AccessTime, h.ChangeTime = info.ModTime(), time.Time{}, time.Time{}
	err = l.tar.WriteHeader(h)
	if errors.Is(err, tar.ErrHeader) {
		l.omit(path, err)
		return nil
	}
	return err
}
