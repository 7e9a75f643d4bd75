package confine

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// watchRenames returns a descriptor that becomes readable when one of the
// paths, or a directory on the way to it, may have been renamed. A rename
// changes the list of mounts, but the kernel does not report that. Directories
// that this user may not read are left out: this user cannot rename their
// entries.
//
// F_NOTIFY of fcntl(2) is older and less exact than inotify(7). But a user has
// 128 instances of inotify for all programs together, and closing one takes the
// kernel ten milliseconds, which would delay the end of every command.
func watchRenames(paths map[string]bool) (fd int, err error) {
	on, in := map[string]bool{}, map[string]bool{}
	for path := range paths {
		for ; path != "/"; path = filepath.Dir(path) {
			on[path], in[filepath.Dir(path)] = true, true
		}
	}
	fd, err = watchDirectories(in)
	if errors.Is(err, unix.EINVAL) { // the kernel has been built without it
		fd, err = watchObjects(on)
	}
	return fd, err
}

// watchDirectories watches, until the end of this process, for entries that leave the directories.
func watchDirectories(paths map[string]bool) (fd int, err error) {
	const (
		dnDelete    = 0x8 // also by being renamed
		dnMultishot = 0x80000000
	)
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("watching for renames: %w", os.NewSyscallError("eventfd", err))
	}
	events := make(chan os.Signal, 1)
	signal.Notify(events, unix.SIGIO)
	for path := range paths {
		// dir stays open: the kernel stops to watch a directory that is closed.
		dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			// F_NOTIFY by itself makes the calling thread the owner, but
			// signals a process: a thread's number is no process's, and SIGIO
			// would be lost.
			_, err = unix.FcntlInt(uintptr(dir), unix.F_SETOWN, os.Getpid())
		}
		if err == nil {
			_, err = unix.FcntlInt(uintptr(dir), unix.F_NOTIFY, dnDelete|dnMultishot)
		}
		if err != nil && !passable(err) {
			signal.Stop(events)
			unix.Close(fd)
			return -1, fmt.Errorf("watching for renames in %s: %w", path, os.NewSyscallError("fcntl", err))
		}
	}
	go func() {
		for range events {
			_, _ = unix.Write(fd, []byte{7: 1}) // this fails only if fd is readable already
		}
	}()
	return fd, nil
}

// watchObjects watches for renames of the objects themselves.
func watchObjects(paths map[string]bool) (fd int, err error) {
	fd, err = unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("watching for renames: %w", os.NewSyscallError("inotify_init1", err))
	}
	for path := range paths {
		_, err := unix.InotifyAddWatch(fd, path, unix.IN_MOVE_SELF|unix.IN_DONT_FOLLOW)
		if err != nil && !passable(err) {
			unix.Close(fd)
			return -1, fmt.Errorf("watching for renames of %s: %w", path, os.NewSyscallError("inotify_add_watch", err))
		}
	}
	return fd, nil
}

// passable reports whether the error is for a path that does not exist, or that
// this user may not read.
func passable(err error) bool {
	switch err {
	case unix.ENOENT, unix.ENOTDIR, unix.EACCES:
		return true
	}
	return false
}
