package fsops

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"
)

// errRecursiveRefuse is the error of the only combination of options without a
// meaning; the reference refuses it too (rpc.md 5.2).
var errRecursiveRefuse = errors.New("recursive removal does not go with refused links")

// Remove removes path itself, never the target of a link. With recursive it
// removes a directory with its contents; otherwise the directory must be empty.
// With force a missing path is no error. [RefuseLinks] cannot be combined with
// recursive.
//
// No link is followed below path, even if a link replaces a directory during
// the removal. The first error ends the removal; the end of the context does so
// between directories.
func (Host) Remove(ctx context.Context, path string, recursive, force bool, links Links) error {
	return removed(path, force, remove(ctx, path, recursive, links))
}

// Remove removes path. If a rule is about path or anything below it, nothing is
// removed.
func (v *View) Remove(ctx context.Context, path string, recursive, force bool, links Links) error {
	return removed(path, force, v.remove(ctx, path, recursive, links))
}

// removed turns err into the result of Remove.
func removed(path string, force bool, err error) error {
	if force && err == unix.ENOENT {
		return nil
	}
	return pathError("remove", path, err)
}

func remove(ctx context.Context, path string, recursive bool, links Links) error {
	if path == "/" {
		return unix.EBUSY
	}
	if links == RefuseLinks {
		if recursive {
			return errRecursiveRefuse
		}
		dir, name, err := openParent(path)
		if err != nil {
			return err
		}
		defer unix.Close(dir)
		var st unix.Stat_t
		if err := fstatAt(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if kindOf(&st) == unix.DT_LNK {
			return linkRefused(path)
		}
		err = unlinkAt(dir, name, 0)
		if err == unix.EISDIR {
			err = unlinkAt(dir, name, unix.AT_REMOVEDIR)
		}
		return err
	}

	err := unlinkAt(unix.AT_FDCWD, path, 0)
	if err != unix.EISDIR {
		return err
	}
	if err = unlinkAt(unix.AT_FDCWD, path, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY || !recursive {
		return err
	}
	parent, name := splitPath(path)
	fd, err := openAt(unix.AT_FDCWD, parent, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return (*View)(nil).removeTree(ctx, Dir{FD: fd}, name)
}

func (v *View) remove(ctx context.Context, path string, recursive bool, links Links) error {
	if links == RefuseLinks && recursive {
		return errRecursiveRefuse
	}
	for range maxRaces {
		again, err := v.removeOnce(ctx, path, recursive, links)
		if !again {
			return err
		}
	}
	return unix.EBUSY
}

// removeOnce tries to remove path. It returns again if path changed between a
// directory and something else after it was looked at.
func (v *View) removeOnce(ctx context.Context, path string, recursive bool, links Links) (again bool, err error) {
	p, err := v.find(v.paths.base, path, links.lookup(0)|forWriting)
	if err != nil {
		return false, err
	}
	defer p.Close()
	if p.fileType() == unix.DT_LNK && links == RefuseLinks && p.Access != Denied {
		return false, linkRefused(path)
	}
	if err := v.paths.Removable(&p); err != nil {
		return false, err
	}
	if p.fileType() != unix.DT_DIR {
		err := unlinkAt(p.In.FD, p.Name, 0)
		return err == unix.EISDIR, err
	}
	if err := unlinkAt(p.In.FD, p.Name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY || !recursive {
		return err == unix.ENOTDIR, err
	}
	if err := v.paths.CheckTree(&p, ""); err != nil {
		return false, err
	}
	parent := p.In
	if parent.FD, err = duplicate(p.In.FD); err != nil {
		return false, err
	}
	return false, v.removeTree(ctx, parent, p.Name)
}

func unlinkAt(dir int, path string, flags int) error {
	for {
		if err := unix.Unlinkat(dir, path, flags); err != unix.EINTR {
			return err
		}
	}
}

// removal is a directory that is being emptied.
type removal struct {
	name    string   // in the directory around it
	pending []string // directories in it, seen and not yet entered
	changed bool     // something was removed since this pass over the names began
}

// removeTree removes the directory name in parent, which it closes.
func (v *View) removeTree(ctx context.Context, parent Dir, name string) error {
	var stack dirStack
	defer stack.close()
	if err := stack.push(parent); err != nil {
		return err
	}
	r := newDirReader()
	// todo has an element for each directory of the stack. The first one is the
	// parent, from which only one name is removed.
	todo := []removal{{pending: []string{name}}}
	for {
		d := &todo[len(todo)-1]
		if n := len(d.pending); n > 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			name := d.pending[n-1]
			d.pending = d.pending[:n-1]
			next, err := v.openDir(stack.top().Dir, name, false)
			switch err {
			case nil:
				if err := stack.push(next); err != nil {
					return err
				}
				todo = append(todo, removal{name: name})
			case unix.ENOENT:
			case unix.ENOTDIR: // no longer a directory, perhaps a link
				if err := v.unlink(stack.top().Dir, name, 0); err != nil && err != unix.ENOENT {
					return err
				}
				d.changed = true
			default:
				return err
			}
			continue
		}
		if len(todo) == 1 {
			return nil
		}
		more, err := r.fill(stack.top().FD)
		if err != nil {
			return err
		}
		if more {
			if err := v.unlinkAll(stack.top().Dir, r, d); err != nil {
				return err
			}
			continue
		}

		if d.changed {
			// Some file systems skip names in a directory while others are
			// removed from it. So it is read again until a whole pass has
			// removed nothing.
			d.changed = false
			if _, err := unix.Seek(stack.top().FD, 0, unix.SEEK_SET); err != nil {
				return err
			}
			continue
		}
		name := d.name
		if _, err := stack.pop(); err != nil {
			return err
		}
		todo = todo[:len(todo)-1]
		err = v.unlink(stack.top().Dir, name, unix.AT_REMOVEDIR)
		if err != nil && err != unix.ENOENT {
			return err
		}
		todo[len(todo)-1].changed = true
	}
}

// unlinkAll removes the names in at that r has read. It notes directories among
// them in d.pending.
func (v *View) unlinkAll(at Dir, r *dirReader, d *removal) error {
	for raw, kind := range r.all {
		name := string(raw)
		if kind == unix.DT_DIR {
			d.pending = append(d.pending, name)
			continue
		}
		switch err := v.unlink(at, name, 0); err {
		case nil:
			d.changed = true
		case unix.ENOENT:
		case unix.EISDIR:
			d.pending = append(d.pending, name)
		default:
			return err
		}
	}
	return nil
}
