package fsops

import "golang.org/x/sys/unix"

// CheckTree returns the reason why the directory top may not be moved to the path to as a whole, or
// be removed if to is empty. The error is EBUSY if a rule lies at or below to, because the contents
// of the directory would come to paths with rules of their own. It is EACCES if a file in the
// directory is denied by its name.
func (r *Resolver) CheckTree(top *Place, to string) error {
	if to != "" && r.rules.Bound(to) {
		return unix.EBUSY
	}
	if !r.denies {
		return nil
	}
	names := newDirReader()
	for queue := []string{""}; len(queue) > 0; {
		rel := queue[len(queue)-1]
		queue = queue[:len(queue)-1]
		fd, err := openBeneath(top.FD, rel+".", dirFlags)
		if err == unix.ENOENT {
			continue // removed in the meantime
		}
		if err != nil {
			return err
		}
		queue, err = r.checkNames(names, fd, join(top.Path, rel), rel, queue)
		unix.Close(fd)
		if err != nil {
			return err
		}
	}
	return nil
}

// checkNames is CheckTree for the names of one directory, which is rel below the
// top. It returns queue with the directories among the names added.
func (r *Resolver) checkNames(names *dirReader, fd int, path, rel string, queue []string) ([]string, error) {
	for {
		more, err := names.fill(fd)
		if err != nil || !more {
			return queue, err
		}
		for raw, kind := range names.all {
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
			case r.rules.DeniesFile(path + name):
				return nil, unix.EACCES
			}
		}
	}
}
