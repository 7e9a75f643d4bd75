package fsops

import (
	"context"
	"strings"

	"golang.org/x/sys/unix"
)

// Metadata describes a file.
type Metadata struct {
	// IsDirectory and IsFile describe the target of a link. Both are false for
	// fifos, sockets and devices.
	IsDirectory, IsFile bool
	// IsSymlink reports whether the path itself is a link.
	IsSymlink bool
	Size      uint64 // bytes
	// Times are milliseconds since 1970, negative before. CreatedAtMs is the
	// birth time, 0 if the file system has none.
	CreatedAtMs, ModifiedAtMs int64
}

// Stat describes the file at path. A dangling link is ENOENT, a loop ELOOP;
// with [RefuseLinks] a link is an [InvalidError].
func (Host) Stat(_ context.Context, path string, links Links) (Metadata, error) {
	m, err := stat(path, links)
	return m, pathError("stat", path, err)
}

// Stat describes the file at path. For denied objects, and for directories that
// only lead to readable objects, it returns only the type.
func (v *View) Stat(_ context.Context, path string, links Links) (Metadata, error) {
	m, err := v.stat(path, links)
	return m, pathError("stat", path, err)
}

func stat(path string, links Links) (Metadata, error) {
	var st unix.Statx_t
	if links == FollowLinks || path == "/" {
		if err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, &st); err != nil {
			return Metadata{}, err
		}
		isLink := st.Mode&unix.S_IFMT == unix.S_IFLNK
		if isLink {
			if err := statxTarget(path, &st); err != nil {
				return Metadata{}, err
			}
		}
		return metadata(&st, isLink), nil
	}

	dir, name, err := openParent(path)
	if err != nil {
		return Metadata{}, err
	}
	defer unix.Close(dir)
	if err := statx(dir, name, unix.AT_SYMLINK_NOFOLLOW, &st); err != nil {
		return Metadata{}, err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return Metadata{}, linkRefused(path)
	}
	return metadata(&st, false), nil
}

// statxTarget describes the object that a link leads to.
func statxTarget(path string, st *unix.Statx_t) error {
	fd, err := openHost(unix.AT_FDCWD, path, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return statx(fd, "", unix.AT_EMPTY_PATH, st)
}

func (v *View) stat(path string, links Links) (Metadata, error) {
	p, err := v.object(v.paths.base, path, links.lookup(FollowLast))
	if err != nil {
		return Metadata{}, err
	}
	defer p.Close()
	if p.fileType() == unix.DT_LNK {
		if p.Access == Denied {
			return Metadata{}, unix.EACCES
		}
		return Metadata{}, linkRefused(path)
	}
	if p.Access < Read {
		mode := uint16(p.Stat.Mode & unix.S_IFMT)
		return metadata(&unix.Statx_t{Mode: mode}, p.Linked), nil
	}
	var st unix.Statx_t
	if err := statx(p.FD, "", unix.AT_EMPTY_PATH, &st); err != nil {
		return Metadata{}, err
	}
	return metadata(&st, p.Linked), nil
}

func linkRefused(path string) error {
	return invalidf("path %q is a symbolic link and links are refused", path)
}

func statx(dir int, path string, flags int, st *unix.Statx_t) error {
	const mask = unix.STATX_TYPE | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_BTIME
	for {
		if err := unix.Statx(dir, path, flags, mask, st); err != unix.EINTR {
			return err
		}
	}
}

func metadata(st *unix.Statx_t, isLink bool) Metadata {
	m := Metadata{
		IsDirectory:  st.Mode&unix.S_IFMT == unix.S_IFDIR,
		IsFile:       st.Mode&unix.S_IFMT == unix.S_IFREG,
		IsSymlink:    isLink,
		Size:         st.Size,
		ModifiedAtMs: millis(st.Mtime),
	}
	if st.Mask&unix.STATX_BTIME != 0 {
		m.CreatedAtMs = millis(st.Btime)
	}
	return m
}

func millis(t unix.StatxTimestamp) int64 { return t.Sec*1000 + int64(t.Nsec)/1e6 }

// maxLinks is how many links one path may lead through; path_resolution(7).
const maxLinks = 40

// Canonicalize returns path with every symbolic link resolved. The path must
// exist.
func (Host) Canonicalize(_ context.Context, path string) (string, error) {
	p, err := canonicalize(path)
	return p, pathError("canonicalize", path, err)
}

// Canonicalize returns path with every symbolic link resolved. The path must
// exist.
func (v *View) Canonicalize(_ context.Context, path string) (string, error) {
	p, err := v.canonicalize(path)
	return p, pathError("canonicalize", path, err)
}

func (v *View) canonicalize(path string) (string, error) {
	if v == nil {
		return canonicalize(path)
	}
	p, err := v.object(v.paths.base, path, FollowLast)
	if err != nil {
		return "", err
	}
	p.Close()
	return p.Path, nil
}

func canonicalize(path string) (string, error) {
	// Usually the path has no link, and one call can find that out.
	if fd, err := openBeneath(unix.AT_FDCWD, path, unix.O_PATH|unix.O_NOFOLLOW); err == nil {
		var st unix.Stat_t
		err = fstat(fd, &st)
		unix.Close(fd)
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			return path, nil
		}
	}
	// The kernel judges first, because the loop below does not check whether a
	// link with a trailing slash leads to a directory.
	var st unix.Stat_t
	if err := fstatAt(unix.AT_FDCWD, path, &st, 0); err != nil {
		return "", err
	}

	resolved, rest := "", path
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			resolved = resolved[:max(strings.LastIndexByte(resolved, '/'), 0)]
			continue
		}
		next := resolved + "/" + name
		target, err := readLinkAt(unix.AT_FDCWD, next)
		if err == unix.EINVAL { // next is no link
			resolved = next
			continue
		}
		if err == nil {
			target, err = readLinkHost(unix.AT_FDCWD, next)
		}
		if err != nil {
			return "", err
		}
		if links++; links > maxLinks {
			return "", unix.ELOOP
		}
		if strings.HasPrefix(target, "/") {
			resolved = ""
		}
		rest = target + "/" + rest
	}
	return max(resolved, "/"), nil
}
