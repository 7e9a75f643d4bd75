package transfer

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/client"
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
	// These are missing if the server has neither a tool of ours nor fsMetadata.
	Mode   string `json:"mode,omitempty"` // as ls -l prints it
	Owner  string `json:"owner,omitempty"`
	Group  string `json:"group,omitempty"`
	Target string `json:"target,omitempty"` // of a link
}

// listedBy makes an entry of a header from the tool.
func listedBy(h *tar.Header, dir string) listedFile {
	name := strings.TrimSuffix(h.Name, "/")
	mode := h.FileInfo().Mode()
	e := listedFile{Name: name, Path: path.Join(dir, name), Type: filecopy.Type(mode), Link: mode&fs.ModeSymlink != 0, Modified: h.ModTime.UTC(), Target: h.Linkname}
	if e.Link {
		e.Type = h.PAXRecords[filecopy.RecordTarget]
	}
	e.Size, _ = strconv.ParseUint(h.PAXRecords[filecopy.RecordListed], 10, 64) // 0 if the tool says nonsense
	e.Owner, e.Group = cmp.Or(h.Uname, strconv.Itoa(h.Uid)), cmp.Or(h.Gname, strconv.Itoa(h.Gid))
	kind := map[byte]string{tar.TypeDir: "d", tar.TypeSymlink: "l", tar.TypeFifo: "p", tar.TypeChar: "c", tar.TypeBlock: "b"}[h.Typeflag]
	if h.PAXRecords[filecopy.RecordTarget] == "socket" {
		kind = "s"
	}
	e.Mode = cmp.Or(kind, "-") + permissions(h.Mode)
	return e
}

// kinds are the letters of types, as ls -l prints them.
var kinds = map[string]string{
	protocol.TypeFile: "-", protocol.TypeDirectory: "d", protocol.TypeSymlink: "l", protocol.TypeFifo: "p",
	protocol.TypeSocket: "s", protocol.TypeBlockDevice: "b", protocol.TypeCharacterDevice: "c",
}

// permissions returns the permissions as ls -l prints them, with the bits set-ID and sticky.
func permissions(mode int64) string {
	text := []byte("rwxrwxrwx")
	for i := range text {
		if mode&(1<<(8-i)) == 0 {
			text[i] = '-'
		}
	}
	for i, special := range []struct {
		bit    int64
		letter byte
	}{{0o4000, 's'}, {0o2000, 's'}, {0o1000, 't'}} {
		if at := 3*i + 2; mode&special.bit != 0 {
			if text[at] == '-' {
				special.letter -= 'a' - 'A'
			}
			text[at] = special.letter
		}
	}
	return string(text)
}

// listWithTool asks the tool of the agent for a file, or for the files in a directory. The names are
// exact. wrong has lines about what could not be listed.
func (f *Files) listWithTool(ctx context.Context, at string) (entries []listedFile, wrong []error, err error) {
	request := filecopy.Request{List: at}
	tool, err := f.Client.Spawn(ctx, client.Spec{
		Argv: request.Argv(), Builtin: true, PipeStdin: true, Dir: "/", EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritNone},
	})
	if err != nil {
		return nil, nil, err
	}
	var complaints []error
	var listening sync.WaitGroup
	defer listening.Wait()
	defer tool.Close() // which ends what listens
	listening.Go(func() {
		lines := bufio.NewScanner(tool.Stderr()) //nolint:scannererr // the rest is discarded below
		for lines.Scan() {
			complaints = append(complaints, errors.New(lines.Text()))
		}
		_, _ = io.Copy(io.Discard, tool.Stderr()) // a line was too long, or the connection has failed
	})
	out := newOutput(ctx, tool)
	defer out.end()
	r := tar.NewReader(out)
	for {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			_, ended := tool.Wait(ctx)
			return nil, nil, errors.Join(ended, err)
		}
		entries = append(entries, listedBy(h, at))
	}
	_, _ = io.Copy(io.Discard, out) // archives are padded
	_, err = tool.Wait(ctx)
	listening.Wait()
	return entries, complaints, err
}

func newEntry(name, path string, m *protocol.FileMetadata) listedFile {
	e := listedFile{Name: name, Path: path, Type: "other", Link: m.IsSymlink, Size: m.Size, Modified: time.UnixMilli(m.ModifiedAtMs).UTC()}
	switch {
	case m.IsDirectory:
		e.Type = "directory"
	case m.IsFile:
		e.Type = "file"
	}
	if m.Mode != nil && m.UID != nil && m.GID != nil {
		e.Mode = cmp.Or(kinds[m.Type], "?") + permissions(int64(*m.Mode))
		e.Owner, e.Group = cmp.Or(m.Owner, fmt.Sprint(*m.UID)), cmp.Or(m.Group, fmt.Sprint(*m.GID))
		e.Target = m.LinkTarget
	}
	return e
}

// List writes files, and then the contents of directories, as ls(1) does.
func (f *Files) List(ctx context.Context, w io.Writer, names []string, l Listing) error {
	var single []listedFile
	all := []listedFile{} // not null in JSON
	var out bytes.Buffer
	var directories []string
	var trouble Failures
	failed := f.each(ctx, names, func(ctx context.Context, name, at string) error {
		m, err := f.Client.FS(nil).Stat(ctx, at)
		if _, refused := errors.AsType[*client.ServerError](err); refused {
			if link, itself := f.Client.FS(nil).Lstat(ctx, at); itself == nil && link.IsSymlink {
				e := newEntry(strings.TrimPrefix(name, ":"), at, link)
				e.Type = "missing"
				single = append(single, e)
				return nil
			}
		}
		if err != nil {
			return err
		}
		if m.IsDirectory {
			directories = append(directories, name)
			return nil
		}
		e := newEntry(strings.TrimPrefix(name, ":"), at, m)
		listed, wrong, err := f.detailed(ctx, at, l)
		if err != nil {
			return err
		}
		trouble = append(trouble, wrong...)
		if len(listed) == 1 {
			listed[0].Name, listed[0].Path = e.Name, e.Path
			e = listed[0]
		} else if described := []listedFile{e}; l.Long || l.JSON {
			f.describe(ctx, described)
			e = described[0]
		}
		single = append(single, e)
		return nil
	})
	all = append(all, single...)
	l.write(&out, single)
	inDirectories := f.each(ctx, directories, func(ctx context.Context, name, at string) error {
		entries, wrong, err := f.directory(ctx, at, l)
		if err != nil {
			return err
		}
		trouble = append(trouble, wrong...)
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
	for _, err := range []error{failed, inDirectories} {
		failures, some := errors.AsType[Failures](err)
		if err != nil && !some {
			return err
		}
		trouble = append(trouble, failures...)
	}
	if len(trouble) > 0 {
		return trouble
	}
	return nil
}

// detailed asks the tool of the agent, if details are wanted. It returns nothing if the server has no
// tool, or does not start it.
func (f *Files) detailed(ctx context.Context, at string, l Listing) (entries []listedFile, wrong []error, err error) {
	if !l.Long && !l.JSON {
		return nil, nil, nil
	}
	entries, wrong, err = f.listWithTool(ctx, at)
	_, unsupported := errors.AsType[*client.UnsupportedError](err)
	_, refused := errors.AsType[*client.ServerError](err)
	if unsupported || refused {
		return nil, nil, nil
	}
	return entries, wrong, err
}

// directory returns the files in a directory, sorted by name. wrong has errors about single files.
func (f *Files) directory(ctx context.Context, at string, l Listing) (entries []listedFile, wrong []error, err error) {
	hidden := func(e listedFile) bool { return !l.All && strings.HasPrefix(e.Name, ".") }
	entries, wrong, err = f.detailed(ctx, at, l)
	if len(entries)+len(wrong) > 0 || err != nil {
		return slices.DeleteFunc(entries, hidden), wrong, err
	}
	listed, err := f.Client.FS(nil).ReadDirLstat(ctx, at)
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported {
		listed, err = f.Client.FS(nil).ReadDir(ctx, at)
	}
	if err != nil {
		return nil, nil, err
	}
	for _, d := range listed {
		m := protocol.FileMetadata{IsDirectory: d.IsDirectory, IsFile: d.IsFile}
		entries = append(entries, newEntry(d.FileName, path.Join(at, d.FileName), &m))
	}
	entries = slices.DeleteFunc(entries, hidden)
	sort.Slice(entries, func(i, j int) bool { return entries[i].Name < entries[j].Name })
	if l.Long || l.JSON {
		f.describe(ctx, entries)
	}
	return entries, nil, context.Cause(ctx)
}

// describe asks the agent for the metadata that a directory listing lacks. An entry stays as it is
// if the file no longer exists, or if its name may not be UTF-8: the listing has U+FFFD in such a
// name, and another file may have that name.
func (f *Files) describe(ctx context.Context, entries []listedFile) {
	if f.describeMany(ctx, entries) {
		return
	}
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

// describeMany is describe for a server with fsMetadata. It reports whether the server has that.
func (f *Files) describeMany(ctx context.Context, entries []listedFile) bool {
	var named, linked []*listedFile
	for i := range entries {
		if e := &entries[i]; !strings.ContainsRune(e.Name, utf8.RuneError) {
			named = append(named, e)
		}
	}
	ask := func(about []*listedFile, details string) ([]client.Described, error) {
		var paths []string
		for _, e := range about {
			paths = append(paths, e.Path)
		}
		return f.Client.FS(nil).StatMany(ctx, paths, details)
	}
	all, err := ask(named, protocol.Lstat)
	if err != nil {
		return false
	}
	for i, found := range all {
		if found.Err != nil {
			continue
		}
		e := named[i]
		if *e = newEntry(e.Name, e.Path, found.Metadata); e.Link {
			e.Type = "missing"
			linked = append(linked, e)
		}
	}
	targets, err := ask(linked, "")
	for i, found := range targets {
		if found.Err == nil {
			linked[i].Type = newEntry("", "", found.Metadata).Type
		}
	}
	return err == nil
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
	width, owner, group := 0, 0, 0
	for _, e := range entries {
		width, owner, group = max(width, len(l.size(e.Size))), max(owner, len(e.Owner)), max(group, len(e.Group))
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
		kind = cmp.Or(e.Mode, kind, "?")
		if owner > 0 {
			kind += fmt.Sprintf(" %-*s %-*s", owner, program.Plain(e.Owner), group, program.Plain(e.Group))
		}
		when := e.Modified.Local().Format("2006-01-02 15:04")
		fmt.Fprintf(w, "%s %*s %s %s", kind, width, l.size(e.Size), when, l.name(e.Name))
		if e.Target != "" {
			fmt.Fprintf(w, " -> %s", l.name(e.Target))
		}
		w.WriteByte('\n')
	}
}
