package paths

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	rig.Must(t, errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink("file", link), syscall.Mkfifo(fifo, 0o600)))
	for _, path := range []string{file, link} {
		if text, err := ReadRegular(path, 4); string(text) != "text" || err != nil {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	if text, err := ReadRegular(file, 3); text != nil || !errors.Is(err, LimitError(3)) || err.Error() != file+" is longer than 3 bytes" {
		t.Errorf("more than the limit: %q, %v", text, err)
	}
	for _, path := range []string{fifo, dir, os.DevNull} {
		if text, err := ReadRegular(path, 4); text != nil || !errors.Is(err, ErrNotRegular) || err.Error() != path+" is not a regular file" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
	}
	rig.Is(t, rig.Err(ReadRegular(filepath.Join(dir, "missing"), 4)), fs.ErrNotExist, "")
	if _, _, err := OpenRegular(link, syscall.O_NOFOLLOW); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("a link that is not to be followed: %v", err)
	}
}

// TestEndless: a file of the kernel that never ends does not hold the program up.
func TestEndless(t *testing.T) {
	t.Parallel()
	const endless = "/proc/kmsg"
	if f, err := os.OpenFile(endless, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		t.Skip(err)
	} else {
		_ = f.Close()
	}
	link := filepath.Join(t.TempDir(), "config.toml")
	rig.Must(t, os.Symlink(endless, link))
	if text, err := ReadRegular(link, 1<<30); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}
