package egress

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// TestTrustFileChanged: whatever commands that may write there make of the file of trusted roots
// and its directory, it is as it was at the next start, and nothing else is written, waited for
// or read.
func TestTrustFileChanged(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	var trusted trust
	authority, path, err := trusted.get()
	rig.Must(t, err)
	trusted.sweeping.Wait() // else it could take the folders that come now
	killed := filepath.Dir(path) + "-killed"
	filled := filepath.Dir(path) + "-filled"
	rig.Must(t, os.Mkdir(killed, 0o700), os.WriteFile(filepath.Join(killed, trustFile), nil, 0o444))
	rig.Must(t, os.MkdirAll(filepath.Join(filled, "by a command"), 0o700))
	var second trust
	rig.Is(t, second.folder() != filepath.Dir(path), true, "two agents have one folder")
	second.sweeping.Wait()
	rig.Is[error](t, rig.Err(os.Stat(killed)), os.ErrNotExist, "the folder of a killed agent")
	rig.Must(t, rig.Err(os.Stat(filled+"/by a command"))) // it may hold very much
	rig.Must(t, second.close())
	rig.Is[error](t, rig.Err(os.Stat(second.path)), os.ErrNotExist, "the folder of an agent that has ended")
	defer trusted.close()
	var hurried sync.WaitGroup // each takes new folders of the others for those of killed agents
	for range 8 {
		hurried.Go(func() {
			for range 100 {
				one := trust{authority: authority}
				_, _, err := one.get()
				rig.Check(t, err, one.close())
			}
		})
	}
	hurried.Wait()
	other := filepath.Join(t.TempDir(), "other")
	rig.Must(t, os.WriteFile(other, []byte("theirs"), 0o600))
	for _, tt := range []struct {
		name   string
		change func() error
	}{
		{"other bytes", func() error { return os.WriteFile(path, []byte("other"), 0o600) }},
		{"a file that memory is too small for", func() error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, 1<<43)) }},
		{"a fifo", func() error { return unix.Mkfifo(path, 0o600) }},
		{"a link", func() error { return os.Symlink(other, path) }},
		{"an endless file", func() error { return os.Symlink("/dev/zero", path) }},
		{"a directory", func() error { return os.MkdirAll(filepath.Join(path, "in"), 0o700) }},
		{"a link in wait", func() error { return os.Symlink(other, path+".new") }},
		{"another place", func() error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+"-moved") }},
		{"a link in the place of the directory", func() error {
			dir := filepath.Dir(path)
			return errors.Join(os.Rename(dir, dir+"-away"), os.Symlink(filepath.Dir(other), dir))
		}},
	} {
		rig.Must(t, os.Remove(path), tt.change())
		_, path, err = trusted.get()
		rig.Must(t, err)
		st, err := os.Lstat(path)
		rig.Must(t, err)
		rig.Is(t, st.Mode().Type(), 0, "%s: the type of the file", tt.name)
		rig.Is(t, string(rig.Value(os.ReadFile(path))), string(authority.Bundle()), "%s: the file has", tt.name)
		rig.Is(t, string(rig.Value(os.ReadFile(other))), "theirs", "%s: another file has", tt.name)
	}
}
