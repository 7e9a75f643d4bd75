package secretfile

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestHide: what a renewal can touch is hidden, as far as it is for secrets alone.
func TestHide(t *testing.T) {
	t.Parallel()
	top, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	make := func(path, text string, mode os.FileMode) {
		t.Helper()
		path = filepath.Join(top, path)
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), mode)))
	}
	link := func(target, path string) {
		t.Helper()
		path = filepath.Join(top, path)
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)))
	}
	make("own/key", "", 0o600)
	make("tools/key", "", 0o600)
	make("tools/tool", "", 0o700)
	make("big/key", "", 0o600)
	make("big/file", strings.Repeat("x", maxSize+1), 0o600)
	make("switched/g1/k", "", 0o600)
	link("g1", "switched/cur")
	make("live/archive/a/key1", "", 0o600)
	link("../../archive/a/key1", "live/live/a/key")
	make("used/key", "", 0o600)
	make("used/ca", "", 0o600)
	make("open/key", "", 0o600)
	make("kube/..2026/sub/key", "", 0o600)
	link("..2026", "kube/..data")
	link("..data/sub", "kube/sub")
	link("kube/sub/key", "into")
	make("tool", "", 0o700) // so the top is no folder for secrets
	rig.Must(t, os.Chmod(filepath.Join(top, "open"), 0o777))
	for path, want := range map[string]struct{ files, folders string }{
		"own/key":         {"own/key", "own"},
		"own/missing":     {"own/missing", "own"},
		"tools/key":       {"tools/key", ""},
		"big/key":         {"big/key", ""},
		"switched/cur/k":  {"switched/cur/k switched/g1/k", "switched switched/g1"},
		"live/live/a/key": {"live/archive/a/key1 live/live/a/key", "live/archive live/archive/a live/live/a"},
		"used/key":        {"used/key", ""},
		"open/key":        {"open/key", ""},
		"into":            {"into kube kube/..2026/sub/key", "kube kube/..2026 kube/..2026/sub"},
	} {
		files, folders := Hide(filepath.Join(top, path), []string{filepath.Join(top, "used/ca")})
		below := func(paths []string) string { return strings.ReplaceAll(strings.Join(paths, " "), top+"/", "") }
		rig.Is(t, below(files), want.files, "%s: files", path)
		rig.Is(t, below(folders), want.folders, "%s: folders", path)
	}
	for _, folder := range []string{"/", "/tmp", "/etc", "/root", "/home/somebody", "/usr/lib", "/run"} {
		rig.Is(t, alone(folder, nil), false, "%s is for secrets alone", folder)
	}
}

func TestUsed(t *testing.T) {
	t.Parallel()
	used := Used([]string{"HOME=/h", "PATH=/p/one:/p/two/", "AGENT_TLS_CERT=/s/crt", "KEY=/s/key", "URL=http://x/y", "CREDENTIALS_DIRECTORY=/c"}, []string{"/s/key"})
	rig.Same(t, "the first", []string{"/h", "/p/one", "/p/two"}, used[:3])
	rig.Is(t, slices.Contains(used, "/s/crt"), false, "%q has a secret", used)
}
