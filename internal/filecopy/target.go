package filecopy

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
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
	asked   []string // the first names that entries may have; nil: any
}

// aim finds the target for a copy to a path, by docker's rules. The copy goes into the path if that
// is a directory. Otherwise it goes to the path itself, whose parent must exist. many says that the
// path must be a directory.
func aim(to string, many bool) (*target, error) {
	if to == "" {
		return nil, about(to, unix.ENOENT)
	}
	info, err := os.Stat(to)
	switch {
	case err == nil && info.IsDir():
		return open(to, "")
	case err == nil && !info.Mode().IsRegular():
		return nil, about(to, errors.New("is neither a file nor a directory"))
	case err == nil && (many || strings.HasSuffix(to, "/")):
		return nil, about(to, unix.ENOTDIR)
	case err != nil && !errors.Is(err, unix.ENOENT):
		return nil, about(to, reason(err))
	case err != nil && many:
		return nil, about(to, unix.ENOENT)
	}
	clean := filepath.Clean(to)
	if err == nil {
		if clean, err = filepath.EvalSymlinks(to); err != nil { // the target of a link is replaced, not the link
			return nil, about(to, reason(err))
		}
		return open(filepath.Dir(clean), filepath.Base(clean))
	}
	if _, err := os.Lstat(clean); err == nil {
		return nil, about(to, errors.New("is a link that leads nowhere"))
	}
	if contents(to) {
		return nil, about(to, unix.ENOENT)
	}
	t, err := open(filepath.Dir(clean), filepath.Base(clean))
	if err == nil {
		t.missing = strings.HasSuffix(to, "/")
	}
	return t, err
}

func open(dir, name string) (*target, error) {
	base, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, about(dir, err)
	}
	return &target{base: base, dir: dir, name: name}, nil
}

// place returns where an entry goes, as names from the base on. No names mean the base itself.
func (t *target) place(name string) ([]string, error) {
	names, err := split(name)
	if err != nil {
		return nil, err
	}
	if t.asked != nil && (len(names) == 0 || inside(name) || !slices.Contains(t.asked, names[0])) {
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
