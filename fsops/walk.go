package fsops

import (
	"context"
	"errors"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Maxima of [WalkOptions], and of the size of a [WalkResult]; rpc.md 5.4.
const (
	MaxWalkDepth       = 64
	MaxWalkDirectories = 10_000
	MaxWalkEntries     = 50_000
	MaxWalkSize        = 4 << 20
)

// ErrNotUTF8 is the error in a [WalkError] for a name that is not UTF-8, which an
// answer cannot carry.
var ErrNotUTF8 = errors.New("file name is not UTF-8")

// WalkOptions bounds a walk. Only the limits are required.
type WalkOptions struct {
	// MaxDepth is the depth of the deepest directories that are entered. The
	// root is at depth 0 and is always entered.
	MaxDepth uint64
	// MaxDirectories counts entered directories, the root among them.
	MaxDirectories uint64
	// MaxEntries counts all names that are looked at, listed or not.
	MaxEntries uint64
	// FollowDirectoryLinks lists and enters links to directories, each real
	// directory once. Links to files are never listed.
	FollowDirectoryLinks bool
	// PruneHidden lists directories with a leading dot without entering them.
	PruneHidden bool
	// AlsoNamed is a name that is listed whatever its type, so that its absence from the list
	// proves that it does not exist: fifos and so on, and links that lead to no directory. Such an
	// entry is not a directory. "" is no name.
	AlsoNamed string
	// Size returns what one entry (err is nil) or error adds to the size of the
	// answer. It is called once for each, in order; nil counts the bytes of the
	// path and 64.
	Size func(path string, err error) int
}

// WalkEntry is a regular file or a directory, or has the name [WalkOptions.AlsoNamed].
type WalkEntry struct {
	Path        string
	IsDirectory bool
}

// WalkError is a name or directory that could not be looked at. Err is an errno
// or [ErrNotUTF8]; with ErrNotUTF8, Path has U+FFFD for bytes that are not
// UTF-8.
type WalkError struct {
	Path string
	Err  error
}

// WalkResult is the result of a walk, in breadth-first order; names of one
// directory are in the order of their bytes. The root is not listed.
type WalkResult struct {
	Entries []WalkEntry
	Errors  []WalkError
	// Truncated reports that a limit was hit and something is missing.
	Truncated bool
}

// Walk lists everything under root. A file as root has nothing under it; nor
// has a link if links are not followed. A missing root is an error. The end of
// the context is noticed between names.
//
// Without FollowDirectoryLinks no link is ever followed, even if it replaces a
// directory during the walk.
func (Host) Walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error) {
	return (*View)(nil).walk(ctx, root, o)
}

// Walk lists everything under root. A directory that may not be read gives an
// entry and an error. A link to such a directory, if links are followed, gives
// only an error.
func (v *View) Walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error) {
	return v.walk(ctx, root, o)
}

func (v *View) walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error) {
	if o.MaxDirectories == 0 || o.MaxEntries == 0 {
		return WalkResult{}, invalidf("walk limits must not be zero: maxDirectories %d, maxEntries %d",
			o.MaxDirectories, o.MaxEntries)
	}
	if o.MaxDepth > MaxWalkDepth || o.MaxDirectories > MaxWalkDirectories || o.MaxEntries > MaxWalkEntries {
		return WalkResult{}, invalidf("walk limits exceed their maxima: maxDepth %d of %d, maxDirectories %d of %d, maxEntries %d of %d",
			o.MaxDepth, MaxWalkDepth, o.MaxDirectories, MaxWalkDirectories, o.MaxEntries, MaxWalkEntries)
	}

	var st unix.Stat_t
	if _, err := v.target(workingDir, root, &st); err != nil {
		return WalkResult{}, pathError("walk", root, err)
	}
	if kindOf(&st) != unix.DT_DIR {
		return WalkResult{}, nil
	}
	w := walker{view: v, o: o, root: root, directories: 1}
	if o.FollowDirectoryLinks {
		w.seen = map[fileID]bool{idOf(&st): true}
	}
	d, err := v.openDir(workingDir, root, o.FollowDirectoryLinks)
	switch {
	case err == unix.ENOTDIR:
		return WalkResult{}, nil // root is a link
	case err != nil:
		w.fail(root, err)
		return w.result, nil
	}
	defer unix.Close(d.FD)
	err = w.run(ctx, d)
	return w.result, err
}

// walkDir is a directory to enter: its path under the root and its depth.
type walkDir struct {
	rel   string
	depth uint64
}

type walker struct {
	view   *View
	o      WalkOptions
	root   string
	result WalkResult
	size   int // of the result, as WalkOptions.Size counts it
	full   bool

	queue       []walkDir
	directories uint64 // entered or in the queue
	visited     uint64
	seen        map[fileID]bool // nil when links are not followed
	reader      *dirReader
	// names has the path of each name in the directory that is being read. Each
	// is followed by a NUL and the type of the file, so that sorting the strings
	// sorts the paths.
	names []string
}

// run enters the directories of the queue, from the root on.
func (w *walker) run(ctx context.Context, root Dir) error {
	w.reader = newDirReader()
	w.queue = []walkDir{{}}
	for i := 0; i < len(w.queue) && !w.full; i++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		d := w.queue[i]
		path, at := w.root, root
		if d.rel != "" {
			path = join(w.root, d.rel)
			var err error
			if at, err = w.open(root, d.rel); err != nil {
				w.fail(path, err)
				continue
			}
		}
		err := w.enter(ctx, at, path, d)
		if at.FD != root.FD {
			unix.Close(at.FD)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// open opens a directory under root.
func (w *walker) open(root Dir, rel string) (Dir, error) {
	if w.seen != nil {
		return w.view.openDir(root, rel, true)
	}
	return w.view.openBelow(root, rel)
}

// openBelow opens a directory under root to list it. A link anywhere in rel is ENOTDIR.
func (v *View) openBelow(root Dir, rel string) (Dir, error) {
	if v != nil {
		return v.lookupDir(root, rel, refuseLinks)
	}
	fd, err := openBeneath(root.FD, rel, dirFlags)
	fd, err = admit(fd, -1, dirFlags, err)
	return Dir{FD: fd}, err
}

func join(dir, name string) string {
	if strings.HasSuffix(dir, "/") {
		return dir + name
	}
	return dir + "/" + name
}

// enter lists one directory and queues its subdirectories.
func (w *walker) enter(ctx context.Context, at Dir, path string, d walkDir) error {
	prefix := join(path, "")
	if err := w.read(ctx, at, prefix); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		w.fail(path, err)
		return nil
	}
	// A directory that may be read but not searched gives only names. The
	// cheapest way to find out is a stat of "." in it.
	var st unix.Stat_t
	searchErr := fstatAt(at.FD, ".", &st, 0)

	for _, entry := range w.names {
		if w.visited == w.o.MaxEntries {
			w.full = true
		}
		if w.full {
			w.result.Truncated = true
			return nil
		}
		w.visited++
		whole := entry[:len(entry)-2]
		name := whole[len(prefix):]
		if !utf8.ValidString(name) {
			w.fail(prefix+lossy(name), ErrNotUTF8)
			continue
		}
		if searchErr != nil {
			w.fail(whole, searchErr)
			continue
		}
		if err := ctx.Err(); err != nil {
			return err // following links can take long
		}
		kind, id, err := w.kind(at, name, entry[len(entry)-1])
		switch {
		case err != nil:
			w.fail(whole, err)
		case kind == unix.DT_REG, kind != unix.DT_DIR && name == w.o.AlsoNamed:
			w.list(whole, false)
		case kind == unix.DT_DIR:
			w.list(whole, true)
			if d.depth < w.o.MaxDepth && !(w.o.PruneHidden && name[0] == '.') && !w.seen[id] {
				w.push(walkDir{rel: whole[len(join(w.root, "")):], depth: d.depth + 1}, id)
			}
		}
	}
	return nil
}

// kind returns the type of name. It returns the id of directories only, and
// only when links are followed.
func (w *walker) kind(at Dir, name string, kind byte) (byte, fileID, error) {
	var st unix.Stat_t
	// A directory that the view listed here can be examined by its name.
	named := kind == unix.DT_DIR && w.seen != nil && at.Kind == Ordinary && !stepped(join(at.Path, name))
	if kind == unix.DT_UNKNOWN || named {
		if err := fstatAt(at.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return 0, fileID{}, err
		}
		if kind = kindOf(&st); named && kind == unix.DT_DIR {
			return kind, idOf(&st), nil
		}
	}
	if w.seen == nil || kind != unix.DT_DIR && kind != unix.DT_LNK {
		return kind, fileID{}, nil
	}
	denied, err := w.view.target(at, name, &st)
	noDir := err != nil || kindOf(&st) != unix.DT_DIR
	switch {
	case kind != unix.DT_LNK:
	case denied && (err != nil || !noDir):
		return 0, fileID{}, unix.EACCES
	case noDir:
		return unix.DT_LNK, fileID{}, nil
	}
	return kindOf(&st), idOf(&st), err
}

// read collects the names of a directory, sorted. Of a huge directory it keeps
// only as many names as the walk may still look at, and one more, which tells
// enter that something is missing.
func (w *walker) read(ctx context.Context, at Dir, prefix string) error {
	keep := int(w.o.MaxEntries-w.visited) + 1
	w.names = w.names[:0]
	for {
		ok, err := w.reader.fill(at.FD)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		for name, kind := range w.reader.all {
			if w.view.shows(at, name, kind) {
				w.names = append(w.names, prefix+string(name)+string([]byte{0, kind}))
			}
		}
		if len(w.names) > 2*keep {
			w.sort(keep)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	}
	w.sort(keep)
	return nil
}

func (w *walker) sort(keep int) {
	slices.Sort(w.names)
	w.names = w.names[:min(keep, len(w.names))]
}

func (w *walker) push(d walkDir, id fileID) {
	if w.directories == w.o.MaxDirectories {
		w.result.Truncated = true
		return
	}
	w.directories++
	w.queue = append(w.queue, d)
	if w.seen != nil {
		w.seen[id] = true
	}
}

func (w *walker) list(path string, isDirectory bool) {
	if w.fits(path, nil) {
		w.result.Entries = append(w.result.Entries, WalkEntry{Path: path, IsDirectory: isDirectory})
	}
}

func (w *walker) fail(path string, err error) {
	if w.fits(path, err) {
		w.result.Errors = append(w.result.Errors, WalkError{Path: path, Err: err})
	}
}

// fits adds an entry to the size of the result. It returns false, which ends
// the walk, when the entry does not fit.
func (w *walker) fits(path string, err error) bool {
	if w.full {
		return false
	}
	n := len(path) + entryAllowance
	if w.o.Size != nil {
		n = w.o.Size(path, err)
	}
	if w.size+n > MaxWalkSize {
		w.full, w.result.Truncated = true, true
		return false
	}
	w.size += n
	return true
}
