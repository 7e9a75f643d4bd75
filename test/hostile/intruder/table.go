package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// callOf is a kind of step.
type callOf struct {
	weight int
	name   string
	number uintptr
	args   string // their kinds, by name; see kinds
	opens  bool   // the value is a new descriptor
	// do takes the place of all that for steps of several calls.
	do func(g *generator) (args, result string)
}

func (c *callOf) odds() int { return c.weight }

// callTable has every kind of step.
func callTable() []*callOf { return append(callsEverywhere, oldCalls...) }

var callsEverywhere = []*callOf{
	{weight: 30, name: "openat", number: unix.SYS_OPENAT, args: "dir path open mode", opens: true},
	{weight: 8, name: "mkdirat", number: unix.SYS_MKDIRAT, args: "dir path mode"},
	{weight: 6, name: "mknodat", number: unix.SYS_MKNODAT, args: "dir path node device"},
	{weight: 12, name: "unlinkat", number: unix.SYS_UNLINKAT, args: "dir path unlink"},
	{weight: 6, name: "renameat", number: sysRenameat, args: "dir path dir path"},
	{weight: 8, name: "renameat2", number: unix.SYS_RENAMEAT2, args: "dir path dir path rename"},
	{weight: 10, name: "linkat", number: unix.SYS_LINKAT, args: "dir path dir path link"},
	{weight: 6, name: "symlinkat", number: unix.SYS_SYMLINKAT, args: "target dir path"},

	{weight: 5, name: "fchmodat", number: unix.SYS_FCHMODAT, args: "dir path mode"},
	{weight: 4, name: "fchmodat2", number: unix.SYS_FCHMODAT2, args: "dir path mode at"},
	{weight: 4, name: "fchmod", number: unix.SYS_FCHMOD, args: "fd mode"},
	{weight: 4, name: "fchownat", number: unix.SYS_FCHOWNAT, args: "dir path id id at"},
	{weight: 2, name: "fchown", number: unix.SYS_FCHOWN, args: "fd id id"},
	{weight: 7, name: "utimensat", number: unix.SYS_UTIMENSAT, args: "dir pathOrNull times at"},
	{weight: 4, name: "truncate", number: unix.SYS_TRUNCATE, args: "path length"},
	{weight: 4, name: "ftruncate", number: unix.SYS_FTRUNCATE, args: "fd length"},
	{weight: 2, name: "fallocate", number: unix.SYS_FALLOCATE, args: "fd zero zero length"},
	{weight: 3, name: "setxattr", number: unix.SYS_SETXATTR, args: "path attribute value xattr"},
	{weight: 2, name: "lsetxattr", number: unix.SYS_LSETXATTR, args: "path attribute value xattr"},
	{weight: 2, name: "fsetxattr", number: unix.SYS_FSETXATTR, args: "fd attribute value xattr"},
	{weight: 2, name: "removexattr", number: unix.SYS_REMOVEXATTR, args: "path attribute"},
	{weight: 1, name: "lremovexattr", number: unix.SYS_LREMOVEXATTR, args: "path attribute"},
	{weight: 1, name: "fremovexattr", number: unix.SYS_FREMOVEXATTR, args: "fd attribute"},
	{weight: 2, name: "getxattr", number: unix.SYS_GETXATTR, args: "path attribute buffer"},
	{weight: 1, name: "lgetxattr", number: unix.SYS_LGETXATTR, args: "path attribute buffer"},
	{weight: 1, name: "fgetxattr", number: unix.SYS_FGETXATTR, args: "fd attribute buffer"},
	{weight: 2, name: "listxattr", number: unix.SYS_LISTXATTR, args: "path buffer"},
	{weight: 1, name: "llistxattr", number: unix.SYS_LLISTXATTR, args: "path buffer"},

	{weight: 5, name: "faccessat", number: unix.SYS_FACCESSAT, args: "dir path access"},
	{weight: 4, name: "faccessat2", number: unix.SYS_FACCESSAT2, args: "dir path access at"},
	{weight: 10, name: "newfstatat", number: sysNewfstatat, args: "dir path stat at"},
	{weight: 4, name: "statx", number: unix.SYS_STATX, args: "dir path statxAt basic statx"},
	{weight: 6, name: "readlinkat", number: unix.SYS_READLINKAT, args: "dir path buffer"},
	{weight: 3, name: "fstat", number: unix.SYS_FSTAT, args: "fd stat"},
	{weight: 8, name: "chdir", number: unix.SYS_CHDIR, args: "path"},
	{weight: 5, name: "fchdir", number: unix.SYS_FCHDIR, args: "fd"},
	{weight: 3, name: "getcwd", number: unix.SYS_GETCWD, args: "buffer"},
	{weight: 2, name: "umask", number: unix.SYS_UMASK, args: "mode"},
	{weight: 5, name: "dup3", number: unix.SYS_DUP3, args: "fd slot onExec"},
	{weight: 3, name: "close", number: unix.SYS_CLOSE, args: "fd"},
	{weight: 8, name: "write", number: unix.SYS_WRITE, args: "fd value"},
	{weight: 5, name: "pwrite64", number: unix.SYS_PWRITE64, args: "fd value length"},
	{weight: 4, name: "read", number: unix.SYS_READ, args: "fd buffer"},
	{weight: 3, name: "pread64", number: unix.SYS_PREAD64, args: "fd buffer zero"},
	{weight: 2, name: "lseek", number: unix.SYS_LSEEK, args: "fd length zero"},

	{weight: 8, name: "list", do: (*generator).list},
	{weight: 6, name: "temporary", do: (*generator).temporary},
	{weight: 4, name: "whole", do: (*generator).whole},
	{weight: 4, name: "linkfd", do: (*generator).linkDescriptor},
	{weight: 2, name: "nameOfFD", do: (*generator).nameOf},
	{weight: 1, name: "watch", do: (*generator).watch},
	{weight: 1, name: "statfs", do: (*generator).statfs},
}

// list opens a folder and tells what is in it, unless it is one of others, where anything may
// happen meanwhile.
func (g *generator) list() (args, result string) {
	path := g.path()
	return path, func() string {
		dir, err := os.OpenFile(path, unix.O_DIRECTORY, 0) // without the flag it would wait at a FIFO
		if err != nil {
			return nameOf(err)
		}
		defer dir.Close()
		entries, err := dir.ReadDir(-1)
		if err != nil {
			return nameOf(err)
		}
		if is, err := os.Readlink(fmt.Sprint("/proc/self/fd/", dir.Fd())); err != nil || !strings.HasPrefix(is, g.base) {
			return "of others"
		}
		slices.SortFunc(entries, func(a, b os.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
		var names []string
		for _, e := range entries {
			names = append(names, fmt.Sprint(e.Name(), " ", e.Type()))
		}
		return strings.Join(names, ", ")
	}()
}

// temporary makes a file without a name, writes to it, and gives it a name.
func (g *generator) temporary() (args, result string) {
	dir, to := g.path(), g.path()
	flags := unix.O_TMPFILE | unix.O_RDWR | unix.O_CLOEXEC
	if g.IntN(5) == 0 {
		flags |= unix.O_EXCL
	}
	args = fmt.Sprintf("%s, %#o, %s", dir, flags, to)
	fd, err := unix.Open(dir, flags, 0o640)
	if err != nil {
		return args, nameOf(err)
	}
	_, err = unix.Write(fd, []byte("temporary"))
	result = "made, written " + nameOf(err)
	if g.IntN(2) == 0 {
		err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
	} else {
		err = unix.Linkat(fd, "", unix.AT_FDCWD, to, unix.AT_EMPTY_PATH)
	}
	result += ", linked " + nameOf(err)
	_ = unix.Close(fd) // it is open
	return args, result
}

// whole does what a program does to write a file: open, write, sync, rename.
func (g *generator) whole() (args, result string) {
	to := g.path()
	args = to
	fd, err := unix.Open(to+".tmp", unix.O_CREAT|unix.O_WRONLY|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NONBLOCK, 0o666)
	if err != nil {
		return args, nameOf(err)
	}
	_, err = unix.Write(fd, []byte("whole"))
	result = "written " + nameOf(err) + ", mode " + nameOf(unix.Fchmod(fd, 0o604))
	_ = unix.Close(fd) // it is open
	return args, result + ", renamed " + nameOf(unix.Rename(to+".tmp", to))
}

// linkDescriptor links what a descriptor is of.
func (g *generator) linkDescriptor() (args, result string) {
	fd, to := g.slot(), g.path()
	args = fmt.Sprintf("%d, %s", fd, to)
	if g.IntN(2) == 0 {
		return args + ", by its path", nameOf(unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW))
	}
	return args, nameOf(unix.Linkat(fd, "", unix.AT_FDCWD, to, unix.AT_EMPTY_PATH))
}

// nameOf tells the path of a descriptor.
func (g *generator) nameOf() (args, result string) {
	fd := g.slot()
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		path = nameOf(err)
	}
	if strings.Contains(path, "/#") { // a file without a name has one with its number
		path = "a file without a name"
	}
	return strconv.Itoa(fd), path
}

// watch asks to be told of changes.
func (g *generator) watch() (args, result string) {
	path := g.path()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return path, nameOf(err)
	}
	_, err = unix.InotifyAddWatch(fd, path, unix.IN_CREATE)
	_ = unix.Close(fd) // it is open
	return path, nameOf(err)
}

// statfs asks whether there is a file system; which it is differs.
func (g *generator) statfs() (args, result string) {
	path := g.path()
	return path, nameOf(unix.Statfs(path, new(unix.Statfs_t)))
}

// nameOf is the name of an error.
func nameOf(err error) string {
	if err == nil {
		return "ok"
	}
	if wrapped, ok := err.(*os.PathError); ok { //nolint:errorlint // as package os returns it
		err = wrapped.Err
	}
	if wrapped, ok := err.(*os.SyscallError); ok { //nolint:errorlint // as package os returns it
		err = wrapped.Err
	}
	if errno, ok := err.(unix.Errno); ok { //nolint:errorlint // as a system call returns it
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// textOf is what a call has written into a buffer: names in order, or a text.
func textOf(b []byte) string {
	parts := bytes.Split(bytes.TrimRight(b, "\x00"), []byte{0})
	slices.SortFunc(parts, bytes.Compare)
	return fmt.Sprintf("%q", parts)
}
