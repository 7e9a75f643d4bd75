//go:build unix

package threadlog_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestOnlyFiles: links, also those that stay in the folder, FIFOs and folders are refused, and
// nobody waits for them.
func TestOnlyFiles(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	other := create(t, s)
	outside := filepath.Join(t.TempDir(), "outside")
	rig.Must(t, os.WriteFile(outside, nil, 0o600))
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	for _, name := range []string{id + ".jsonl", "session_index.jsonl"} {
		file := filepath.Join(dir, name)
		for what, put := range map[string]func() error{
			"a link out of the folder": func() error { return os.Symlink(outside, file) },
			"a link to another thread": func() error { return os.Symlink(other+".jsonl", file) },
			"a link to nothing":        func() error { return os.Symlink("nothing", file) },
			"a FIFO":                   func() error { return syscall.Mkfifo(file, 0o600) },
			"a folder":                 func() error { return os.Mkdir(file, 0o700) },
		} {
			rig.Must(t, put())
			errs := map[string]error{}
			if name == "session_index.jsonl" {
				_, errs["Names"] = s.Names()
				_, errs["Find"] = s.Find("x")
				errs["SetName"] = s.SetName(other, "x")
			} else {
				_, errs["Open"] = s.Open(id)
				_, errs["Fork"] = s.Fork(id, 0)
				_, errs["History"] = readAll(s, id)
				errs["SetName"] = s.SetName(id, "x")
			}
			for method, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "is not a regular file") {
					t.Errorf("%s of %s: %v", method, what, err)
				}
			}
			rig.Must(t, os.Remove(file))
		}
	}
	rig.Is(t, len(must[[]byte](t)(os.ReadFile(outside))), 0, "the file outside was written")
	rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, "nothing"))), fs.ErrNotExist, "what a link names")
}
