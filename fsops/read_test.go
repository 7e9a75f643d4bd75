package fsops_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestReadFile(t *testing.T) {
	t.Parallel()
	root := tree(t, standard...)
	rig.Must(t, unix.Mknod(filepath.Join(root, "socket"), unix.S_IFSOCK|0o600, 0))
	for _, tt := range []struct {
		path  string
		links fsops.Links
		want  string
		err   error
	}{
		{path: "dlink/dl/b", want: "b"},
		{path: "d/dang", err: unix.ENOENT},
		{path: "socket", err: unix.ENXIO},
		{path: "d/a.txt", links: fsops.RefuseLinks, want: "hello"},
		{path: "d/dang", links: fsops.RefuseLinks, err: unix.ELOOP},
		{path: "dlink", links: fsops.RefuseLinks, err: unix.ELOOP},
		{path: "d/dl/b", links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "d/ff", links: fsops.RefuseLinks, err: invalid},
		{path: "/dev/null", links: fsops.RefuseLinks, err: invalid},
		{path: "/", links: fsops.RefuseLinks, err: invalid},
		{path: "nope/x", links: fsops.RefuseLinks, err: unix.ENOENT},
		{path: "z/x", links: fsops.RefuseLinks, err: unix.ENOTDIR},
	} {
		path := at(root, tt.path)
		got, err := fsops.ReadFile(t.Context(), host, path, tt.links, nil)
		checkErr(t, err, tt.err)
		rig.Is(t, string(got), tt.want, "ReadFile(%q, %v)", tt.path, tt.links)
	}
}

// TestReadFileProc: files of procfs claim to be empty, and may be larger than
// any first guess.
func TestReadFileProc(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/proc/self/status", "/proc/self/mountinfo", "/proc/kallsyms", "/proc/version"} {
		want := rig.Value(os.ReadFile(path))
		got, err := fsops.ReadFile(t.Context(), host, path, fsops.FollowLinks, nil)
		if err != nil || len(got) == 0 || len(want) == 0 {
			t.Errorf("%s: %d bytes, %v", path, len(got), err)
		}
		rig.Is(t, path != "/proc/version" || bytes.Equal(got, want), true, "%s: got %q, want %q", path, got, want)
		rig.Is(t, path != "/proc/kallsyms" || len(got) == len(want), true, "%s: got %d bytes, want %d", path, len(got), len(want))
	}
}

func TestReadFileLimit(t *testing.T) {
	t.Parallel()
	path := filepath.Join(tree(t, "big"), "big")
	rig.Must(t, os.Truncate(path, fsops.MaxFileSize+1))
	_, err := fsops.ReadFile(t.Context(), host, path, fsops.FollowLinks, func(n int) ([]byte, error) {
		t.Errorf("%d bytes allocated for a file that is refused", n)
		return make([]byte, 0, n), nil
	})
	checkErr(t, err, invalid)
}

// TestReadFileAlloc: a buffer larger than asked for, smaller than promised, or
// of the exact size gives the same bytes.
func TestReadFileAlloc(t *testing.T) {
	t.Parallel()
	want := bytes.Repeat([]byte("0123456789"), 1000)
	path := filepath.Join(t.TempDir(), "f")
	rig.Must(t, os.WriteFile(path, want, 0o600))
	for _, room := range []int{-5000, -1, 0, 1, 5000} {
		var asked []int
		got, err := fsops.ReadFile(t.Context(), host, path, fsops.RefuseLinks, func(n int) ([]byte, error) {
			asked = append(asked, n)
			return make([]byte, 0, n+room), nil
		})
		rig.Must(t, err)
		rig.Is(t, bytes.Equal(got, want), true, "room %d: %d bytes of %d", room, len(got), len(want))
		rig.Is(t, asked[0] == len(want) && (room < 0 || len(asked) == 1), true, "room %d: asked for %v", room, asked)
	}
}

func TestReadFileNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "f =secret", "dir/g =x")
	for path, mode := range map[string]os.FileMode{"f": 0, "dir": 0o600} {
		rig.Must(t, os.Chmod(filepath.Join(root, path), mode))
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "dir"), 0o700) })
	for _, links := range []fsops.Links{fsops.FollowLinks, fsops.RefuseLinks} {
		for _, path := range []string{"f", "dir/g"} {
			checkErr(t, rig.Err(fsops.ReadFile(t.Context(), host, filepath.Join(root, path), links, nil)), unix.EACCES)
		}
		checkErr(t, rig.Err(host.Stat(t.Context(), filepath.Join(root, "dir/g"), links)), unix.EACCES)
	}
	checkErr(t, rig.Err(host.Canonicalize(t.Context(), filepath.Join(root, "dir/g"), false)), unix.EACCES)
}

// TestReadFileWithoutMemory: a file that the caller has no memory for is not
// read.
func TestReadFileWithoutMemory(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	rig.Must(t, os.WriteFile(path, []byte("x"), 0o600))
	short := errors.New("no memory")
	none := func(int) ([]byte, error) { return nil, short }
	rig.Is(t, rig.Err(fsops.ReadFile(t.Context(), host, path, fsops.FollowLinks, none)), short, "ReadFile")
	var handles fsops.Handles
	defer handles.CloseAll()
	rig.Must(t, openHandle(&handles, "h", path, fsops.ModeRead))
	_, _, err := handles.ReadBlock("h", 0, 1, none)
	rig.Is(t, err, short, "ReadBlock")
	block, _, err := handles.ReadBlock("h", 0, 1, nil)
	rig.Must(t, err)
	rig.Is(t, string(block), "x", "ReadBlock afterwards")
}
