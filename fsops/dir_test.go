package fsops_test

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestReadDirectory(t *testing.T) {
	t.Parallel()
	root := tree(t, standard...)
	grow(t, root, "d/.hidden", "d/bad\xffname", "d/up -> ..", "empty/")
	want := []fsops.DirEntry{
		{Name: ".hidden", IsFile: true},
		{Name: "a.txt", IsFile: true},
		{Name: "bad\ufffdname", IsFile: true},
		{Name: "dl", IsDirectory: true},
		{Name: "ff"},
		{Name: "link", IsFile: true},
		{Name: "sub", IsDirectory: true},
		{Name: "up", IsDirectory: true},
	}
	for _, path := range []string{"d", "dlink"} {
		got, err := host.ReadDirectory(t.Context(), filepath.Join(root, path), false)
		checkErr(t, err, nil)
		slices.SortFunc(got, func(a, b fsops.DirEntry) int { return strings.Compare(a.Name, b.Name) })
		rig.Same(t, path, want, got)
	}
	rig.Same(t, "empty", []fsops.DirEntry{}, rig.Value(host.ReadDirectory(t.Context(), filepath.Join(root, "empty"), false)))
	for path, want := range map[string]error{
		"nope": unix.ENOENT, "z": unix.ENOTDIR, "d/ff": unix.ENOTDIR, "d/loop": unix.ELOOP, "d/dang": unix.ENOENT,
	} {
		checkErr(t, rig.Err(host.ReadDirectory(t.Context(), filepath.Join(root, path), false)), want)
	}
}

// TestReadDirectoryLarge lists more names than one buffer holds, in the order
// of the file system.
func TestReadDirectoryLarge(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	const n = 1200
	for i := range n {
		grow(t, root, "a-name-of-some-length-"+strconv.Itoa(i))
	}
	got := rig.Value(host.ReadDirectory(t.Context(), root, false))
	rig.Is(t, len(got), n, "entries")
	seen := map[string]bool{}
	for _, e := range got {
		rig.Is(t, e.IsFile && !e.IsDirectory && !seen[e.Name], true, "%+v is a file that was not seen before", e)
		seen[e.Name] = true
	}
	rig.Same(t, "the order, again", got, rig.Value(host.ReadDirectory(t.Context(), root, false)))
}

func TestReadDirectoryNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "search/f", "list/f", "list/l -> f")
	for path, mode := range map[string]uint32{"search": 0o100, "list": 0o400} {
		path := filepath.Join(root, path)
		rig.Must(t, unix.Chmod(path, mode))
		t.Cleanup(func() { _ = unix.Chmod(path, 0o700) })
	}
	checkErr(t, rig.Err(host.ReadDirectory(t.Context(), filepath.Join(root, "search"), false)), unix.EACCES)
	// The type of f can be read in the directory; that of what l leads to can
	// not.
	got := rig.Value(host.ReadDirectory(t.Context(), filepath.Join(root, "list"), false))
	rig.Same(t, "the list", []fsops.DirEntry{{Name: "f", IsFile: true}}, got)
}
