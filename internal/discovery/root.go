package discovery

import (
	"context"
	"errors"
	"path"
	"slices"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery/describe"
	"github.com/execagent/execagent/internal/discovery/layout"
)

// Bounds of one root (capabilities.md 2.2).
const (
	// MaxFile is the largest size of a file, in bytes. A larger file is not read.
	MaxFile = layout.MaxFile
	// MaxBundle bounds the files of a root together, in bytes.
	MaxBundle = layout.MaxBundle
)

// File is a file with its content.
type File = describe.File

// Plugin has the manifest of a root and the files that the manifest declares. A file is nil if
// there is none.
type Plugin struct {
	Manifest  File
	MCP, Apps *File
}

// Skill is a SKILL.md and its openai.yaml, if there is one.
type Skill = describe.Skill

// A Root is the result of reading one folder.
type Root struct {
	// Failure says why the folder was not searched. If it is set, the other fields are empty.
	Failure *Warning
	Plugin  *Plugin
	// Missing says that a file that the manifest names is not there.
	Missing bool
	Skills  []Skill
	// Namespaces are the manifests that give skills their namespaces. The first is that of the root
	// or, if the root has none, of the nearest folder above it. The manifests below the root follow,
	// sorted.
	Namespaces []File
	Warnings   []Warning
}

// Describe interprets the manifest, the front matter and the metadata of the files found in folder.
func (r *Root) Describe(folder string) describe.Described {
	var own *File
	if r.Plugin != nil {
		own = &r.Plugin.Manifest
	}
	return describe.Root(folder, own, r.Skills, r.Namespaces)
}

// Size returns the total length of the file contents in bytes. The root's manifest counts twice.
func (r *Root) Size() int {
	n := 0
	for file := range r.files {
		n += len(file.Contents)
	}
	return n
}

// files calls yield for each file of r. The root's manifest comes twice.
func (r *Root) files(yield func(*File) bool) {
	if p := r.Plugin; p != nil {
		for _, file := range []*File{&p.Manifest, p.MCP, p.Apps} {
			if file != nil && !yield(file) {
				return
			}
		}
	}
	for i := range r.Skills {
		if !yield(&r.Skills[i].Instructions) {
			return
		}
		if m := r.Skills[i].Metadata; m != nil && !yield(m) {
			return
		}
	}
	for i := range r.Namespaces {
		if !yield(&r.Namespaces[i]) {
			return
		}
	}
}

// A Trouble is a reason why a file or folder could not be read.
type Trouble uint8

// The kinds of trouble.
const (
	// NoRoot, NotDirectory: the root itself cannot be inspected, or is not a directory.
	NoRoot Trouble = iota
	NotDirectory
	// NotScanned: a directory or name below the root cannot be inspected.
	NotScanned
	// Truncated: the root has more entries than the walk reads.
	Truncated
	// NotInspected, NotRead: a file cannot be inspected, or read.
	NotInspected
	NotRead
	// TooLarge: a file has more than MaxFile bytes. NoRoom: a file has more bytes than are left of
	// MaxBundle.
	TooLarge
	NoRoom
	// NotText: a file is not UTF-8.
	NotText
	// NotDotSlash, Outside: Path is the path of a manifest. Its member Member names a file without ./
	// at the beginning, or outside the root.
	NotDotSlash
	Outside

	troubles // number of kinds
)

// A Warning is one trouble. Err is an errno or [fsops.ErrNotUTF8] if the system caused the trouble,
// else nil.
type Warning struct {
	Trouble Trouble
	Path    string
	Member  string
	Err     error
}

// Read searches the folder root. The walk follows symbolic links to folders. Links to files are
// followed where the rules open a file directly. The error is that of the context, or of the file
// system as a whole, for instance if a helper process has died.
func Read(ctx context.Context, files fsops.FS, root string) (*Root, error) {
	r := reader{files: files, root: root, out: &Root{}}
	err := r.read(ctx)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	return r.out, nil
}

// reader reads one root.
type reader struct {
	files fsops.FS
	root  string
	used  int // bytes used of MaxBundle
	out   *Root
	err   error // error of the file system as a whole

	// metadata has the folders of metadata that the walk has found. If partial is true, there may be
	// others. Most skills have no metadata, and looking in metadata saves an open for each of them.
	metadata map[string]bool
	partial  bool
	text     []byte // content of the last file; the buffer is reused
}

func (r *reader) read(ctx context.Context) error {
	info, err := r.files.Stat(ctx, r.root, fsops.FollowLinks)
	switch {
	case err != nil:
		errno, err := systemError(err)
		r.out.Failure = &Warning{Trouble: NoRoot, Path: r.root, Err: errno}
		return err
	case !info.IsDirectory:
		r.out.Failure = &Warning{Trouble: NotDirectory, Path: r.root}
		return nil
	}
	found, err := r.walk(ctx)
	if err != nil {
		return err
	}
	manifest := r.manifestIn(ctx, r.root)
	r.namespaces(ctx, manifest, found)
	if manifest != nil {
		r.out.Plugin = &Plugin{Manifest: *manifest}
		declared := layout.Declare(r.root, manifest.Contents)
		for _, ignored := range declared.Ignored {
			r.ignore(manifest.Path, ignored)
		}
		if declared.MCP != "" {
			r.out.Plugin.MCP = r.file(ctx, declared.MCP)
		}
		r.out.Plugin.Apps = r.file(ctx, declared.Apps)
		r.out.Missing = declared.NamesMCP && r.out.Plugin.MCP == nil || declared.NamesApps && r.out.Plugin.Apps == nil
	}
	for _, skill := range found.Skills {
		instructions := r.file(ctx, skill)
		if instructions == nil {
			continue
		}
		s := Skill{Instructions: *instructions}
		if metadata := layout.Metadata(skill); r.partial || r.metadata[path.Dir(metadata)] {
			s.Metadata = r.file(ctx, metadata)
		}
		r.out.Skills = append(r.out.Skills, s)
	}
	return r.err
}

func (r *reader) walk(ctx context.Context) (layout.Tree, error) {
	result, err := r.files.Walk(ctx, r.root, fsops.WalkOptions{
		MaxDepth: layout.MaxDepth, MaxDirectories: layout.MaxDirectories, MaxEntries: layout.MaxEntries,
		FollowDirectoryLinks: true, AlsoNamed: layout.MetadataFolder,
	})
	if err != nil {
		// The root was removed meanwhile, or cannot be walked.
		errno, err := systemError(err)
		if err == nil {
			r.warn(NotScanned, r.root, errno)
		}
		return layout.Tree{}, err
	}
	r.metadata, r.partial = map[string]bool{}, result.Truncated
	for _, e := range result.Errors {
		r.warn(NotScanned, e.Path, e.Err)
		r.note(e.Path)
	}
	if result.Truncated {
		r.warn(Truncated, r.root, nil)
	}
	return layout.Sort(r.root, func(yield func(string) bool) {
		for _, e := range result.Entries {
			r.note(e.Path)
			if !e.IsDirectory && !yield(e.Path) {
				return
			}
		}
	}), nil
}

// note records a name that the walk has found.
func (r *reader) note(name string) {
	if path.Base(name) == layout.MetadataFolder {
		r.metadata[name] = true
	}
}

// manifestIn returns the best readable manifest of a folder, or nil if there is none.
func (r *reader) manifestIn(ctx context.Context, folder string) *File {
	for _, path := range layout.Manifests(folder) {
		if file := r.file(ctx, path); file != nil {
			return file
		}
	}
	return nil
}

// namespaces collects the manifests that give skills their namespaces.
func (r *reader) namespaces(ctx context.Context, own *File, found layout.Tree) {
	if own == nil {
		for above := range layout.Above(r.root) {
			if own = r.manifestIn(ctx, above); own != nil || r.err != nil || ctx.Err() != nil {
				break
			}
		}
	}
	if own != nil {
		r.out.Namespaces = append(r.out.Namespaces, *own)
	}
	for _, manifest := range found.Manifests {
		// The folder above a root that is the folder of a manifest has been looked at.
		file := r.file(ctx, manifest)
		if file != nil && (own == nil || layout.Folder(manifest) != layout.Folder(own.Path)) {
			r.out.Namespaces = append(r.out.Namespaces, *file)
		}
	}
}

// file reads a file. It returns nil if there is no file, and returns nil and adds a warning if the
// file cannot be read.
func (r *reader) file(ctx context.Context, path string) *File {
	if r.err != nil || ctx.Err() != nil {
		return nil
	}
	fd, err := r.files.OpenRead(ctx, path, fsops.FollowLinks)
	if err != nil {
		r.cannotOpen(ctx, path, err)
		return nil
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		r.warn(NotInspected, path, err)
		return nil
	}
	if !r.fits(path, st.Size) {
		return nil
	}
	if !r.contents(path, fd, int(st.Size)) {
		return nil
	}
	if !utf8.Valid(r.text) {
		r.warn(NotText, path, nil)
		return nil
	}
	r.used += len(r.text)
	return &File{Path: path, Contents: string(r.text)}
}

// contents reads a file of this size into r.text.
func (r *reader) contents(path string, fd, size int) bool {
	// A file may grow while it is read, and files of the kernel (such as those in /proc) have the size
	// 0.
	r.text = slices.Grow(r.text[:0], size+1)
	for {
		n, err := unix.Read(fd, r.text[len(r.text):cap(r.text)])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			r.warn(NotRead, path, err)
			return false
		}
		r.text = r.text[:len(r.text)+n]
		full := len(r.text) == cap(r.text)
		if n == 0 || size > 0 && len(r.text) == size && !full {
			return true // the buffer had room for more, so this is the end
		}
		if !r.fits(path, int64(len(r.text))) {
			return false
		}
		if full {
			r.text = slices.Grow(r.text, max(512, len(r.text)))
		}
	}
}

// fits reports whether a file has an allowed size, and adds a warning if not.
func (r *reader) fits(path string, size int64) bool {
	switch {
	case size > MaxFile:
		r.warn(TooLarge, path, nil)
	case size > int64(MaxBundle-r.used):
		r.warn(NoRoom, path, nil)
	default:
		return true
	}
	return false
}

// cannotOpen adds a warning about a file that cannot be opened. A missing file, or a path that is
// not a regular file, causes no warning.
func (r *reader) cannotOpen(ctx context.Context, path string, err error) {
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
		return
	}
	errno, err := systemError(err)
	if err != nil {
		r.err = err
		return
	}
	if errno == unix.ENOENT || errno == unix.ENOTDIR {
		return
	}
	info, statErr := r.files.Stat(ctx, path, fsops.FollowLinks)
	switch {
	case statErr != nil:
		r.warn(NotInspected, path, errno)
	case info.IsFile:
		r.warn(NotRead, path, errno)
	}
}

func (r *reader) warn(t Trouble, path string, err error) {
	r.out.Warnings = append(r.out.Warnings, Warning{Trouble: t, Path: path, Err: err})
}

// ignore adds a warning about a member of the root's manifest that names a file in a way that is
// not allowed.
func (r *reader) ignore(manifest string, ignored layout.Ignored) {
	trouble := NotDotSlash
	if ignored.Outside {
		trouble = Outside
	}
	r.out.Warnings = append(r.out.Warnings, Warning{Trouble: trouble, Path: manifest, Member: ignored.Member})
}

// systemError returns the errno of an error about one path. Any other error is about the file
// system as a whole, and is returned unchanged as other.
func systemError(err error) (errno, other error) {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno, nil
	}
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
		return unix.EINVAL, nil
	}
	return nil, err
}
