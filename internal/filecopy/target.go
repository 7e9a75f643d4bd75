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

// target is where entries go: below an open directory, under their own names or, if the target
// of the copy is a new name, under that.
type target struct {
	base int    // descriptor of the directory
	dir  string // its path, for people
	name string // what takes the place of the first name of each entry; "": nothing
	// missing: only a directory may be made there, since the path ends in a slash.
	missing bool
	asked   []string // the first names that entries may have; nil: any
}

// aim finds out where a copy to a path goes, by docker's rules: into what is a directory, and
// else to the path itself, in a directory that exists. many tells that it has to be a directory.
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
		if clean, err = filepath.EvalSymlinks(to); err != nil { // the file that a link leads to is replaced
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

// place is where an entry goes: the names from the base on; none is the base itself.
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

// inside reports whether an entry is one of what is in a directory, and not of the directory.
func inside(name string) bool { return name == "." || strings.HasPrefix(name, "./") }

// split checks the name of an entry and takes it apart.
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

// path is that of a place, for people.
func (t *target) path(names []string) string { return path.Join(append([]string{t.dir}, names...)...) }
