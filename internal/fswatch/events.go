package fswatch

import (
	"context"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
)

// apply takes events, in order. It returns events that must wait, because the other
// half of a rename may still come.
func (t *tree) apply(ctx context.Context, events []queued) []queued {
	var seconds map[uint32]int // halves of renames: the place of the second one
	for i := range events {
		e := &events[i]
		if e.done || ctx.Err() != nil {
			continue
		}
		if t.aboveRoot(e.Event) {
			t.look(ctx)
			continue
		}
		dir := t.dirs[e.WD]
		switch {
		case e.Mask&unix.IN_UNMOUNT != 0:
			t.broken = true
		case dir == nil:
		case e.Mask&unix.IN_MOVED_FROM != 0:
			if seconds == nil {
				seconds = secondHalves(events[i:], i)
			}
			j, paired := seconds[e.Cookie]
			if !paired && time.Since(e.at) < pairing {
				return events[i:]
			}
			if paired && t.dirs[events[j].WD] != nil {
				events[j].done = true
				t.renamed(ctx, dir, e.Name, t.dirs[events[j].WD], events[j].Name, e.Mask&unix.IN_ISDIR != 0)
				continue
			}
			t.removed(dir, e.Name, e.Mask&unix.IN_ISDIR != 0)
		default:
			t.happened(ctx, dir, e.Event)
		}
		if t.broken {
			return nil
		}
	}
	return nil
}

func secondHalves(events []queued, first int) map[uint32]int {
	found := map[uint32]int{}
	for i := range events {
		if events[i].Mask&unix.IN_MOVED_TO != 0 {
			found[events[i].Cookie] = first + i
		}
	}
	return found
}

// happened takes an event of a directory, except the first half of a rename.
func (t *tree) happened(ctx context.Context, dir *node, e inotify.Event) {
	isDir := e.Mask&unix.IN_ISDIR != 0
	switch {
	case e.Name == "":
		if e.Mask&unix.IN_ATTRIB != 0 && dir == t.root {
			t.tell(Change{Path: t.options.Root, Kind: Modified, Directory: true})
		}
	case e.Mask&unix.IN_DELETE != 0:
		t.removed(dir, e.Name, isDir)
	case e.Mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
		t.created(ctx, dir, e.Name, isDir)
	case e.Mask&(unix.IN_MODIFY|unix.IN_ATTRIB) != 0:
		t.tell(Change{Path: path.Join(dir.path(), e.Name), Kind: Modified, Directory: isDir})
	}
}

func (t *tree) created(ctx context.Context, dir *node, name string, isDir bool) {
	if isDir && t.options.Recursive {
		t.enterNamed(ctx, dir, name)
		return
	}
	t.tell(Change{Path: path.Join(dir.path(), name), Kind: Created, Directory: isDir})
	if child := dir.children[name]; child != nil {
		t.forget(child) // it is gone, or an event will say so
	}
}

func (t *tree) removed(dir *node, name string, isDir bool) {
	if child := dir.children[name]; child != nil {
		t.forget(child)
	}
	t.tell(Change{Path: path.Join(dir.path(), name), Kind: Removed, Directory: isDir})
}

// renamed takes both halves of a rename. If one side is not shown, the rename is
// reported as created or removed on the other side.
func (t *tree) renamed(ctx context.Context, from *node, oldName string, to *node, newName string, isDir bool) {
	old, now := path.Join(from.path(), oldName), path.Join(to.path(), newName)
	child, replaced := from.children[oldName], to.children[newName]
	last := t.renaming
	t.renaming = renaming{watchedName{from, oldName}, watchedName{to, newName}}
	back := last == renaming{t.renaming.to, t.renaming.from}
	if replaced != nil || child != nil && !isDir || back && from.has(oldName) {
		// Two objects have changed places, or the tree does not match the files.
		t.broken = true
		return
	}
	wasShown, isShown := t.options.Shown(old, isDir), t.options.Shown(now, isDir)
	switch {
	case wasShown && isShown:
		t.tell(Change{Path: now, Kind: Renamed, From: old, Directory: isDir})
	case wasShown:
		t.tell(Change{Path: old, Kind: Removed, Directory: isDir})
	case isShown:
		t.tell(Change{Path: now, Kind: Created, Directory: isDir})
	}
	switch {
	case child != nil && isShown && !t.judged:
		t.follow(ctx, child, to, newName)
	case child != nil:
		// Names below may be hidden at only one of the two places.
		t.forget(child)
		t.enterNamed(ctx, to, newName)
	case isDir && isShown && t.options.Recursive:
		t.enterNamed(ctx, to, newName)
	}
}
