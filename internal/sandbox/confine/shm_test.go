package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestShmSwept: agents that start at the same time do not take each other's new directories away.
func TestShmSwept(t *testing.T) {
	t.Parallel()
	swept := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(swept)
		for {
			select {
			case <-done:
				return
			default:
				sweepShm(shmDir)
			}
		}
	}()
	for range 500 {
		dir, free, err := makeShm(shmDir)
		if err != nil {
			t.Error(err)
			break
		}
		if dir == "" {
			t.Skip("there is no /dev/shm that can be written")
		}
		rig.Check(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
		free()
		rig.Is[error](t, rig.Err(os.Lstat(dir)), os.ErrNotExist, "the directory")
	}
	close(done)
	<-swept
}

// TestRemoveShm: whatever a command has made in its /dev/shm is removed.
func TestRemoveShm(t *testing.T) {
	t.Parallel()
	parent, err := os.MkdirTemp("/dev/shm", "remove")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { os.RemoveAll(parent) })
	dir := filepath.Join(parent, "shm")
	for _, name := range []string{"", "closed", "closed/below", "moved-0", "moved-0/moved-1"} {
		rig.Must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	for _, name := range []string{"file", "closed/file", "closed/below/file", "moved-0/moved-1/file"} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), nil, 0))
	}
	rig.Must(t, os.Symlink("/", filepath.Join(dir, "closed/root")))
	// Each round puts what was there so far into a new directory: the paths get too
	// long for the kernel.
	for i := range unix.PathMax {
		in := filepath.Join(dir, "in")
		rig.Must(t, os.Mkdir(in, 0o700))
		if i > 0 {
			rig.Must(t, os.Rename(filepath.Join(dir, "deep"), filepath.Join(in, fmt.Sprint(i))))
		}
		rig.Must(t, os.Rename(in, filepath.Join(dir, "deep")))
	}
	for _, name := range []string{"closed/below", "closed", ""} {
		rig.Must(t, os.Chmod(filepath.Join(dir, name), 0))
	}
	rig.Check(t, removeShm(dir))
	rig.Is[error](t, rig.Err(os.Lstat(dir)), os.ErrNotExist, "the directory")
}
