package paths

import (
	"errors"
	"fmt"
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
		rig.Is(t, string(rig.Value(ReadRegular(path, 4))), "text", "%s", path)
	}
	refused := func(path string, limit int64, want error) {
		text, err := ReadRegular(path, limit)
		rig.Is(t, err, want, "%s", path)
		rig.Is(t, fmt.Sprint(string(text), err), path+" "+want.Error(), "text and error")
	}
	refused(file, 3, LimitError(3))
	for _, path := range []string{fifo, dir, os.DevNull} {
		refused(path, 4, ErrNotRegular)
	}
	rig.Is(t, rig.Err(ReadRegular(filepath.Join(dir, "missing"), 4)), fs.ErrNotExist, "")
	_, _, err := OpenRegular(link, syscall.O_NOFOLLOW)
	rig.Is[error](t, err, syscall.ELOOP, "a link that is not to be followed")
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
	rig.Is(t, rig.Err(ReadRegular(link, 1<<30)), os.ErrDeadlineExceeded, "")
}
