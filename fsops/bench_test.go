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

func BenchmarkStat(b *testing.B) {
	root := tree(b, "f =x", "l -> f")
	for name, links := range map[string]fsops.Links{"follow": fsops.FollowLinks, "refuse": fsops.RefuseLinks} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(root, "f")
			b.ReportAllocs()
			for b.Loop() {
				rig.Must(b, rig.Err(host.Stat(b.Context(), path, links)))
			}
		})
	}
	b.Run("link", func(b *testing.B) {
		path := filepath.Join(root, "l")
		b.ReportAllocs()
		for b.Loop() {
			rig.Must(b, rig.Err(host.Stat(b.Context(), path, fsops.FollowLinks)))
		}
	})
	b.Run("missing", func(b *testing.B) {
		path := filepath.Join(root, "nope")
		b.ReportAllocs()
		for b.Loop() {
			if _, err := host.Stat(b.Context(), path, fsops.FollowLinks); err == nil {
				b.Fatal("it exists")
			}
		}
	})
}

func BenchmarkCanonicalize(b *testing.B) {
	root := tree(b, "d/f", "l -> d")
	for _, name := range []string{"d/f", "l/f"} {
		b.Run(name, func(b *testing.B) {
			path := filepath.Join(root, name)
			b.ReportAllocs()
			for b.Loop() {
				rig.Must(b, rig.Err(host.Canonicalize(b.Context(), path)))
			}
		})
	}
}

func BenchmarkReadDirectory(b *testing.B) {
	root := b.TempDir()
	for i := range 1000 {
		grow(b, root, fmt.Sprintf("some-file-%04d.go", i))
	}
	b.ReportAllocs()
	for b.Loop() {
		entries, err := host.ReadDirectory(b.Context(), root)
		if err != nil || len(entries) != 1000 {
			b.Fatal(len(entries), err)
		}
	}
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
		b.Run(fmt.Sprintf("follow=%v", follow), func(b *testing.B) {
			o.FollowDirectoryLinks = follow
			b.ReportAllocs()
			for b.Loop() {
				res, err := host.Walk(b.Context(), root, o)
				if err != nil || len(res.Entries) != 10_100 {
					b.Fatal(len(res.Entries), err)
				}
			}
		})
	}
}

func BenchmarkReadFile(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f")
			rig.Must(b, os.WriteFile(path, make([]byte, size), 0o600))
			buf := make([]byte, 0, size)
			alloc := func(int) ([]byte, error) { return buf, nil }
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				got, err := fsops.ReadFile(b.Context(), host, path, fsops.FollowLinks, alloc)
				if err != nil || len(got) != size {
					b.Fatal(len(got), err)
				}
			}
		})
	}
}

func BenchmarkWriteFile(b *testing.B) {
	for _, size := range []int{1 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f")
			data := make([]byte, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				rig.Must(b, fsops.WriteFile(b.Context(), host, path, data, fsops.FollowLinks))
			}
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
	b.SetBytes(fsops.MaxBlockLength)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := h.ReadBlock("h", fsops.MaxBlockLength, fsops.MaxBlockLength, alloc); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCopyTree(b *testing.B) {
	root := b.TempDir()
	for i := range 10 {
		for j := range 20 {
			grow(b, root, fmt.Sprintf("src/%d/%d =some text", i, j))
		}
	}
	dst := filepath.Join(root, "dst")
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, host.Copy(b.Context(), filepath.Join(root, "src"), dst, true))
		rig.Must(b, host.Remove(b.Context(), dst, true, false, fsops.FollowLinks))
	}
}

// BenchmarkView works on a file five names below the root, with a rule at each
// end of the way.
func BenchmarkView(b *testing.B) {
	root := tree(b, "a/b/f =text", "a/l -> b")
	v := workspace.view(b, root)
	ops := map[string]func(string) error{
		"OpenRead": func(path string) error {
			fd, err := v.OpenRead(b.Context(), path, fsops.FollowLinks)
			if err == nil {
				err = unix.Close(fd)
			}
			return err
		},
		"Stat": func(path string) error {
			_, err := v.Stat(b.Context(), path, fsops.FollowLinks)
			return err
		},
	}
	for name, op := range ops {
		for _, path := range []string{"a/b/f", "a/l/f"} {
			b.Run(name+"/"+path, func(b *testing.B) {
				path := filepath.Join(root, path)
				b.ReportAllocs()
				for b.Loop() {
					rig.Must(b, op(path))
				}
			})
		}
	}
}
