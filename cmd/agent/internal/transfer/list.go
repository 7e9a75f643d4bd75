package transfer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/filecopy"
	"github.com/execagent/execagent/protocol"
)

// asked is the number of concurrent requests about files.
const asked = 32

// Listing says how files are listed.
type Listing struct {
	Long     bool // with kind, size and time
	All      bool // also names that begin with a dot
	Human    bool // sizes in units such as K and M
	JSON     bool
	Terminal bool // quote names that would control a terminal
}

// listedFile is a file in a list.
type listedFile struct {
	Name     string    `json:"name"`
	Path     string    `json:"path"`
	Type     string    `json:"type"` // file, directory or other; for a link, the type of its target
	Link     bool      `json:"link"`
	Size     uint64    `json:"size"`
	Modified time.Time `json:"modified"`
}

func newEntry(name, path string, m *protocol.FileMetadata) listedFile {
	e := listedFile{Name: name, Path: path, Type: "other", Link: m.IsSymlink, Size: m.Size, Modified: time.UnixMilli(m.ModifiedAtMs).UTC()}
	switch {
	case m.IsDirectory:
		e.Type = "directory"
	case m.IsFile:
		e.Type = "file"
	}
	return e
}

// List writes files, and then the contents of directories, as ls(1) does.
func (f *Files) List(ctx context.Context, w io.Writer, names []string, l Listing) error {
	var single []listedFile
	all := []listedFile{} // not null in JSON
	var out bytes.Buffer
	var directories []string
	err := f.each(ctx, names, func(ctx context.Context, name, at string) error {
		m, err := f.Client.FS(nil).Stat(ctx, at)
		if err != nil {
			return err
		}
		if m.IsDirectory {
			directories = append(directories, name)
			return nil
		}
		single = append(single, newEntry(strings.TrimPrefix(name, ":"), at, m))
		return nil
	})
	all = append(all, single...)
	l.write(&out, single)
	listed := f.each(ctx, directories, func(ctx context.Context, name, at string) error {
		entries, err := f.directory(ctx, at, l)
		if err != nil {
			return err
		}
		all = append(all, entries...)
		if len(names) > 1 {
			if out.Len() > 0 {
				out.WriteByte('\n')
			}
			fmt.Fprintf(&out, "%s:\n", l.name(strings.TrimPrefix(name, ":")))
		}
		l.write(&out, entries)
		return nil
	})
	if l.JSON {
		out.Reset()
		if err := program.PrintJSON(&out, all); err != nil {
			return err
		}
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return &writeError{err}
	}
	if err == nil {
		return listed
	}
	return err
}

// directory returns the files in a directory, sorted by name.
func (f *Files) directory(ctx context.Context, at string, l Listing) ([]listedFile, error) {
	listed, err := f.Client.FS(nil).ReadDir(ctx, at)
	if err != nil {
		return nil, err
	}
	entries := make([]listedFile, 0, len(listed))
	for _, d := range listed {
		if !l.All && strings.HasPrefix(d.FileName, ".") {
			continue
		}
		m := protocol.FileMetadata{IsDirectory: d.IsDirectory, IsFile: d.IsFile}
		entries = append(entries, newEntry(d.FileName, path.Join(at, d.FileName), &m))
	}
	slices.SortFunc(entries, func(a, b listedFile) int { return strings.Compare(a.Name, b.Name) })
	if l.Long || l.JSON {
		f.describe(ctx, entries)
	}
	return entries, context.Cause(ctx)
}

// describe asks the agent for the metadata that a directory listing lacks. An entry stays as it is
// if the file no longer exists, or if its name may not be UTF-8: the listing has U+FFFD in such a
// name, and another file may have that name.
func (f *Files) describe(ctx context.Context, entries []listedFile) {
	var asking sync.WaitGroup
	slots := make(chan struct{}, asked)
	for i := range entries {
		if strings.ContainsRune(entries[i].Name, utf8.RuneError) {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			e := &entries[i]
			if m, err := f.Client.FS(nil).Stat(ctx, e.Path); err == nil {
				*e = newEntry(e.Name, e.Path, m)
			}
		})
	}
	asking.Wait()
}

// name returns a name as it is printed.
func (l Listing) name(name string) string {
	if l.Terminal {
		return filecopy.Quote(name)
	}
	return name
}

// size returns a size as it is printed; with Human as by ls -h, in powers of 1024, rounded up.
func (l Listing) size(n uint64) string {
	if !l.Human || n < 1024 {
		return fmt.Sprint(n)
	}
	value, unit := float64(n)/1024, 0
	for math.Ceil(value) >= 1024 {
		value, unit = value/1024, unit+1
	}
	if up := math.Ceil(value*10) / 10; up < 10 {
		return fmt.Sprintf("%.1f%c", up, "KMGTPE"[unit])
	}
	return fmt.Sprintf("%.0f%c", math.Ceil(value), "KMGTPE"[unit])
}

// write writes a list for people.
func (l Listing) write(w *bytes.Buffer, entries []listedFile) {
	width := 0
	for _, e := range entries {
		width = max(width, len(l.size(e.Size)))
	}
	for _, e := range entries {
		if !l.Long {
			fmt.Fprintln(w, l.name(e.Name))
			continue
		}
		kind := map[string]string{"directory": "d", "file": "-"}[e.Type]
		if e.Link {
			kind = "l"
		}
		when := e.Modified.Local().Format("2006-01-02 15:04")
		fmt.Fprintf(w, "%s %*s %s %s\n", cmp.Or(kind, "?"), width, l.size(e.Size), when, l.name(e.Name))
	}
}
