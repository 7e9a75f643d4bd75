package fsops

import (
	"bytes"
	"context"
	"encoding/binary"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// MaxDirectorySize bounds the result of ReadDirectory, in bytes: all names, and
// 64 bytes more for each. No message can carry more.
const MaxDirectorySize = 48 << 20

const entryAllowance = 64

// detailAllowance is what the details of an entry count in addition.
const detailAllowance = 128

// maxLinkWork bounds the cost of resolving the links of one directory under a
// policy: the bytes of the paths that the rules are asked about.
const maxLinkWork = 64 << 20

// DirEntry is one name in a directory.
type DirEntry struct {
	// Name is UTF-8: U+FFFD replaces bytes of the name on disk that are not.
	Name string
	// IsDirectory and IsFile describe the target of a link; both are false for
	// fifos, sockets and devices.
	IsDirectory, IsFile bool

	// The rest is for a list with details. It is about the name itself: links are
	// not followed, and none is left out.
	Type Type
	// Known is false if no more than the type could be found out: a policy denies
	// the object, or the directory may be read but not searched.
	Known        bool
	Mode         uint16 // as in [Metadata]
	Size         uint64
	ModifiedAtMs int64
}

// ReadDirectory lists the directory at path in the order of the file system,
// names with a leading dot included. Without details, links that lead nowhere are
// left out.
func (Host) ReadDirectory(_ context.Context, path string, details bool) ([]DirEntry, error) {
	return (*View)(nil).readDirectory(path, details)
}

// ReadDirectory lists the directory at path. Denied names are listed, hidden
// names are not. Without details, a link to a denied or hidden object is listed
// without a type.
func (v *View) ReadDirectory(_ context.Context, path string, details bool) ([]DirEntry, error) {
	return v.readDirectory(path, details)
}

func (v *View) readDirectory(path string, details bool) ([]DirEntry, error) {
	d, err := v.openDir(workingDir, path, true)
	if err != nil {
		return nil, pathError("open", path, err)
	}
	defer unix.Close(d.FD)

	r := newDirReader()
	entries := []DirEntry{}
	for size, work := 0, 0; ; {
		ok, err := r.fill(d.FD)
		if err != nil {
			return nil, pathError("readdir", path, err)
		}
		if !ok {
			return entries, nil
		}
		for name, kind := range r.all {
			if !v.shows(d, name, kind) {
				continue
			}
			var e DirEntry
			switch {
			case details:
				e.Type = Type(kind)
				if !v.detail(d, string(name), &e) {
					continue
				}
				kind = byte(e.Type)
				size += detailAllowance
			case kind == unix.DT_UNKNOWN || kind == unix.DT_LNK:
				var ok bool
				kind, ok = v.entryKind(d, string(name), &work)
				if work > maxLinkWork {
					return nil, invalidf("links in directory %q lead through too many names", path)
				}
				if !ok {
					continue
				}
			}
			e.Name = lossy(string(name))
			if size += len(e.Name) + entryAllowance; size > MaxDirectorySize {
				return nil, invalidf("directory %q is larger than %d bytes", path, MaxDirectorySize)
			}
			e.IsDirectory, e.IsFile = kind == unix.DT_DIR, kind == unix.DT_REG
			entries = append(entries, e)
		}
	}
}

// detail describes name itself. The type in e is that of the directory. detail returns false if
// there is no such name any more.
func (v *View) detail(d Dir, name string, e *DirEntry) bool {
	var st unix.Stat_t
	var err error
	access := Read
	if v == nil {
		err = fstatAt(d.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	} else {
		var p Place
		if p, err = v.find(d, name, 0); err == nil {
			st, access = p.Stat, p.Access
			p.Close()
		}
	}
	if err != nil {
		return err != unix.ENOENT // else the type is all that is known
	}
	e.Type = Type(kindOf(&st))
	if access >= Read {
		e.Known, e.Mode, e.Size = true, uint16(st.Mode&0o7777), uint64(st.Size)
		e.ModifiedAtMs = st.Mtim.Sec*1000 + st.Mtim.Nsec/1e6
	}
	return true
}

// entryKind returns the type of the object that name leads to, or DT_UNKNOWN if
// the policy hides or denies the object. ok is false if name leads to nothing.
// The cost of resolving name is added to work, in the unit of maxLinkWork.
func (v *View) entryKind(d Dir, name string, work *int) (kind byte, ok bool) {
	var st unix.Stat_t
	if v == nil {
		err := fstatAt(d.FD, name, &st, 0)
		return kindOf(&st), err == nil
	}
	p, asked, err := v.measure(d, name, FollowLast)
	*work += asked
	if err != nil {
		return unix.DT_UNKNOWN, err == unix.EACCES || err == errHidden{}
	}
	defer p.Close()
	if p.Exists() && p.Linked && p.Access == Denied {
		return unix.DT_UNKNOWN, true
	}
	return p.fileType(), p.Exists()
}

// kindOf returns the type of a file in the form of getdents64(2).
func kindOf(st *unix.Stat_t) byte { return byte(st.Mode & unix.S_IFMT >> 12) }

// lossy replaces bytes that are not UTF-8 by U+FFFD, one for each longest
// beginning of a character (Unicode 3.9, "substitution of maximal subparts").
func lossy(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		if r == utf8.RuneError && n == 1 {
			for n < 3 && i+n < len(s) && !utf8.FullRuneInString(s[i:i+n+1]) {
				n++
			}
		}
		b.WriteRune(r)
		i += n
	}
	return b.String()
}

// dirReader reads names from open directories, a buffer at a time. One
// reader serves many directories, one after the other.
type dirReader struct {
	buf []byte
	n   int
}

func newDirReader() *dirReader { return &dirReader{buf: make([]byte, 32<<10)} }

// fill reads the next names of the directory fd, from where the last read
// ended. It returns false at the end.
func (r *dirReader) fill(fd int) (bool, error) {
	for {
		n, err := unix.Getdents(fd, r.buf)
		switch err {
		case unix.EINTR:
			continue
		case unix.ENOENT:
			n, err = 0, nil // the directory was removed in the meantime
		}
		r.n = max(n, 0)
		return r.n > 0, err
	}
}

// all yields the names that fill has read, without "." and "..", each with
// its type (DT_UNKNOWN on some file systems). The name is only valid during
// the call.
func (r *dirReader) all(yield func(name []byte, kind byte) bool) {
	for rest := r.buf[:r.n]; len(rest) > 0; {
		name, kind, n := parseDirent(rest)
		if n == 0 {
			return
		}
		rest = rest[n:]
		if s := string(name); s == "" || s == "." || s == ".." {
			continue
		}
		if !yield(name, kind) {
			return
		}
	}
}

// offset returns the offset after the names that fill has read, for lseek(2) on
// a descriptor of the same directory.
func (r *dirReader) offset() int64 {
	var off int64
	for rest := r.buf[:r.n]; len(rest) > 0; {
		_, _, n := parseDirent(rest)
		if n == 0 {
			break
		}
		off = int64(binary.NativeEndian.Uint64(rest[8:]))
		rest = rest[n:]
	}
	return off
}

// parseDirent takes one linux_dirent64 (getdents64(2)) off b: inode and
// offset of 8 bytes, record length of 2, type of 1, name up to a NUL. The
// length n is 0 when b does not hold a whole record.
func parseDirent(b []byte) (name []byte, kind byte, n int) {
	const header = 19
	if len(b) < header {
		return nil, 0, 0
	}
	n = int(binary.NativeEndian.Uint16(b[16:]))
	if n < header || n > len(b) {
		return nil, 0, 0
	}
	name = b[header:n]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	return name, b[18], n
}
