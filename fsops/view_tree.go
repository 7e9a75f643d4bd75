package fsops

import (
	"context"

	"golang.org/x/sys/unix"
)

// ReadDirectory lists the directory at path. Denied names are listed, hidden
// ones are not. What a link leads to when that is denied or hidden has no type.
func (v *View) ReadDirectory(_ context.Context, path string) ([]DirEntry, error) {
	return v.readDirectory(path)
}

// Walk lists what is under root. A directory that may not be read is an entry
// and an error; a link that leads to one, when links are followed, only an
// error.
func (v *View) Walk(ctx context.Context, root string, o WalkOptions) (WalkResult, error) {
	return v.walk(ctx, root, o)
}

// Copy copies src to dst. What is hidden in src is left out; what is denied is
// an error, as any other, and so is each name that may not come into being.
func (v *View) Copy(ctx context.Context, src, dst string, recursive bool) error {
	return v.copy(ctx, src, dst, recursive)
}

// Remove removes path. Nothing is removed when a rule hangs on something in it.
func (v *View) Remove(ctx context.Context, path string, recursive, force bool, links Links) error {
	return removed(path, force, v.remove(ctx, path, recursive, links))
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

// removeOnce is to be done again when a directory and something else changed
// places.
func (v *View) removeOnce(ctx context.Context, path string, recursive bool, links Links) (again bool, err error) {
	p, err := v.find(v.base, path, links.lookup(0)|forWriting)
	if err != nil {
		return false, err
	}
	defer p.close()
	if p.fileType() == unix.DT_LNK && links == RefuseLinks && p.access != Denied {
		return false, linkRefused(path)
	}
	if err := v.removable(&p); err != nil {
		return false, err
	}
	if p.fileType() != unix.DT_DIR {
		err := unlinkAt(p.in.fd, p.name, 0)
		return err == unix.EISDIR, err
	}
	if err := unlinkAt(p.in.fd, p.name, unix.AT_REMOVEDIR); err != unix.ENOTEMPTY || !recursive {
		return err == unix.ENOTDIR, err
	}
	if err := v.checkTree(&p); err != nil {
		return false, err
	}
	parent := p.in
	if parent.fd, err = duplicate(p.in.fd); err != nil {
		return false, err
	}
	return false, v.removeTree(ctx, parent, p.name)
}

// Rename moves src to dst. A directory that holds files which are denied by
// their names stays where it is (EACCES): elsewhere they would not be.
func (v *View) Rename(_ context.Context, src, dst string, replace bool) error {
	return pathError("rename", src, v.rename(src, dst, replace))
}

func (v *View) rename(src, dst string, replace bool) error {
	from, err := v.find(v.base, src, forWriting)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := v.resolve(v.base, dst, forWriting)
	if err != nil {
		return visible(err)
	}
	defer to.close()
	isDir := from.fileType() == unix.DT_DIR
	if err := v.removable(&from); err != nil {
		return err
	}
	if to.exists() {
		err = v.removable(&to)
	} else {
		err = v.creatable(&to, isDir)
	}
	switch {
	case err != nil:
		return err
	case isDir:
		err = v.checkTree(&from)
	case v.rules.DeniesFile(to.path):
		err = unix.EACCES
	}
	if err != nil {
		return err
	}
	return renameAt(from.in.fd, from.name, to.in.fd, to.name, replace)
}

// checkTree refuses what is to be done with a whole directory when a file in
// it is denied by its name.
func (v *View) checkTree(top *place) error {
	if !v.globs {
		return nil
	}
	r := newDirReader()
	for queue := []string{""}; len(queue) > 0; {
		rel := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		fd, err := openBeneath(top.fd, rel+".", dirFlags)
		if err == unix.ENOENT {
			continue // removed meanwhile
		}
		if err != nil {
			return err
		}
		queue, err = v.checkNames(r, fd, join(top.path, rel), rel, queue)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// checkNames is checkTree for one directory, which is rel below the top. It
// adds those in it to the queue.
func (v *View) checkNames(r *dirReader, fd int, path, rel string, queue []string) ([]string, error) {
	for {
		more, err := r.fill(fd)
		if err != nil || !more {
			return queue, err
		}
		for raw, kind := range r.all {
			name := string(raw)
			if kind == unix.DT_UNKNOWN {
				var st unix.Stat_t
				if err := fstatAt(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil && err != unix.ENOENT {
					return nil, err
				}
				kind = kindOf(&st)
			}
			switch {
			case kind == unix.DT_DIR:
				queue = append(queue, rel+name+"/")
			case v.rules.DeniesFile(path + name):
				return nil, unix.EACCES
			}
		}
	}
}
