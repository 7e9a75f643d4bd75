package confine

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
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
				sweepShm()
			}
		}
	}()
	for range 500 {
		dir, free, err := makeShm()
		if err != nil {
			t.Error(err)
			break
		}
		if dir == "" {
			t.Skip("there is no /dev/shm that can be written")
		}
		if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
			t.Error(err)
		}
		free()
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("the directory: %v", err)
		}
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
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"file", "closed/file", "closed/below/file", "moved-0/moved-1/file"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/", filepath.Join(dir, "closed/root")); err != nil {
		t.Fatal(err)
	}
	// Each round puts what was there so far into a new directory: the paths get too
	// long for the kernel.
	for i := range unix.PathMax {
		in := filepath.Join(dir, "in")
		if err := os.Mkdir(in, 0o700); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			if err := os.Rename(filepath.Join(dir, "deep"), filepath.Join(in, fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Rename(in, filepath.Join(dir, "deep")); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"closed/below", "closed", ""} {
		if err := os.Chmod(filepath.Join(dir, name), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeShm(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !os.IsNotExist(err) {
		t.Errorf("the directory: %v", err)
	}
}
