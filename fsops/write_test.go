package fsops_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

func TestWriteFile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path  string
		links fsops.Links
		at    string // the path that has the bytes afterwards
		err   error
	}{
		{path: "d/a.txt", at: "d/a.txt"},
		{path: "d/link", at: "d/a.txt"},
		{path: "dlink/new", at: "d/new"},
		{path: "z/x", err: unix.ENOTDIR},
		{path: "d/ff", err: unix.ENXIO},
		{path: "/dev/null"},
		{path: "/dev/full", err: unix.ENOSPC},
		{path: "d/a.txt", links: fsops.RefuseLinks, at: "d/a.txt"},
		{path: "d/new", links: fsops.RefuseLinks, at: "d/new"},
		{path: "d/dang", links: fsops.RefuseLinks, err: unix.ELOOP},
		{path: "d", links: fsops.RefuseLinks, err: unix.EISDIR},
		{path: "nope/x", links: fsops.RefuseLinks, err: unix.ENOENT},
		{path: "/dev/null", links: fsops.RefuseLinks, err: invalid},
		{path: "/", links: fsops.RefuseLinks, err: invalid},
	} {
		root := tree(t, standard...)
		before := list(t, root)
		path := at(root, tt.path)
		err := fsops.WriteFile(t.Context(), host, path, []byte("abc"), fsops.WriteOptions{Links: tt.links})
		checkErr(t, err, tt.err)
		if tt.at != "" {
			rig.Is(t, string(rig.Value(os.ReadFile(filepath.Join(root, tt.at)))), "abc", "%s, %v: %s", tt.path, tt.links, tt.at)
		} else if after := list(t, root); len(after) != len(before) {
			t.Errorf("%s, %v: tree is %q, was %q", tt.path, tt.links, after, before)
		}
	}
}

func TestWriteFileKeepsModeAndHardLinks(t *testing.T) {
	t.Parallel()
	root := tree(t, "a =a long text")
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	rig.Must(t, os.Link(a, b), os.Chmod(a, 0o751), fsops.WriteFile(t.Context(), host, a, []byte("short"), fsops.WriteOptions{}))
	rig.Is(t, string(rig.Value(os.ReadFile(b))), "short", "other link")
	rig.Is(t, rig.Value(os.Stat(a)).Mode(), 0o751, "mode")
	rig.Must(t, fsops.WriteFile(t.Context(), host, filepath.Join(root, "n"), nil, fsops.WriteOptions{}))
	umask := unix.Umask(0)
	unix.Umask(umask)
	fi := rig.Value(os.Stat(filepath.Join(root, "n")))
	rig.Is(t, fmt.Sprint(fi.Mode(), fi.Size()), fmt.Sprint(os.FileMode(0o666&^umask), 0), "mode and size of a new file")
}

// TestWriteFileFifoWithReader writes more than a pipe holds, while somebody
// reads.
func TestWriteFileFifoWithReader(t *testing.T) {
	t.Parallel()
	path := filepath.Join(tree(t, "ff |"), "ff")
	r := rig.Value(os.OpenFile(path, os.O_RDWR, 0)) // open for writing too, so that reading meets no end of the file
	defer r.Close()
	want := bytes.Repeat([]byte("x"), 1<<20)
	written := make(chan error, 1)
	go func() { written <- fsops.WriteFile(t.Context(), host, path, want, fsops.WriteOptions{}) }()
	got := make([]byte, len(want))
	_ = rig.Value(io.ReadFull(r, got))
	rig.Check(t, <-written)
	rig.Is(t, bytes.Equal(got, want), true, "the reader got the %d bytes", len(want))
}

// TestWriteFileFullFifo: a reader that does not read holds the writer up only for
// a limited time.
func TestWriteFileFullFifo(t *testing.T) {
	rig.Tier(t, rig.Merge) // it takes the five seconds that a write waits
	t.Parallel()
	path := filepath.Join(tree(t, "ff |"), "ff")
	r := rig.Value(os.OpenFile(path, os.O_RDWR, 0))
	defer r.Close()
	checkErr(t, fsops.WriteFile(t.Context(), host, path, make([]byte, 1<<20), fsops.WriteOptions{}), unix.EAGAIN)
}

func TestCreateDirectory(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		path      string
		recursive bool
		links     fsops.Links
		err       error
	}{
		{path: "n"},
		{path: "n", recursive: true},
		{path: "dlink", recursive: true},
		{path: "dlink/n/o", recursive: true},
		{path: "z", err: unix.EEXIST},
		{path: "z/x", err: unix.ENOTDIR},
		{path: "z/x/y", recursive: true, err: unix.ENOTDIR},
		{path: "d/dang", recursive: true, err: unix.EEXIST},
		{path: "d/dang/x/y", recursive: true, err: unix.EEXIST},
		{path: "d/loop/x", recursive: true, err: unix.ELOOP},
		{path: "/", recursive: true},
		{path: "/", err: unix.EEXIST},
		{path: "n/o/p", recursive: true, links: fsops.RefuseLinks},
		{path: "d/n", links: fsops.RefuseLinks},
		{path: "n/o", links: fsops.RefuseLinks, err: unix.ENOENT},
		{path: "d", recursive: true, links: fsops.RefuseLinks},
		{path: "d", links: fsops.RefuseLinks, err: unix.EEXIST},
		{path: "d/dl", links: fsops.RefuseLinks, err: unix.EEXIST},
		{path: "d/dl", recursive: true, links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "d/a.txt", recursive: true, links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "d/dang", recursive: true, links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "dlink/n", recursive: true, links: fsops.RefuseLinks, err: unix.ENOTDIR},
		{path: "/", recursive: true, links: fsops.RefuseLinks},
		{path: "/", links: fsops.RefuseLinks, err: unix.EEXIST},
	} {
		path := tt.path
		if path != "/" {
			path = filepath.Join(tree(t, standard...), path)
		}
		err := host.CreateDirectory(t.Context(), path, tt.recursive, tt.links)
		checkErr(t, err, tt.err)
		if t.Failed() {
			t.Fatalf("CreateDirectory(%q, %v, %v)", tt.path, tt.recursive, tt.links)
		}
		if fi, serr := os.Stat(path); tt.err == nil && (serr != nil || !fi.IsDir()) {
			t.Errorf("%s is no directory: %v", tt.path, serr)
		}
	}
}

func TestRename(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		src, dst string
		replace  bool
		err      error
		want     string // a line of the tree afterwards
	}{
		{src: "z", dst: "n", want: "n =zz"},
		{src: "z", dst: "d/a.txt", replace: true, want: "d/a.txt =zz"},
		{src: "z", dst: "d/a.txt", err: unix.EEXIST, want: "d/a.txt =hello"},
		{src: "z", dst: "d/link", replace: true, want: "d/link =zz"},
		{src: "z", dst: "d/dang", err: unix.EEXIST, want: "d/dang -> nowhere"},
		{src: "dlink", dst: "n", want: "n -> d"},
		{src: "d", dst: "n", want: "n/a.txt =hello"},
		{src: "d", dst: "z", replace: true, err: unix.ENOTDIR, want: "z =zz"},
		{src: "z", dst: "d", replace: true, err: unix.EISDIR, want: "z =zz"},
		{src: "d/sub", dst: "d", replace: true, err: unix.ENOTEMPTY, want: "d/sub/"},
		{src: "d", dst: "d/sub/x", replace: true, err: unix.EINVAL, want: "d/sub/"},
		{src: "nope", dst: "n", replace: true, err: unix.ENOENT, want: "z =zz"},
		{src: "z", dst: "nope/n", replace: true, err: unix.ENOENT, want: "z =zz"},
	} {
		root := tree(t, standard...)
		err := host.Rename(t.Context(), filepath.Join(root, tt.src), filepath.Join(root, tt.dst), tt.replace)
		checkErr(t, err, tt.err)
		after := list(t, root)
		rig.Is(t, slices.Contains(after, tt.want), true, "%s to %s: %q is in %q", tt.src, tt.dst, tt.want, after)
	}
	checkErr(t, host.Rename(t.Context(), filepath.Join(tree(t, "z"), "z"), "/proc/z", true), unix.EXDEV)
}

// TestWriteFileAtomic: a new file takes the place of the old one with its mode and owner, and nothing is left behind.
func TestWriteFileAtomic(t *testing.T) {
	t.Parallel()
	root := tree(t, "a =long text", "d/")
	a, b := filepath.Join(root, "a"), filepath.Join(root, "b")
	rig.Must(t, os.Link(a, b), os.Chmod(a, 0o4710), fsops.WriteFile(t.Context(), host, a, []byte("short"), fsops.WriteOptions{Atomic: true}))
	rig.Is(t, string(rig.Value(os.ReadFile(a))), "short", "content")
	rig.Is(t, string(rig.Value(os.ReadFile(b))), "long text", "other link")
	rig.Is(t, rig.Value(os.Stat(a)).Mode(), 0o710, "mode")
	ended, end := context.WithCancel(t.Context())
	end()
	for _, o := range []fsops.WriteOptions{{Atomic: true}, {Atomic: true, Exclusive: true}} {
		rig.Is(t, fsops.WriteFile(ended, host, a, nil, o) != nil, true, "%+v fails", o)
	}
	rig.Must(t, fsops.WriteFile(t.Context(), host, a, nil, fsops.WriteOptions{Mode: new(uint32(0o604)), Atomic: true}))
	rig.Is(t, rig.Value(os.Stat(a)).Mode(), 0o604, "the mode that was asked for")
	rig.Is(t, len(list(t, root)), 3, "names")
}
