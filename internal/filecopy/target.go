package filecopy

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// target is the place for entries: below an open directory, under their own names, or under the new
// name if the target of the copy is a new name.
type target struct {
	base int    // descriptor of the directory
	dir  string // its path, for people
	name string // replaces the first name of each entry; "": no name is replaced
	// missing says that only a directory may be made at the target, because the path ends in a
	// slash.
	missing bool
	linked  bool     // a link is at the target, and is replaced
	asked   []string // the first names that entries may have, "." for contents; nil: any
}

// errLinked is about a target, which an earlier copy may have made a link that leads anywhere.
var errLinked = errors.New("is a link, which no copy follows: name what it leads to, or remove it")

// aim finds the target for a copy to a path, by docker's rules. The copy goes into the path if that
// is a directory. Otherwise it goes to the path itself, whose parent must exist. many says that the
// path must be a directory.
//
// A link at the path is never followed. If it leads to a file or to nothing, it is replaced. Any other
// link is refused, because it may be one that the host needs, as /bin is. So is every link where a
// directory is meant.
func aim(to string, many bool) (*target, error) {
	if to == "" {
		return nil, about(to, unix.ENOENT)
	}
	at := bare(to)
	ends := at != to // in a slash, or in /.
	info, err := os.Lstat(at)
	linked := err == nil && info.Mode()&fs.ModeSymlink != 0
	switch {
	case err != nil && !errors.Is(err, unix.ENOENT):
		return nil, about(to, reason(err))
	case err != nil && (many || contents(to)):
		return nil, about(to, unix.ENOENT)
	case linked && (many || ends || !replaceable(at)):
		return nil, about(at, errLinked)
	case err == nil && info.IsDir():
		return open(at, "", unix.O_NOFOLLOW)
	case err == nil && !linked && !info.Mode().IsRegular():
		return nil, about(to, errors.New("is neither a file nor a directory"))
	case err == nil && (many || ends):
		return nil, about(to, unix.ENOTDIR)
	}
	missing := err != nil && ends
	dir, name := path.Split(at) // not cleaned, because a .. behind a link leads elsewhere
	t, err := open(bare(cmp.Or(dir, ".")), name, 0)
	if err == nil {
		t.missing, t.linked = missing, linked
	}
	return t, err
}

// bare returns a path without the slashes and the /. at its end.
func bare(path string) string {
	for {
		cut := strings.TrimSuffix(strings.TrimRight(path, "/"), "/.")
		if cut == "" {
			return "/"
		}
		if cut == path {
			return path
		}
		path = cut
	}
}

// replaceable reports whether a link leads to a file or to nothing.
func replaceable(link string) bool {
	info, err := os.Stat(link)
	return errors.Is(err, unix.ENOENT) || err == nil && info.Mode().IsRegular()
}

func open(dir, name string, flags int) (*target, error) {
	base, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, about(dir, err)
	}
	return &target{base: base, dir: dir, name: name}, nil
}

// unlink removes the link that was found at the target, so that a directory can take its place.
func (t *target) unlink() error {
	var st unix.Stat_t
	err := unix.Fstatat(t.base, t.name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == unix.ENOENT || err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return nil
	}
	if err != nil {
		return err
	}
	return unix.Unlinkat(t.base, t.name, 0)
}

// place returns where an entry goes, as names from the base on. No names mean the base itself.
func (t *target) place(name string) ([]string, error) {
	names, err := split(name)
	if err != nil {
		return nil, err
	}
	first := "."
	if !inside(name) {
		first = names[0]
	}
	if t.asked != nil && !slices.Contains(t.asked, first) {
		return nil, fmt.Errorf("the stream has the name %s, which nobody has asked for", Quote(name))
	}
	if t.name == "" {
		return names, nil
	}
	if len(names) > 0 && !inside(name) {
		names = names[1:]
	}
	return append([]string{t.name}, names...), nil
}

// inside reports whether the name of an entry belongs to a source of which only the contents are
// copied.
func inside(name string) bool { return name == "." || strings.HasPrefix(name, "./") }

// split checks the name of an entry and splits it.
func split(name string) ([]string, error) {
	switch {
	case name == "":
		return nil, errors.New("an entry of the stream has no name")
	case len(name) > maxName:
		return nil, fmt.Errorf("a name in the stream has %d bytes, at most %d are allowed", len(name), maxName)
	case name[0] == '/':
		return nil, fmt.Errorf("the stream has the absolute name %s", Quote(name))
	case strings.ContainsRune(name, 0):
		return nil, fmt.Errorf("the stream has the name %s", Quote(name))
	}
	var names []string
	for n := range strings.SplitSeq(name, "/") {
		switch n {
		case "", ".":
		case "..":
			return nil, fmt.Errorf("the stream has the name %s, which leads out", Quote(name))
		default:
			names = append(names, n)
		}
	}
	if len(names) > maxDepth {
		return nil, fmt.Errorf("%.64q… is %d directories deep, at most %d are allowed", name, len(names), maxDepth)
	}
	return names, nil
}

// path returns the path of a place, for people.
func (t *target) path(names []string) string { return path.Join(append([]string{t.dir}, names...)...) }
