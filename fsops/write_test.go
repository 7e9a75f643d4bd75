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

// TestHost has what changes files, and what is left of a tree then.
func TestHost(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/views.txt", "host", 3) {
		root := tree(t, standard...)
		before := list(t, root)
		_, err := operation(t.Context(), host, root, row[1])
		want := map[string]error{"ok": nil, "invalid": invalid}[row[0]]
		if errno := errnos[row[0]]; errno != 0 {
			want = errno
		}
		checkErr(t, err, want)
		if after := list(t, root); row[2] != "" {
			rig.Is(t, slices.Contains(after, row[2]), true, "%s: %q is in %q", row[1], row[2], after)
		} else {
			rig.Same(t, row[1], before, after)
		}
	}
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
