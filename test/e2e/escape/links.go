package main

import (
	"strconv"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

func rename(from, to string) error { return unix.Rename(from, to) }

func exchange(a, b string) error {
	return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
}

// linkFD links an object that is held by a descriptor.
func linkFD(path, to string) error {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Linkat(fd, "", unix.AT_FDCWD, to, unix.AT_EMPTY_PATH); err == nil {
		return nil
	}
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
}

// Attempts to give a name to something, to take a name away, or to change what a name means.
var linkAttempts = []attempt{
	{"6 rename .git", func(p *places) error { return rename(p.repo+"/.git", p.repo+"/moved") }},
	{"9 link a file outside into the workspace", func(p *places) error { return unix.Link(p.out+"/file", p.repo+"/linked") }},
	{"10 rename a file outside into the workspace", func(p *places) error { return rename(p.out+"/file", p.repo+"/taken") }},
	{"11 rename over .git/HEAD", func(p *places) error { return rename(p.repo+"/file", p.repo+"/.git/HEAD") }},
	{"x10a link .git/config", func(p *places) error { return unix.Link(p.repo+"/.git/config", p.repo+"/config") }},
	{"x10b link a denied file", func(p *places) error { return unix.Link(p.repo+"/a.env", p.repo+"/b") }},
	{"x10c link a file outside by descriptor", func(p *places) error { return linkFD(p.out+"/file", p.repo+"/linked") }},
	{"x10d link .git/config by descriptor", func(p *places) error { return linkFD(p.repo+"/.git/config", p.repo+"/config") }},
	{"x10e link a placeholder", func(p *places) error { return unix.Link(p.repo+"/secret", p.repo+"/other") }},
	{"x11a rename the ancestor of a carve-out", func(p *places) error { return rename(p.repo+"/a", p.repo+"/moved") }},
	{"x11b rename the parent of a carve-out", func(p *places) error { return rename(p.repo+"/a/b", p.repo+"/a/moved") }},
	{"x11c rename a carve-out", func(p *places) error { return rename(p.repo+"/a/b/locked", p.repo+"/a/b/moved") }},
	{"x11d exchange the ancestor of a carve-out", func(p *places) error { return exchange(p.repo+"/a", p.repo+"/dir") }},
	{"x11e exchange .git", func(p *places) error { return exchange(p.repo+"/.git", p.repo+"/dir") }},
	{"x11f rename the workspace", func(p *places) error { return rename(p.repo, p.repo+"-moved") }},
	{"x11g exchange the workspace", func(p *places) error { return exchange(p.repo, p.out) }},
	{"x11h rename a denied directory", func(p *places) error { return rename(p.repo+"/vault", p.repo+"/moved") }},
	{"x11i rename a denied file", func(p *places) error { return rename(p.repo+"/a.env", p.repo+"/moved") }},
	{"x11j rename over a denied file", func(p *places) error { return rename(p.repo+"/file", p.repo+"/a.env") }},
	{"x11k rename a placeholder", func(p *places) error { return rename(p.repo+"/.agents", p.repo+"/moved") }},
	{"x11l rename over a placeholder", func(p *places) error { return rename(p.repo+"/dir", p.repo+"/.agents") }},
	{"x11m exchange a placeholder", func(p *places) error { return exchange(p.repo+"/secret", p.repo+"/file") }},
	{"x11n rename with a whiteout", func(p *places) error {
		return unix.Renameat2(unix.AT_FDCWD, p.repo+"/file", unix.AT_FDCWD, p.repo+"/white", unix.RENAME_WHITEOUT)
	}},
	{"x11o write a carve-out", func(p *places) error { return create(p.repo + "/a/b/locked/new") }},
	{"x11p rename .git by the path of a descriptor", func(p *places) error {
		fd, err := unix.Open(p.repo, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Renameat(fd, ".git", fd, "moved")
	}},
}
