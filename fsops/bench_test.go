package fsops_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// measure measures an operation, on so many bytes.
func measure(b *testing.B, name string, bytes int, operation func() error) {
	b.Run(name, func(b *testing.B) {
		if bytes > 0 {
			b.SetBytes(int64(bytes))
		}
		b.ReportAllocs()
		for b.Loop() {
			rig.Must(b, operation())
		}
	})
}

func BenchmarkStat(b *testing.B) {
	root := tree(b, "f =x", "l -> f")
	stat := func(name string, links fsops.Links) func() error {
		path := filepath.Join(root, name)
		return func() error { return rig.Err(host.Stat(b.Context(), path, links)) }
	}
	measure(b, "follow", 0, stat("f", fsops.FollowLinks))
	measure(b, "refuse", 0, stat("f", fsops.RefuseLinks))
	measure(b, "link", 0, stat("l", fsops.FollowLinks))
	missing := stat("nope", fsops.FollowLinks)
	measure(b, "missing", 0, func() error {
		if missing() == nil {
			b.Error("it exists")
		}
		return nil
	})
}

func BenchmarkCanonicalize(b *testing.B) {
	root := tree(b, "d/f", "l -> d")
	for _, name := range []string{"d/f", "l/f"} {
		path := filepath.Join(root, name)
		measure(b, name, 0, func() error { return rig.Err(host.Canonicalize(b.Context(), path, false)) })
	}
}

func BenchmarkReadDirectory(b *testing.B) {
	root := b.TempDir()
	for i := range 1000 {
		grow(b, root, fmt.Sprintf("some-file-%04d.go", i))
	}
	measure(b, "1000", 0, func() error { return rig.Err(host.ReadDirectory(b.Context(), root, false)) })
}

// BenchmarkWalk lists 10,000 files in 100 directories.
func BenchmarkWalk(b *testing.B) {
	root := b.TempDir()
	for i := range 100 {
		for j := range 100 {
			grow(b, root, fmt.Sprintf("dir-%02d/file-%02d.go", i, j))
		}
	}
	o := fsops.WalkOptions{MaxDepth: 6, MaxDirectories: 2000, MaxEntries: 20_000}
	for _, follow := range []bool{false, true} {
		o.FollowDirectoryLinks = follow
		measure(b, fmt.Sprintf("follow=%v", follow), 0, func() error { return rig.Err(host.Walk(b.Context(), root, o)) })
	}
}

func BenchmarkReadFile(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 16 << 20} {
		path := filepath.Join(b.TempDir(), "f")
		rig.Must(b, os.WriteFile(path, make([]byte, size), 0o600))
		buf := make([]byte, 0, size)
		alloc := func(int) ([]byte, error) { return buf, nil }
		measure(b, fmt.Sprintf("%dKiB", size>>10), size, func() error {
			return rig.Err(fsops.ReadFile(b.Context(), host, path, fsops.FollowLinks, alloc))
		})
	}
}

func BenchmarkWriteFile(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		path, data := filepath.Join(b.TempDir(), "f"), make([]byte, size)
		measure(b, fmt.Sprintf("%dKiB", size>>10), size, func() error {
			return fsops.WriteFile(b.Context(), host, path, data, fsops.WriteOptions{})
		})
	}
}

func BenchmarkReadBlock(b *testing.B) {
	path := filepath.Join(b.TempDir(), "f")
	rig.Must(b, os.WriteFile(path, make([]byte, 4*fsops.MaxBlockLength), 0o600))
	var h fsops.Handles
	defer h.CloseAll()
	rig.Must(b, openHandle(&h, "h", path, fsops.ModeRead))
	buf := make([]byte, 0, fsops.MaxBlockLength)
	alloc := func(int) ([]byte, error) { return buf, nil }
	measure(b, "longest", fsops.MaxBlockLength, func() error {
		_, _, err := h.ReadBlock("h", fsops.MaxBlockLength, fsops.MaxBlockLength, alloc)
		return err
	})
}

func BenchmarkCopyTree(b *testing.B) {
	root := b.TempDir()
	for i := range 10 {
		for j := range 20 {
			grow(b, root, fmt.Sprintf("src/%d/%d =some text", i, j))
		}
	}
	src, dst := filepath.Join(root, "src"), filepath.Join(root, "dst")
	measure(b, "200", 0, func() error {
		rig.Must(b, host.Copy(b.Context(), src, dst, true))
		return host.Remove(b.Context(), dst, true, false, fsops.FollowLinks)
	})
}

// BenchmarkView works on a file five names below the root, with a rule at each
// end of the way.
func BenchmarkView(b *testing.B) {
	root := tree(b, "a/b/f =text", "a/l -> b")
	v := workspace.view(b, root)
	for _, name := range []string{"a/b/f", "a/l/f"} {
		path := filepath.Join(root, name)
		measure(b, "OpenRead/"+name, 0, func() error {
			fd, err := v.OpenRead(b.Context(), path, fsops.FollowLinks)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		})
		measure(b, "Stat/"+name, 0, func() error { return rig.Err(v.Stat(b.Context(), path, fsops.FollowLinks)) })
	}
}
