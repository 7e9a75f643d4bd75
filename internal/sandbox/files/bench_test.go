package files

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

func BenchmarkFilesOpenRead(b *testing.B) {
	benchmark(b, func(f *FS, dir string) error {
		fd, err := f.OpenRead(b.Context(), dir+"/file", fsops.FollowLinks)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func BenchmarkFilesOpenWrite(b *testing.B) {
	benchmark(b, func(f *FS, dir string) error {
		fd, err := f.OpenWrite(b.Context(), dir+"/new", fsops.Writing{})
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
}

func BenchmarkFilesStat(b *testing.B) {
	benchmark(b, func(f *FS, dir string) error {
		return rig.Err(f.Stat(b.Context(), dir+"/file", fsops.FollowLinks))
	})
}

// BenchmarkFilesOfPool is what every request pays before its operation.
func BenchmarkFilesOfPool(b *testing.B) {
	pool, policy, _ := benchPool(b)
	asked := WithKey(policy, "")
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, rig.Err(pool.FilesOf(b.Context(), asked)))
	}
}

// BenchmarkFirstRequest starts a helper and has it serve one request.
func BenchmarkFirstRequest(b *testing.B) {
	_, policy, dir := benchPool(b)
	b.ReportAllocs()
	for b.Loop() {
		pool := NewPool(Config{})
		f := rig.Value(pool.Files(b.Context(), policy))
		rig.Must(b, rig.Err(f.Stat(b.Context(), dir+"/file", fsops.FollowLinks)))
		b.StopTimer()
		pool.Close()
		b.StartTimer()
	}
}

func benchmark(b *testing.B, do func(f *FS, dir string) error) {
	pool, policy, dir := benchPool(b)
	f := rig.Value(pool.Files(b.Context(), policy))
	if err := do(f, dir); err != nil { // starts the helper
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		rig.Must(b, do(f, dir))
	}
}

// benchPool is a pool, a policy that takes a helper for all, and a directory
// that it lets be written.
func benchPool(b *testing.B) (*Pool, *sandbox.Policy, string) {
	dir := b.TempDir()
	rig.Must(b, os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o666))
	pool := NewPool(Config{})
	b.Cleanup(pool.Close)
	return pool, workspace(b, dir), dir
}
