package fsops

import (
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// The kernel shows a process its own memory, environment and descriptors in procfs, even if it hides
// them from every other process. Whoever asks this process for a file is another one. So the [Host]
// refuses what procfs shows of these, in whatever way a path leads there. It judges the object that
// was opened, and each magic link (proc(5)) on the way.

// ownNames are these names in the directory of a process. There are also "smaps" and its like.
var ownNames = []string{
	"environ", "mem", "maps", "auxv", "fd", "fdinfo", "map_files", "numa_maps", "pagemap", "clear_refs", "stack", "syscall",
}

// procRootIno is the number of the root of every procfs.
const procRootIno = 1

// openHost is openAt for a [Host]: it refuses what this process hides.
func openHost(dir int, path string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | openFlags), Resolve: unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_PATH != 0 {
		how.Flags &^= unix.O_NONBLOCK | unix.O_NOCTTY
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(dir, path, &how)
		switch err {
		case unix.EINTR:
			continue
		case unix.ELOOP, unix.ENOSYS, unix.EPERM:
			// A magic link, perhaps; or an old kernel, or a filter that does not know the call.
			return stepHost(dir, path, flags, mode)
		}
		return admit(fd, -1, flags, err)
	}
}

// wary says whether links at the end of paths are followed as [Resolver] has it.
var wary = sync.OnceValue(protectsLinks)

// stepHost is openHost one name at a time.
func stepHost(dir int, path string, flags int, mode uint32) (fd int, err error) {
	at, err := startOf(dir, path)
	if err != nil {
		return -1, err
	}
	enter := func(next int) {
		unix.Close(at)
		at = next
	}
	defer func() { enter(-1) }()
	for links := 0; ; {
		name, rest, slash := strings.Cut(strings.TrimLeft(path, "/"), "/")
		if name == "" {
			name = "."
		}
		last := strings.Trim(rest, "/") == ""
		object, err := openAt(at, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err == unix.ENOENT && last && !slash && flags&unix.O_CREAT != 0 {
			fd, err = openAt(at, name, flags|unix.O_NOFOLLOW, mode)
			return admit(fd, at, flags, err)
		}
		if err != nil {
			return -1, err
		}
		var st unix.Stat_t
		if err = fstat(object, &st); err != nil {
			unix.Close(object)
			return -1, err
		}
		if kindOf(&st) != unix.DT_LNK || last && !slash && flags&unix.O_NOFOLLOW != 0 {
			if !last {
				enter(object)
				path = rest
				continue
			}
			unix.Close(object)
			if slash && flags&unix.O_CREAT != 0 {
				return -1, unix.EISDIR
			}
			if slash {
				flags |= unix.O_DIRECTORY
			}
			fd, err = openAt(at, name, flags|unix.O_NOFOLLOW, mode)
			return admit(fd, at, flags, err)
		}
		target, magic, err := linkOf(object, at, &st)
		unix.Close(object)
		links++
		switch {
		case err != nil:
			return -1, err
		case links > maxLinks:
			return -1, unix.ELOOP
		case last && wary() && isTrap(at, &st):
			return -1, unix.EACCES
		case magic && last && !slash:
			fd, err = openAt(at, name, flags, mode)
			return admit(fd, -1, flags, err)
		case magic:
			next, err := openAt(at, name, unix.O_PATH, 0)
			if err != nil {
				return -1, err
			}
			enter(next)
			path = rest
			continue
		case strings.HasPrefix(target, "/"):
			root, err := startOf(at, target)
			if err != nil {
				return -1, err
			}
			enter(root)
		}
		if path = target; slash {
			path += "/" + rest
		}
	}
}

// startOf opens the directory in which path starts.
func startOf(dir int, path string) (int, error) {
	name := "."
	if strings.HasPrefix(path, "/") {
		name = "/"
	}
	return openAt(dir, name, unix.O_PATH|unix.O_DIRECTORY, 0)
}

// linkOf returns the text of a link in the directory at, or says that only the kernel can follow it, as
// every link of procfs. Such links are the kernel's, and each leads through one magic link at most.
func linkOf(link, at int, st *unix.Stat_t) (target string, magic bool, err error) {
	if kind, err := KindOf(link); err == nil && kind == Procfs {
		return "", true, hides(link, at, st, false)
	}
	target, err = readLinkAt(link, "")
	return target, false, err
}

// readLinkHost is readLinkAt for a [Host].
func readLinkHost(dir int, name string) (string, error) {
	fd, err := openHost(dir, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readLinkAt(fd, "")
}

// admit takes the outcome of an open with flags, and refuses what this process hides. dir is the directory
// of the object, or -1.
//
// A file of procfs is opened again after it was judged: between fork and exec a child has the memory of
// this process, and its file would show that for as long as it is open.
func admit(fd, dir, flags int, err error) (int, error) {
	if err != nil {
		return -1, err
	}
	var st unix.Stat_t
	if fstat(fd, &st) != nil || st.Blocks != 0 { // which procfs always has
		return fd, nil
	}
	if kind, err := KindOf(fd); err != nil || kind != Procfs {
		return fd, nil
	}
	if flags&unix.O_PATH != 0 {
		if err := hides(fd, dir, &st, false); err != nil {
			unix.Close(fd)
			return -1, err
		}
		return fd, nil
	}
	named, err := openAt(unix.AT_FDCWD, ownFD(fd), unix.O_PATH, 0)
	unix.Close(fd)
	if err != nil {
		return -1, err
	}
	defer unix.Close(named)
	if err := hides(named, dir, &st, flags&unix.O_ACCMODE != unix.O_RDONLY); err != nil {
		return -1, err
	}
	return openAt(unix.AT_FDCWD, ownFD(named), flags&^(unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW), 0)
}

// ownFD is a path to the object that is open as fd.
func ownFD(fd int) string { return ownFDs + "/" + strconv.Itoa(fd) }

// hides returns EACCES if this process hides an object of a procfs. Nothing of this process may be written.
// An object whose place in its procfs cannot be found is refused, too: nothing says what it is.
func hides(fd, dir int, st *unix.Stat_t, write bool) error {
	path, err := readLinkAt(unix.AT_FDCWD, ownFD(fd))
	if err != nil {
		return err
	}
	above, below := fd, 0 // a directory, and the number of names below it
	if kindOf(st) != unix.DT_DIR {
		above, below = dir, 1
		if dir < 0 {
			if above, err = directoryOf(path, st); err != nil {
				return err
			}
			defer unix.Close(above)
		}
	}
	process, root := -1, -1
	defer func() {
		unix.Close(process)
		unix.Close(root)
	}()
	if root, err = duplicate(above); err != nil {
		return err
	}
	for {
		var here unix.Stat_t
		if err := fstat(root, &here); err != nil {
			return err
		}
		if here.Dev != st.Dev {
			return unix.EACCES // a part of a procfs, mounted elsewhere
		}
		if here.Ino == procRootIno {
			break
		}
		next, err := openAt(root, "..", unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		unix.Close(process)
		process, root = root, next
		below++
	}
	names := strings.Split(path, "/")
	if process < 0 || below == 1 {
		return nil // it is in the root, or the directory of a process
	}
	if len(names) < below {
		return unix.EACCES
	}
	names = names[len(names)-below+1:]
	own, err := isOwn(process, root)
	if err != nil || !own {
		return err
	}
	if names[0] == "task" && len(names) > 2 {
		names = names[2:]
	}
	if write || slices.Contains(ownNames, names[0]) || strings.HasPrefix(names[0], "smaps") {
		return unix.EACCES
	}
	return nil
}

// directoryOf opens the directory that has the object st at path.
func directoryOf(path string, st *unix.Stat_t) (int, error) {
	dir, name := splitPath(path)
	fd, err := openBeneath(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	var found unix.Stat_t
	if err = fstatAt(fd, name, &found, unix.AT_SYMLINK_NOFOLLOW); err == nil && idOf(&found) != idOf(st) {
		err = unix.EACCES
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isOwn reports whether a directory in the root of a procfs is that of this process, of one of its threads,
// or of a child that runs the same program. Such a child is a helper, or has not executed anything yet.
func isOwn(process, root int) (bool, error) {
	self, err := readLinkAt(root, "self")
	if err == unix.ENOENT {
		return false, nil // the procfs is of processes that do not see this one
	}
	if err != nil {
		return false, err
	}
	status, err := openAt(process, "status", unix.O_RDONLY, 0)
	if err == unix.ENOENT {
		return false, nil // no process
	}
	if err != nil {
		return false, err
	}
	text, err := ReadFrom(status, "status", nil)
	if err != nil {
		return false, unix.ESRCH
	}
	for line := range strings.Lines(string(text)) {
		switch name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t"); {
		case name == "Tgid" && value == self:
			return true, nil
		case name == "PPid":
			return value == self && runsThis(process, root), nil
		}
	}
	return false, nil
}

// runsThis reports whether a process runs the program of this one. The kernel says so only to whoever may
// look into that process.
func runsThis(process, root int) bool {
	var theirs, ours unix.Stat_t
	if err := fstatAt(process, "exe", &theirs, 0); err != nil {
		return err != unix.ENOENT
	}
	return fstatAt(root, "self/exe", &ours, 0) != nil || idOf(&theirs) == idOf(&ours)
}
