package main

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// socketAttempts are made on a UNIX socket whose path is p.stream, in a directory that may be a
// writable one: to connect to it, to bring it to another name, and to take its name. What has
// succeeded is undone.
var socketAttempts = []attempt{
	{"connect", func(p *places) error { return connect(unix.SOCK_STREAM, p.stream) }},
	{"connect-from-its-directory", func(p *places) error {
		if err := os.Chdir(filepath.Dir(p.stream)); err != nil {
			return cause(err)
		}
		defer os.Chdir("/")
		return connect(unix.SOCK_STREAM, filepath.Base(p.stream))
	}},
	{"connect-by-procfs", func(p *places) error {
		fd, err := unix.Open(filepath.Dir(p.stream), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return connect(unix.SOCK_STREAM, "/proc/self/fd/"+itoa(fd)+"/"+filepath.Base(p.stream))
	}},
	{"connect-by-descriptor", func(p *places) error {
		fd, err := unix.Open(p.stream, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return connect(unix.SOCK_STREAM, "/proc/self/fd/"+itoa(fd))
	}},
	{"connect-through-a-link", func(p *places) error { return connectBy(p, os.Symlink) }},
	{"connect-by-a-hard-link", func(p *places) error { return connectBy(p, os.Link) }},
	{"connect-by-another-name", func(p *places) error { return connectBy(p, unix.Rename) }},
	{"connect-where-its-directory-was-moved", func(p *places) error {
		dir := filepath.Dir(p.stream)
		if err := unix.Rename(dir, dir+"-moved"); err != nil {
			return err
		}
		defer unix.Rename(dir+"-moved", dir)
		return connect(unix.SOCK_STREAM, dir+"-moved/"+filepath.Base(p.stream))
	}},
	{"hard-link", func(p *places) error { return undone(os.Link(p.stream, other(p)), func() { os.Remove(other(p)) }) }},
	{"rename", func(p *places) error {
		return undone(unix.Rename(p.stream, other(p)), func() { unix.Rename(other(p), p.stream) })
	}},
	{"exchange", func(p *places) error {
		if err := os.WriteFile(other(p), nil, 0o600); err != nil {
			return cause(err)
		}
		defer os.Remove(other(p))
		exchange := func() error {
			return unix.Renameat2(unix.AT_FDCWD, other(p), unix.AT_FDCWD, p.stream, unix.RENAME_EXCHANGE)
		}
		return undone(exchange(), func() { exchange() })
	}},
	{"chmod", func(p *places) error { return unix.Chmod(p.stream, 0o666) }},
	{"replace", func(p *places) error {
		if err := os.WriteFile(other(p), nil, 0o600); err != nil {
			return cause(err)
		}
		defer os.Remove(other(p))
		return unix.Rename(other(p), p.stream)
	}},
	{"remove", func(p *places) error { return unix.Unlink(p.stream) }},
	{"take-its-name", func(p *places) error { return serve(p.stream) }},
}

// other is a name beside the socket.
func other(p *places) string { return filepath.Join(filepath.Dir(p.stream), "other") }

// connectBy connects to what bring has put at another name.
func connectBy(p *places, bring func(from, to string) error) error {
	if err := bring(p.stream, other(p)); err != nil {
		return cause(err)
	}
	defer func() {
		if _, err := os.Lstat(p.stream); err == nil {
			os.Remove(other(p))
		} else {
			unix.Rename(other(p), p.stream)
		}
	}()
	return connect(unix.SOCK_STREAM, other(p))
}

// undone returns err, and calls undo if it is nil.
func undone(err error, undo func()) error {
	if err == nil {
		undo()
	}
	return cause(err)
}
