package fswatch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
)

// Events that are asked for.
const (
	dirMask = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK
	fileMask = unix.IN_MODIFY | unix.IN_ATTRIB | unix.IN_MOVE_SELF | unix.IN_DELETE_SELF
	// A directory above the root matters only if it moves or is removed.
	aboveMask = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_ONLYDIR
	// comeMask is for the directory in which a name is missing.
	comeMask = unix.IN_CREATE | unix.IN_MOVED_TO
	// goneMask says that an object has left its place.
	goneMask = unix.IN_MOVE_SELF | unix.IN_DELETE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED
)

// node is a watched directory.
type node struct {
	wd       int32
	name     string // of the root: its path
	parent   *node
	children map[string]*node
	depth    int
	// unsure: something in it could not be examined, because the directory had moved. The
	// event of the move will say where it is.
	unsure bool
}

// has reports whether something is at name in n, or may be.
func (n *node) has(name string) bool {
	at, err := openPath(n.path())
	if err != nil {
		return true
	}
	defer unix.Close(at)
	var st unix.Stat_t
	return unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW) != unix.ENOENT
}

// watchedName is a name in a directory.
type watchedName struct {
	dir  *node
	name string
}

// renaming is a rename. Two objects that change places (RENAME_EXCHANGE of rename(2)) are reported
// as two renames, one the reverse of the other.
type renaming struct{ from, to watchedName }

func (n *node) path() string {
	if n.parent == nil {
		return n.name
	}
	var names []string
	for ; n.parent != nil; n = n.parent {
		names = append(names, n.name)
	}
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(n.name, "/"))
	for _, name := range slices.Backward(names) {
		b.WriteByte('/')
		b.WriteString(name)
	}
	return b.String()
}

// tree is a watch's knowledge of the files: the directory of each kernel watch number.
// It follows the events in order, and looks at the files only to enter directories. It
// needs no mutex, because only one goroutine uses it.
type tree struct {
	watcher *Watcher
	options Options
	judged  bool // not everything is shown
	queue   *queue
	changes *changes

	root *node // nil when the root is missing or no directory
	file int32 // the number of a root that is no directory; 0: there is none
	dirs map[int32]*node
	// above has the directories above the root; the value is the name that is missing
	// there, or empty.
	above    map[int32]string
	renaming renaming // the last one
	// blind: not all directories are watched. broken: the tree does not match the
	// files, and must be rebuilt.
	blind, broken bool
}

// present reports whether the root is there.
func (t *tree) present() bool { return t.root != nil || t.file > 0 }

func (t *tree) tell(c Change) {
	if t.options.Shown(c.Path, c.Directory) {
		t.changes.add(c)
	}
}

// setBlind notes that something cannot be watched.
func (t *tree) setBlind() {
	t.blind = true
	t.changes.setBlind(true)
}

// aboveRoot reports whether an event says that the way to the root may have changed,
// or that the root itself has.
func (t *tree) aboveRoot(e inotify.Event) bool {
	if e.Name == "" && t.root != nil && e.WD == t.root.wd && e.Mask&goneMask != 0 {
		return true
	}
	if t.file > 0 && e.WD == t.file {
		return true
	}
	missing, ok := t.above[e.WD]
	return ok && (e.Name == "" && e.Mask&goneMask != 0 || e.Name != "" && e.Name == missing && e.Mask&comeMask != 0)
}

// look finds the root again and reports its change. A file that is still the same was
// modified, or has another mode or owner.
func (t *tree) look(ctx context.Context) {
	root, file, isDir := t.root, t.file, t.root != nil
	if err := t.find(ctx, true); err != nil {
		t.setBlind()
	}
	switch {
	case file > 0 && t.file == file:
		t.tell(Change{Path: t.options.Root, Kind: Modified})
	case (root != nil || file > 0) && !t.present():
		t.tell(Change{Path: t.options.Root, Kind: Removed, Directory: isDir})
	}
}

// find walks from "/" to the root and watches each directory on the way. It watches a
// directory before it looks for the next name in it, so that no change is missed. It
// enters a new root; with tell, it reports the root and its contents as created. The
// error is about the root.
func (t *tree) find(ctx context.Context, tell bool) error {
	before, passed := t.above, map[int32]string{}
	t.above = passed
	defer func() {
		for wd := range before {
			if _, ok := passed[wd]; !ok && t.dirs[wd] == nil {
				t.watcher.Group.Remove(wd, t.queue)
			}
		}
	}()
	at, err := open(unix.AT_FDCWD, "/", unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { unix.Close(at) }()
	for rest := strings.TrimPrefix(t.options.Root, "/"); rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		wd, err := t.pass(at, aboveMask)
		if err == nil {
			passed[wd] = ""
		}
		next, kind, err := step(at, name)
		last := rest == ""
		if err != nil || !last && kind != unix.S_IFDIR || kind == unix.S_IFLNK {
			if err == nil {
				unix.Close(next)
			}
			if wd, err := t.pass(at, aboveMask|comeMask); err == nil {
				passed[wd] = name
			} else {
				t.setBlind() // nothing will see it come back
			}
			next, kind, err = step(at, name) // it may have come before the watch
			if err != nil {
				t.leave()
				if err == unix.ENOENT || err == unix.ENOTDIR {
					return nil
				}
				return err
			}
			if !last && kind != unix.S_IFDIR || kind == unix.S_IFLNK {
				unix.Close(next)
				t.leave()
				return nil
			}
		}
		unix.Close(at)
		at = next
		if last && kind != unix.S_IFDIR {
			return t.enterFile(at, tell)
		}
	}
	return t.enterRoot(ctx, at, tell)
}

// pass watches a directory above the root. A directory that cannot be listed cannot be
// watched either, so its moves are not seen.
func (t *tree) pass(at int, mask uint32) (int32, error) {
	wd, err := t.add(at, mask)
	if err == ErrLimit {
		t.setBlind()
	}
	return wd, err
}

// leave forgets the root, which is missing.
func (t *tree) leave() {
	if t.root != nil {
		t.forget(t.root)
		t.root = nil
	}
	if t.file > 0 {
		t.watcher.Group.Remove(t.file, t.queue)
		t.file = 0
	}
}

func (t *tree) enterFile(fd int, tell bool) error {
	if err := ordinary(fd); err != nil {
		t.leave()
		return err
	}
	wd, err := t.add(fd, fileMask)
	if err != nil {
		t.leave()
		return err
	}
	if t.file == wd {
		return nil
	}
	t.leave()
	t.file = wd
	if tell {
		t.tell(Change{Path: t.options.Root, Kind: Created})
	}
	return nil
}

func (t *tree) enterRoot(ctx context.Context, at int, tell bool) error {
	fd, err := open(at, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err == nil {
		err = ordinary(fd)
	}
	if err != nil {
		t.leave()
		return err
	}
	wd, err := t.add(fd, dirMask)
	if err != nil {
		unix.Close(fd)
		t.leave()
		return err
	}
	if t.root != nil && t.root.wd == wd {
		unix.Close(fd)
		return nil
	}
	t.leave()
	if tell {
		t.tell(Change{Path: t.options.Root, Kind: Created, Directory: true})
	}
	t.watcher.Group.Remove(wd, t.queue) // enter adds it again
	root := &node{name: t.options.Root}
	if err := t.enter(ctx, root, fd, tell); err != nil {
		return err
	}
	t.root = root
	return nil
}

// enterNamed enters the directory name of dir, and reports it and its contents as created. A
// directory that was already entered is not reported again, because readers would then take it for
// empty.
func (t *tree) enterNamed(ctx context.Context, dir *node, name string) {
	child := &node{name: name, parent: dir, depth: dir.depth + 1}
	at := child.path()
	fd, err := -1, error(unix.ENOENT)
	if t.options.Shown(at, true) {
		fd, err = t.openIn(dir, name)
	}
	if known := dir.children[name]; known != nil {
		if err == nil {
			var wd int32
			wd, err = t.add(fd, dirMask)
			if err == nil && wd == known.wd {
				unix.Close(fd)
				return
			}
			if err == nil && t.dirs[wd] == nil {
				t.watcher.Group.Remove(wd, t.queue) // enter adds it again
			}
			if err != nil {
				unix.Close(fd)
			}
		}
		t.forget(known)
	}
	t.tell(Change{Path: at, Kind: Created, Directory: true})
	if err == nil {
		err = t.enter(ctx, child, fd, true)
	}
	t.unreadable(err)
}

// openIn opens the directory name in dir. If dir has moved, its new place is unknown, and another
// directory may be at its old place: then the error is ENOENT, and dir is unsure.
func (t *tree) openIn(dir *node, name string) (int, error) {
	above, err := openPath(dir.path())
	if err == nil {
		var wd int32
		if wd, err = t.add(above, dirMask); err == nil && wd != dir.wd {
			if _, passed := t.above[wd]; t.dirs[wd] == nil && !passed {
				t.watcher.Group.Remove(wd, t.queue)
			}
			err = unix.ENOENT
		}
	}
	if err != nil {
		dir.unsure = true
		if above >= 0 {
			unix.Close(above)
		}
		return -1, err
	}
	defer unix.Close(above)
	return open(above, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
}

// unreadable takes the error of a directory that was not entered. A missing directory
// is no loss; nor is one whose names the agent may not read, because there is nothing
// to report about it.
func (t *tree) unreadable(err error) {
	switch err {
	case nil, unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EACCES, unix.EPERM, ErrNotOrdinary, os.ErrClosed:
	default:
		t.setBlind()
	}
}

// enter watches the directory of fd, and then lists it. It closes fd. With tell, it
// reports everything listed as created.
func (t *tree) enter(ctx context.Context, n *node, fd int, tell bool) error {
	dir := os.NewFile(uintptr(fd), ownFD(fd)) // ReadDir uses the name if it asks for types
	defer dir.Close()
	if err := ordinary(fd); err != nil {
		return err
	}
	if n.depth > maxDepth || len(t.dirs) >= maxDirs {
		return ErrLimit
	}
	if err := t.watcher.Dirs.Take(t.options.Owner, 1); err != nil {
		return err
	}
	wd, err := t.add(fd, dirMask)
	if _, above := t.above[wd]; err == nil && above && n.parent != nil {
		t.watcher.Dirs.Give(t.options.Owner, 1)
		return nil // mounted below itself
	}
	if known := t.dirs[wd]; err == nil && known != nil {
		if known.holds(n) {
			n.parent.unsure = true
			t.watcher.Dirs.Give(t.options.Owner, 1)
			return nil
		}
		// It was moved, as an event will say. From now on it is here.
		t.forget(known)
		wd, err = t.add(fd, dirMask)
	}
	if err != nil {
		t.watcher.Dirs.Give(t.options.Owner, 1)
		return err
	}
	n.wd, n.children = wd, map[string]*node{}
	t.dirs[wd] = n
	if n.parent != nil {
		n.parent.children[n.name] = n
	}
	return t.list(ctx, n, dir, tell)
}

// holds reports whether n is other or lies above it.
func (n *node) holds(other *node) bool {
	for ; other != nil; other = other.parent {
		if other == n {
			return true
		}
	}
	return false
}

// list goes through the names of n.
func (t *tree) list(ctx context.Context, n *node, dir *os.File, tell bool) error {
	if !tell && !t.options.Recursive {
		return nil
	}
	at := n.path()
	for ctx.Err() == nil {
		entries, err := dir.ReadDir(512)
		for _, e := range entries {
			below := path.Join(at, e.Name())
			if !t.options.Shown(below, e.IsDir()) {
				continue
			}
			if tell {
				t.tell(Change{Path: below, Kind: Created, Directory: e.IsDir()})
			}
			if !e.IsDir() || !t.options.Recursive {
				continue
			}
			fd, err := open(int(dir.Fd()), e.Name(), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
			if err == nil {
				err = t.enter(ctx, &node{name: e.Name(), parent: n, depth: n.depth + 1}, fd, tell)
			}
			t.unreadable(err)
		}
		switch {
		case err == io.EOF || errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			t.setBlind()
			return nil
		}
	}
	return nil
}

// follow moves n after an event. The files may have changed since: the directory now there
// is entered if it is another one, or if not everything in n could be examined.
func (t *tree) follow(ctx context.Context, n, dir *node, name string) {
	if n.holds(dir) {
		t.broken = true // the tree does not match the files
		return
	}
	t.move(n, dir, name)
	fd, err := t.openIn(dir, name)
	if err != nil {
		return // it has moved on, as an event will say
	}
	wd, err := t.add(fd, dirMask)
	if err == nil && wd == n.wd && !n.anyUnsure() {
		unix.Close(fd)
		return
	}
	if err == nil && t.dirs[wd] == nil {
		t.watcher.Group.Remove(wd, t.queue) // enter adds it again
	}
	t.forget(n)
	t.tell(Change{Path: n.path(), Kind: Created, Directory: true})
	t.unreadable(t.enter(ctx, &node{name: name, parent: dir, depth: dir.depth + 1}, fd, true))
}

// anyUnsure reports whether n or a directory below it is unsure.
func (n *node) anyUnsure() bool {
	if n.unsure {
		return true
	}
	for _, child := range n.children {
		if child.anyUnsure() {
			return true
		}
	}
	return false
}

// move puts n into another directory.
func (t *tree) move(n, dir *node, name string) {
	delete(n.parent.children, n.name)
	n.parent, n.name = dir, name
	dir.children[name] = n
	t.sink(n, dir.depth+1-n.depth)
}

// sink adds to the depth of n and of all nodes below it.
func (t *tree) sink(n *node, by int) {
	if by == 0 {
		return
	}
	n.depth += by
	for _, child := range n.children {
		t.sink(child, by)
	}
}

// forget ends the watches of n and of all nodes below it.
func (t *tree) forget(n *node) {
	if t.dirs[n.wd] == n {
		delete(t.dirs, n.wd)
		t.watcher.Group.Remove(n.wd, t.queue)
		t.watcher.Dirs.Give(t.options.Owner, 1)
	}
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
	for _, child := range n.children {
		t.forget(child)
	}
}

// forgetAll ends all watches of the kernel.
func (t *tree) forgetAll() {
	t.leave()
	for wd := range t.above {
		t.watcher.Group.Remove(wd, t.queue)
	}
	t.above = nil
}

// add watches the object of fd. It does not use the path, because somebody could put a
// link there.
func (t *tree) add(fd int, mask uint32) (int32, error) {
	wd, err := t.watcher.Group.Add(ownFD(fd), mask, t.queue)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EMFILE) {
		err = ErrLimit
	}
	return wd, err
}
