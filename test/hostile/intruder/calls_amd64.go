package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	sysRenameat   = unix.SYS_RENAMEAT
	sysNewfstatat = unix.SYS_NEWFSTATAT
)

// oldCalls are those that younger architectures lack.
var oldCalls = []*callOf{
	{weight: 10, name: "open", number: unix.SYS_OPEN, args: "path open mode", opens: true},
	{weight: 4, name: "creat", do: (*generator).creat},
	{weight: 4, name: "mkdir", number: unix.SYS_MKDIR, args: "path mode"},
	{weight: 3, name: "mknod", number: unix.SYS_MKNOD, args: "path node device"},
	{weight: 4, name: "rmdir", number: unix.SYS_RMDIR, args: "path"},
	{weight: 5, name: "unlink", number: unix.SYS_UNLINK, args: "path"},
	{weight: 6, name: "rename", number: unix.SYS_RENAME, args: "path path"},
	{weight: 4, name: "link", number: unix.SYS_LINK, args: "path path"},
	{weight: 4, name: "symlink", number: unix.SYS_SYMLINK, args: "target path"},
	{weight: 3, name: "chmod", number: unix.SYS_CHMOD, args: "path mode"},
	{weight: 2, name: "chown", number: unix.SYS_CHOWN, args: "path id id"},
	{weight: 2, name: "lchown", number: unix.SYS_LCHOWN, args: "path id id"},
	{weight: 2, name: "utime", number: unix.SYS_UTIME, args: "path utimbuf"},
	{weight: 2, name: "utimes", number: unix.SYS_UTIMES, args: "path timevals"},
	{weight: 2, name: "futimesat", number: unix.SYS_FUTIMESAT, args: "dir pathOrNull timevals"},
	{weight: 3, name: "access", number: unix.SYS_ACCESS, args: "path access"},
	{weight: 4, name: "stat", number: unix.SYS_STAT, args: "path stat"},
	{weight: 4, name: "lstat", number: unix.SYS_LSTAT, args: "path stat"},
	{weight: 3, name: "readlink", number: unix.SYS_READLINK, args: "path buffer"},
	{weight: 4, name: "dup2", number: unix.SYS_DUP2, args: "fd slot"},
}

// linksOf returns the number of links as struct stat has it.
func linksOf(st *unix.Statx_t) uint64 { return uint64(st.Nlink) }

// creat creates a file, unless it would wait at a FIFO: the call has no flag against that.
func (g *generator) creat() (args, result string) {
	path, mode := g.path(), g.mode()
	args = fmt.Sprintf("%q, %#o", path, mode)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO {
		return args, "would wait"
	}
	call := &callOf{number: unix.SYS_CREAT, opens: true}
	return args, g.made(call, [6]uintptr{g.text(path).value, uintptr(mode)}, nil)
}
