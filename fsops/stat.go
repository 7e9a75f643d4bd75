package fsops

import (
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Metadata describes a file.
type Metadata struct {
	// IsDirectory and IsFile describe the target of a link. Both are false for
	// fifos, sockets and devices, and for a link that is the object itself.
	IsDirectory, IsFile bool
	// IsSymlink reports whether the path itself is a link.
	IsSymlink bool
	Size      uint64 // bytes
	// Times are milliseconds since 1970, negative before. CreatedAtMs is the
	// birth time, 0 if the file system has none.
	CreatedAtMs, ModifiedAtMs int64

	Type Type
	// Known is false if a policy shows nothing but the type.
	Known    bool
	Mode     uint16 // permissions, set-ID bits and the sticky bit
	UID, GID uint32
	// Target is what a link that is the object itself leads to, byte for byte.
	Target string
}

// Type is the type of a file.
type Type uint8

// The types, by their numbers in getdents(2).
const (
	UnknownType     Type = unix.DT_UNKNOWN
	Fifo            Type = unix.DT_FIFO
	CharacterDevice Type = unix.DT_CHR
	Directory       Type = unix.DT_DIR
	BlockDevice     Type = unix.DT_BLK
	Regular         Type = unix.DT_REG
	Symlink         Type = unix.DT_LNK
	Socket          Type = unix.DT_SOCK
)

// Stat describes the file at path. A dangling link is ENOENT, a loop ELOOP;
// with [RefuseLinks] a link is an [InvalidError]. With [KeepLast] and [KeepRefuse] a
// link at the end is described itself.
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
	if !links.refuses() || path == "/" {
		if err := statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, &st); err != nil {
			return Metadata{}, err
		}
		isLink := st.Mode&unix.S_IFMT == unix.S_IFLNK
		if isLink && links.keeps() {
			return linkMetadata(unix.AT_FDCWD, path, &st)
		}
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
		if links.keeps() {
			return linkMetadata(dir, name, &st)
		}
		return Metadata{}, linkRefused(path)
	}
	return metadata(&st, false), nil
}

// linkMetadata describes the link name in dir, for a [Host].
func linkMetadata(dir int, name string, st *unix.Statx_t) (m Metadata, err error) {
	m = metadata(st, true)
	if m.Target, err = readLinkHost(dir, name); err == unix.EINVAL {
		err = unix.ENOENT // it was replaced in the meantime
	}
	return m, err
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
	isLink := p.fileType() == unix.DT_LNK
	if isLink && !links.keeps() {
		if p.Access == Denied {
			return Metadata{}, unix.EACCES
		}
		return Metadata{}, linkRefused(path)
	}
	if p.Access < Read {
		mode := uint16(p.Stat.Mode & unix.S_IFMT)
		m := metadata(&unix.Statx_t{Mode: mode}, p.Linked || isLink)
		m.Known = false
		return m, nil
	}
	var st unix.Statx_t
	if err := statx(p.FD, "", unix.AT_EMPTY_PATH, &st); err != nil {
		return Metadata{}, err
	}
	m := metadata(&st, p.Linked || isLink)
	if isLink {
		m.Target, err = readLinkAt(p.FD, "")
	}
	return m, err
}

func linkRefused(path string) error {
	return invalidf("path %q is a symbolic link and links are refused", path)
}

func statx(dir int, path string, flags int, st *unix.Statx_t) error {
	const mask = unix.STATX_TYPE | unix.STATX_MODE | unix.STATX_UID | unix.STATX_GID | unix.STATX_SIZE | unix.STATX_MTIME | unix.STATX_BTIME
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
		Type:         Type(st.Mode & unix.S_IFMT >> 12),
		Known:        true,
		Mode:         st.Mode & 0o7777,
		UID:          st.Uid,
		GID:          st.Gid,
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
// exist, unless missing is true: then names at its end may be missing, also behind
// a dangling link. Other errors stay errors, such as ELOOP and ENOTDIR.
func (Host) Canonicalize(_ context.Context, path string, missing bool) (string, error) {
	p, err := (*View)(nil).real(path, missing)
	return p, pathError("canonicalize", path, err)
}

// Canonicalize returns path with every symbolic link resolved. The path must
// exist, unless missing is true. What the policy hides is missing.
func (v *View) Canonicalize(_ context.Context, path string, missing bool) (string, error) {
	p, err := v.real(path, missing)
	return p, pathError("canonicalize", path, err)
}

// real is canonicalize that with missing tolerates that names at the end are missing.
func (v *View) real(name string, missing bool) (string, error) {
	rest := "" // missing names
	for links := 0; ; {
		found, err := v.canonicalize(name)
		if err != unix.ENOENT || !missing {
			if err != nil || rest == "" {
				return found, err
			}
			if v != nil && v.paths.rules.Access(found) == Denied {
				return "", unix.EACCES // found took the place of a directory that may be read
			}
			whole := path.Join(found, rest)
			if len(whole) >= unix.PathMax {
				return "", unix.ENAMETOOLONG
			}
			if !slices.Contains(strings.Split(rest, "/"), "..") {
				return whole, nil
			}
			// Behind "..", there may be links again.
			name, rest = whole, ""
			if links++; links > maxLinks {
				return "", unix.ELOOP
			}
			continue
		}
		name = strings.TrimRight(name, "/")
		dir, last := splitPath(name)
		if last == "" {
			return "", err // the root itself is missing
		}
		target, err := v.tailLink(dir, last)
		switch err {
		case nil:
			if links++; links > maxLinks {
				return "", unix.ELOOP
			}
			if name = target; !strings.HasPrefix(target, "/") {
				name = join(dir, target)
			}
		case unix.EINVAL, unix.ENOENT: // the name is missing
			name, rest = dir, last+"/"+rest
		default:
			return "", err
		}
		if len(name)+len(rest) >= 2*unix.PathMax {
			return "", unix.ENAMETOOLONG
		}
	}
}

// tailLink reads the link name in the directory dir, at the end of a path, if the kernel would follow it
// there. EINVAL: name is no link.
func (v *View) tailLink(dir, name string) (string, error) {
	if v != nil {
		p, err := v.find(v.paths.base, join(dir, name), 0)
		if err != nil {
			return "", err
		}
		defer p.Close()
		switch {
		case p.fileType() != unix.DT_LNK:
			return "", unix.EINVAL
		case p.Access == Denied, v.paths.wary && isTrap(p.In.FD, &p.Stat):
			return "", unix.EACCES
		}
		return readLinkAt(p.FD, "")
	}
	at, err := openHost(unix.AT_FDCWD, dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(at)
	link, err := openAt(at, name, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(link)
	var st unix.Stat_t
	if err := fstat(link, &st); err != nil {
		return "", err
	}
	switch {
	case kindOf(&st) != unix.DT_LNK:
		return "", unix.EINVAL
	case wary() && isTrap(at, &st):
		return "", unix.EACCES
	}
	target, magic, err := linkOf(link, at, &st)
	if magic && err == nil {
		target, err = readLinkAt(link, "")
	}
	return target, err
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
			if strings.Trim(rest, "/") == "" {
				target, err = (*View)(nil).tailLink(max(resolved, "/"), name) // it may be a trap
			} else {
				target, err = readLinkHost(unix.AT_FDCWD, next)
			}
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
