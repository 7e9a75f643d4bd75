package paths

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func TestChanged(t *testing.T) {
	t.Parallel()
	old := time.Now().Add(-time.Hour)
	write := func(path, text string) error {
		return errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chtimes(path, old, old))
	}
	for name, change := range map[string]func(path string) error{
		"":                 func(string) error { return nil },
		"another file":     func(path string) error { return errors.Join(write(path+".new", "text"), os.Rename(path+".new", path)) },
		"another size":     func(path string) error { return write(path, "texts") },
		"another mode":     func(path string) error { return os.Chmod(path, 0o640) },
		"another time":     func(path string) error { return os.Chtimes(path, old, old.Add(time.Second)) },
		"no file any more": os.Remove,
	} {
		path := filepath.Join(t.TempDir(), "file")
		rig.Must(t, write(path, "text"))
		state := Look(path)
		rig.Must(t, change(path))
		rig.Is(t, state.Changed(), (name != ""), "%q: changed", name)
	}

	path := filepath.Join(t.TempDir(), "file")
	missing := Look(path)
	rig.Is(t, missing.Changed(), false, "a missing file has changed")
	rig.Must(t, write(path, "text"))
	rig.Is(t, missing.Changed(), true, "a file that has come has changed")
	state := Look(path)
	state.at = old.Add(settled / 2) // it was new then
	rig.Is(t, state.Changed(), true, "a new file may have changed")
}
