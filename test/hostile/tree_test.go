package hostile

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/test/rig"
)

// oldTime is when everything was made, in seconds: before all that happens in a test.
const oldTime = 100_000_000

func setTime(path string) error {
	old := unix.Timespec{Sec: oldTime}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{old, old}, unix.AT_SYMLINK_NOFOLLOW)
}

// tree tells what each path of a ground is: names, metadata, contents. Placeholders are not told:
// they come and go with the commands of the other backend.
func (g ground) tree() (map[string]string, error) {
	tree := map[string]string{}
	err := filepath.WalkDir(g.base, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrPermission) {
			return nil // it has been told what this folder is; only root sees what is in it
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		name := strings.TrimPrefix(strings.TrimPrefix(path, g.base), "/")
		if placeholder.IsPlaceholder(&st) {
			if st.Mode&unix.S_IFMT == unix.S_IFDIR {
				return fs.SkipDir
			}
			return nil
		}
		text, err := describe(path, &st)
		tree[name] = strings.ReplaceAll(text, g.base, "%")
		return err
	})
	return tree, err
}

// describe tells what a path is.
func describe(path string, st *unix.Stat_t) (string, error) {
	var text strings.Builder
	fmt.Fprintf(&text, "mode %#o owner %d:%d", st.Mode, st.Uid, st.Gid)
	var errs []error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrPermission) {
			data, err = []byte("only root can read this"), nil
		}
		fmt.Fprintf(&text, " links %d size %d content %.8x", st.Nlink, st.Size, sha256.Sum256(data))
		errs = append(errs, err)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		fmt.Fprintf(&text, " links %d to %q", st.Nlink, target)
		errs = append(errs, err)
	case unix.S_IFDIR:
	default:
		fmt.Fprintf(&text, " links %d device %#x", st.Nlink, st.Rdev)
	}
	if st.Mtim.Sec < 1e9 { // a time that somebody has set; all others differ
		fmt.Fprint(&text, " mtime ", st.Mtim.Sec)
	}
	names, err := attributes(path)
	for _, name := range names {
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, name, value)
		errs = append(errs, err)
		fmt.Fprintf(&text, " %s=%.8x", name, sha256.Sum256(value[:max(n, 0)]))
	}
	return text.String(), errors.Join(append(errs, err)...)
}

// attributes are the names of the extended attributes of a path.
func attributes(path string) ([]string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	if err == unix.ENOTSUP {
		return nil, nil
	}
	names := strings.FieldsFunc(string(list[:max(n, 0)]), func(r rune) bool { return r == 0 })
	slices.Sort(names)
	return names, err
}

// reset brings the ground back to what it was when it was filled. What a command cannot have
// changed it leaves alone: views of commands that run may be mounted there.
func (g ground) reset() error {
	var errs []error
	var empty func(name string) (gone bool)
	empty = func(name string) bool {
		path := g.base + "/" + name
		entries, err := os.ReadDir(path)
		if err != nil {
			_ = os.Chmod(path, 0o700) // then the next attempt says what is wrong
			entries, err = os.ReadDir(path)
			errs = append(errs, err)
		}
		all := true
		for _, e := range entries {
			below := strings.TrimPrefix(name+"/"+e.Name(), "/")
			gone := false
			var st unix.Stat_t
			if err := unix.Lstat(g.base+"/"+below, &st); err == nil && placeholder.IsPlaceholder(&st) {
				all = false
				continue
			}
			if e.IsDir() && !g.closed(below) {
				gone = empty(below)
			}
			if !g.kept(below) && (!e.IsDir() || gone) {
				err := os.Remove(g.base + "/" + below)
				errs = append(errs, err)
				gone = err == nil
			}
			all = all && gone
		}
		return all
	}
	empty("repo")
	for _, name := range []string{"repo", "repo/a", "repo/a/b", "repo/a/b/locked/open"} {
		names, err := attributes(g.base + "/" + name)
		errs = append(errs, err)
		for _, attribute := range names {
			errs = append(errs, unix.Lremovexattr(g.base+"/"+name, attribute))
		}
	}
	return errors.Join(append(errs, g.make())...)
}

// closed reports whether a command can change nothing at or below a path.
func (g ground) closed(path string) bool {
	if root, name := filepath.Split(path); root == "repo/" || root == "repo/a/b/locked/open/" {
		if name == ".git" || name == ".codex" || name == ".agents" || name == ".aws" {
			return true
		}
	}
	switch path {
	case "out":
		return true
	case "repo/vault":
		return g.mode == denying
	case "repo/secret":
		return g.mode == missing
	}
	return false
}

// unchanged fails if a tree was changed, since it was before, where no command may change it.
func (g ground) unchanged(t *testing.T, before map[string]string) {
	t.Helper()
	tree, err := g.tree()
	rig.Must(t, err)
	rig.Same(t, "what nothing may change", g.keptOf(before), g.keptOf(tree))
}

// keptOf is the part of a tree that no command may change.
func (g ground) keptOf(tree map[string]string) map[string]string {
	kept := map[string]string{}
	for name, text := range tree {
		switch name {
		case "repo", "repo/a", "repo/a/b", "repo/a/b/locked/open":
			// Their metadata is the command's.
			text = "there"
		}
		if g.kept(name) {
			kept[name] = text
		}
	}
	return kept
}
