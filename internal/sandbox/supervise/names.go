package supervise

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// Calls that make, remove and move names. Each finds the directory of the name,
// judges the canonical path, and acts on the name in the open directory. A
// protected name cannot be made, so no placeholder on disk is needed
// (supervised.md 6).

// name is the last part of a path, the subject of the call.
type name struct {
	place
	// slash says that the path ended in a slash: the object must be a directory.
	slash bool
	// dots is "." or ".." if the path ends so, or "/" for the root: no call can
	// make, remove or move these.
	dots string
}

// name finds the name that a path ends in. Like the kernel for these calls, it
// does not follow a link there, even before a slash.
func (r *request) name(dir, pathArg int, how fsops.Lookup) (name, error) {
	path, err := r.path(pathArg)
	if err != nil {
		return name{}, err
	}
	return r.nameAt(dir, path, how)
}

// nameAt is name for a path that was already read.
func (r *request) nameAt(dir int, path string, how fsops.Lookup) (name, error) {
	if path == "" {
		return name{}, unix.ENOENT
	}
	trimmed := strings.TrimRight(path, "/")
	n := name{slash: trimmed != path}
	switch last := trimmed[strings.LastIndexByte(trimmed, '/')+1:]; last {
	case "":
		n.dots, trimmed = "/", "/"
	case ".", "..":
		n.dots = last
	}
	var err error
	n.place, err = r.find(dir, trimmed, how)
	return n, err
}

// make judges the name that the call creates, and creates it. It checks whether
// the name exists only if nothing may be created there, because otherwise the
// kernel checks it.
func (r *request) make(dir, pathArg int, isDirectory bool, do func(in int, name string) error) callResult {
	p, err := r.name(dir, pathArg, fsops.Unopened)
	if err != nil {
		return fail(err)
	}
	defer p.close()
	if p.dots == "" && !p.Exists() && (isDirectory || !p.slash) && r.n.paths.Creatable(&p.Place, isDirectory) == nil {
		return r.changed(result(do(p.In.FD, p.Name)), p.Path, isDirectory)
	}
	if err := r.complete(&p.place, 0); err != nil {
		return fail(err)
	}
	switch {
	case p.dots != "" || p.Exists():
		return fail(unix.EEXIST)
	case p.slash && !isDirectory:
		return fail(unix.ENOENT)
	}
	if err := r.n.paths.Creatable(&p.Place, isDirectory); err != nil {
		return r.refuse(refusals.Create, p.Path, err)
	}
	return r.changed(result(do(p.In.FD, p.Name)), p.Path, isDirectory)
}

func (r *request) mkdir() callResult   { return r.makeDirectory(unix.AT_FDCWD, 0, 1) }
func (r *request) mkdirat() callResult { return r.makeDirectory(r.int(0), 1, 2) }

func (r *request) makeDirectory(dir, pathArg, modeArg int) callResult {
	return r.make(dir, pathArg, true, func(in int, name string) error {
		return r.underUmask(func() error { return unix.Mkdirat(in, name, uint32(r.int(modeArg))&0o1777) })
	})
}

func (r *request) mknod() callResult   { return r.makeNode(unix.AT_FDCWD, 0, 1) }
func (r *request) mknodat() callResult { return r.makeNode(r.int(0), 1, 2) }

func (r *request) makeNode(dir, pathArg, modeArg int) callResult {
	mode := uint32(r.int(modeArg)) & 0xffff
	switch mode & unix.S_IFMT {
	case 0, unix.S_IFREG, unix.S_IFIFO, unix.S_IFSOCK:
	case unix.S_IFCHR, unix.S_IFBLK, unix.S_IFDIR:
		return fail(unix.EPERM)
	default:
		return fail(unix.EINVAL)
	}
	if mode&setIDs != 0 {
		return fail(unix.EPERM)
	}
	return r.make(dir, pathArg, false, func(in int, name string) error {
		return r.underUmask(func() error { return unix.Mknodat(in, name, mode, 0) })
	})
}

func (r *request) symlink() callResult   { return r.makeLink(0, unix.AT_FDCWD, 1) }
func (r *request) symlinkat() callResult { return r.makeLink(0, r.int(1), 2) }

func (r *request) makeLink(targetArg, dir, pathArg int) callResult {
	target, err := r.path(targetArg)
	if err != nil {
		return fail(err)
	}
	if target == "" {
		return fail(unix.ENOENT)
	}
	return r.make(dir, pathArg, false, func(in int, name string) error { return unix.Symlinkat(target, in, name) })
}

func (r *request) link() callResult { return r.makeHardLink(unix.AT_FDCWD, 0, unix.AT_FDCWD, 1, 0) }
func (r *request) linkat() callResult {
	return r.makeHardLink(r.int(0), 1, r.int(2), 3, r.int(4))
}

// makeHardLink gives a file one more name. The command must be allowed to
// change the file, because under the new name it could.
func (r *request) makeHardLink(fromDir, fromArg, toDir, toArg, flags int) callResult {
	if flags&^(unix.AT_SYMLINK_FOLLOW|unix.AT_EMPTY_PATH) != 0 {
		return fail(unix.EINVAL)
	}
	from, err := r.target(fromDir, fromArg, flags&unix.AT_EMPTY_PATH != 0, flags&unix.AT_SYMLINK_FOLLOW != 0)
	if err != nil {
		return fail(err)
	}
	defer from.close()
	return r.make(toDir, toArg, false, func(in int, name string) error {
		switch err := from.Writable(); {
		case err == unix.EROFS, r.n.isBoundToTemporary(&from.Place):
			return unix.EXDEV // as between two mounts
		case err != nil:
			return err
		}
		// This links the object and not its name, which may now belong to another object.
		return unix.Linkat(unix.AT_FDCWD, ownPath(from.FD), in, name, unix.AT_SYMLINK_FOLLOW)
	})
}

func (r *request) unlink() callResult { return r.remove(unix.AT_FDCWD, 0, 0) }
func (r *request) rmdir() callResult  { return r.remove(unix.AT_FDCWD, 0, unix.AT_REMOVEDIR) }
func (r *request) unlinkat() callResult {
	flags := r.int(2)
	if flags&^unix.AT_REMOVEDIR != 0 {
		return fail(unix.EINVAL)
	}
	return r.remove(r.int(0), 1, flags)
}

// remove removes a name. In a directory that may not be written this fails with
// EROFS whether or not the name exists, as on a read-only mount.
func (r *request) remove(dir, pathArg, flags int) callResult {
	p, err := r.name(dir, pathArg, fsops.Unopened)
	if err != nil {
		return fail(err)
	}
	defer p.close()
	policy := r.n.config.Policy
	if p.dots == "" && !p.slash && len(policy.Globs) == 0 && !policy.Bound(p.Path) && r.n.paths.Removable(&p.Place) == nil {
		return r.changed(result(unix.Unlinkat(p.In.FD, p.Name, flags)), p.Path, false) // the kernel checks whether it exists
	}
	if err := r.complete(&p.place, 0); err != nil {
		return fail(err)
	}
	switch {
	case flags == 0 && p.dots != "":
		return fail(unix.EISDIR)
	case p.dots == ".":
		return fail(unix.EINVAL)
	case p.dots == "..":
		return fail(unix.ENOTEMPTY)
	case p.dots == "/":
		return fail(unix.EBUSY)
	}
	if err := r.n.paths.Removable(&p.Place); err != nil && p.Exists() {
		return r.refuse(refusals.Remove, p.Path, err)
	} else if err != nil {
		return fail(err)
	}
	switch {
	case !p.Exists():
		return fail(unix.ENOENT)
	case flags == 0 && p.slash && isDirectory(&p.Place):
		return fail(unix.EISDIR)
	case flags == 0 && p.slash:
		return fail(unix.ENOTDIR)
	}
	return r.changed(result(unix.Unlinkat(p.In.FD, p.Name, flags)), p.Path, false)
}

func (r *request) rename() callResult   { return r.move(unix.AT_FDCWD, 0, unix.AT_FDCWD, 1, 0) }
func (r *request) renameat() callResult { return r.move(r.int(0), 1, r.int(2), 3, 0) }
func (r *request) renameat2() callResult {
	return r.move(r.int(0), 1, r.int(2), 3, r.int(4))
}

// move moves a name, or exchanges two. It runs alone: no other call of the
// command uses a directory that it moves.
func (r *request) move(fromDir, fromArg, toDir, toArg, flags int) callResult {
	exchange, keep := flags&unix.RENAME_EXCHANGE != 0, flags&unix.RENAME_NOREPLACE != 0
	switch {
	case flags&^(unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE|unix.RENAME_WHITEOUT) != 0, exchange && flags != unix.RENAME_EXCHANGE:
		return fail(unix.EINVAL)
	case flags&unix.RENAME_WHITEOUT != 0:
		return fail(unix.EPERM)
	}
	from, err := r.name(fromDir, fromArg, 0)
	if err != nil {
		return fail(err)
	}
	defer from.close()
	to, err := r.name(toDir, toArg, 0)
	if err != nil {
		return fail(err)
	}
	defer to.close()
	switch {
	case from.dots != "":
		return fail(unix.EBUSY)
	case to.dots != "" && keep:
		return fail(unix.EEXIST)
	case to.dots != "":
		return fail(unix.EBUSY)
	}
	if !keep && isSame(&from, &to) {
		return callResult{} // nothing happens, even if a rule is about it
	}
	switch err := r.movable(&from, &to, exchange, keep); {
	case err == nil:
	case !from.Exists():
		return fail(err) // nothing was there to be moved
	case r.n.paths.Removable(&from.Place) != nil:
		return r.refuse(refusals.Move, from.Path, err)
	case err == unix.EROFS || err == unix.EACCES || err == unix.EBUSY:
		return r.refuse(refusals.Create, to.Path, err)
	default:
		return fail(err)
	}
	a := result(unix.Renameat2(from.In.FD, from.Name, to.In.FD, to.Name, uint(flags)))
	return r.changed(r.changed(a, from.Path, false), to.Path, false)
}

// isSame reports whether two names, in writable directories, belong to one
// object.
func isSame(from, to *name) bool {
	return from.Exists() && to.Exists() && from.Stat.Dev == to.Stat.Dev && from.Stat.Ino == to.Stat.Ino &&
		from.In.Access == fsops.Write && to.In.Access == fsops.Write && (isDirectory(&from.Place) || !from.slash && !to.slash)
}

// movable returns the reason why from may not be moved to to, or nil.
func (r *request) movable(from, to *name, exchange, keep bool) error {
	if err := r.n.paths.Removable(&from.Place); err != nil {
		return err
	}
	switch {
	case !from.Exists():
		return unix.ENOENT
	case to.Exists() && keep:
		return unix.EEXIST
	case !to.Exists() && exchange:
		return unix.ENOENT
	case !isDirectory(&from.Place) && (from.slash || to.slash && !exchange), exchange && to.slash && !isDirectory(&to.Place):
		return unix.ENOTDIR
	}
	if to.Exists() {
		if err := r.n.paths.Removable(&to.Place); err != nil {
			return err
		}
	}
	if err := r.n.placeable(&from.Place, &to.Place); err != nil {
		return err
	}
	if exchange {
		return r.n.placeable(&to.Place, &from.Place)
	}
	return nil
}

// isBoundToTemporary reports whether p must stay in a temporary directory, because it
// is a socket or may hold sockets. A user's ssh-agents and terminals listen in such
// directories, where a command may connect only to new sockets. In a workspace it
// could connect to moved sockets too, and act through them outside its sandbox. If
// mounts confine a command, nothing can be moved between the two, and programs copy
// instead.
func (n *Notifier) isBoundToTemporary(p *fsops.Place) bool {
	kind := p.Stat.Mode & unix.S_IFMT
	return (kind == unix.S_IFSOCK || kind == unix.S_IFDIR) && n.config.Policy.Temporary(p.Path)
}

// placeable returns the reason why the object at from may not appear at the name to, or nil.
func (n *Notifier) placeable(from, to *fsops.Place) error {
	directory := isDirectory(from)
	if err := n.paths.Creatable(to, directory); err != nil {
		return err
	}
	if n.isBoundToTemporary(from) && !n.config.Policy.Temporary(to.Path) {
		return unix.EXDEV
	}
	if !directory {
		return nil
	}
	return n.paths.CheckTree(from, to.Path)
}
