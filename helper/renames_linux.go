package helper

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// watchRenames has a descriptor readable after one of the paths, or what is on
// the way to it, was renamed: the list of mounts changes then, but it is not
// told. What this user may not read is left out; it is not his to rename.
func watchRenames(paths map[string]bool) (fd int, err error) {
	on := map[string]bool{}
	for path := range paths {
		for ; path != "/"; path = filepath.Dir(path) {
			on[path] = true
		}
	}
	fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == unix.EMFILE {
		return watchDirectories(on)
	}
	if err != nil {
		return -1, fmt.Errorf("watching for renames: %w", os.NewSyscallError("inotify_init1", err))
	}
	for path := range on {
		_, err := unix.InotifyAddWatch(fd, path, unix.IN_MOVE_SELF|unix.IN_DONT_FOLLOW)
		if err == unix.ENOSPC {
			unix.Close(fd)
			return watchDirectories(on)
		}
		if err != nil && !passable(err) {
			unix.Close(fd)
			return -1, fmt.Errorf("watching for renames of %s: %w", path, os.NewSyscallError("inotify_add_watch", err))
		}
	}
	return fd, nil
}

// passable is an error for a path that is not there, or that this user may not
// read.
func passable(err error) bool {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
		return true
	}
	return false
}

// watchDirectories is watchRenames for a user who has no instances of inotify
// left, of which all of his programs together have 128 as a rule. What comes
// before inotify, F_NOTIFY of fcntl(2), has no such limit, but knows nothing
// more exact than that something was renamed in a directory.
func watchDirectories(paths map[string]bool) (fd int, err error) {
	const (
		dnDelete    = 0x8 // a rename to another directory, before Linux 5.17
		dnRename    = 0x10
		dnMultishot = 0x80000000
	)
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("watching for renames: %w", os.NewSyscallError("eventfd", err))
	}
	events := make(chan os.Signal, 1)
	signal.Notify(events, unix.SIGIO)
	go func() {
		for range events {
			_, _ = unix.Write(fd, []byte{7: 1}) // it fails if it is readable anyway
		}
	}()
	directories := map[string]bool{}
	for path := range paths {
		directories[filepath.Dir(path)] = true
	}
	for path := range directories {
		// It stays open: closed, it would not be watched.
		dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			_, err = unix.FcntlInt(uintptr(dir), unix.F_NOTIFY, dnDelete|dnRename|dnMultishot)
		}
		if err != nil && !passable(err) {
			return -1, fmt.Errorf("watching for renames in %s: %w", path, os.NewSyscallError("fcntl", err))
		}
	}
	return fd, nil
}
