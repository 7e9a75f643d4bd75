package secretfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

const stranger = 4321

// make makes an entry with an owner and a mode. It skips the test if this user cannot.
func give(t *testing.T, path string, uid, gid int, mode os.FileMode) {
	t.Helper()
	if err := errors.Join(os.Lchown(path, uid, gid), os.Chmod(path, mode)); err != nil {
		t.Skip(err)
	}
}

func write(t *testing.T, path string, uid, gid int, mode os.FileMode) string {
	t.Helper()
	rig.Must(t, os.WriteFile(path, []byte("secret"), 0o600))
	give(t, path, uid, gid, mode)
	return path
}

const fine, warned, refused = "fine", "warned", "refused"

// verdict is what Check finds, and with which words.
func verdict(path string) (string, string) {
	switch warning, err := check(path); {
	case err != nil && warning != "":
		return "both", warning + err.Error()
	case err != nil:
		return refused, err.Error()
	case warning != "":
		return warned, warning
	}
	return fine, ""
}

func TestFile(t *testing.T) {
	t.Parallel()
	me := os.Geteuid()
	dir := t.TempDir()
	for n, tt := range []struct {
		uid, gid int
		mode     os.FileMode
		want     string
		words    string // with the path before them
	}{
		{me, -1, 0o600, fine, ""},
		{me, -1, 0o400, fine, ""},
		{me, -1, 0o644, warned, " has mode 0644: others can read it (run chmod "},
		{me, -1, 0o604, warned, " has mode 0604: others can read it (run chmod "},
		{me, -1, 0o666, refused, " is refused: it has mode 0666, so others can change it (run chmod go-w)"},
		{me, 7, 0o620, refused, " is refused: it has mode 0620, so others can change it (run chmod go-w)"},
		{me, -1, 0o602, refused, " is refused: it has mode 0602, so others can change it (run chmod go-w)"},
		{0, 7, 0o640, fine, ""}, // given to the group
		{0, 7, 0o644, warned, " has mode 0644: others can read it (run chmod o-r)"},
		{stranger, -1, 0o600, refused, fmt.Sprintf(" is refused: it belongs to uid %d, who can change it (run chown %d)", stranger, me)},
	} {
		t.Run(fmt.Sprintf("%d of %d %04o", tt.uid, tt.gid, tt.mode), func(t *testing.T) {
			path := write(t, filepath.Join(dir, fmt.Sprint(n)), tt.uid, tt.gid, tt.mode)
			link := path + ".link"
			rig.Must(t, os.Symlink(path, link))
			for _, name := range []string{path, link} {
				if got, words := verdict(name); got != tt.want || got != fine && !strings.HasPrefix(words, name+tt.words) {
					t.Errorf("%s, %s", got, words)
				}
			}
		})
	}
	for _, path := range []string{"", filepath.Join(dir, "missing"), filepath.Join(dir, "missing", "file"), dir, "/dev/null"} {
		got, words := verdict(path)
		rig.Is(t, got, fine, "%q: %s", path, words)
	}
}

// TestPrivateGroup: where each user has a group, the usual umask lets it write.
func TestPrivateGroup(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		uid, gid int
		want     bool
	}{{stranger, stranger, true}, {stranger, 100, false}, {0, 0, false}} {
		path := write(t, filepath.Join(t.TempDir(), "file"), tt.uid, tt.gid, 0o660)
		info, err := os.Stat(path)
		rig.Must(t, err)
		rig.Is(t, private(info), tt.want, "of %d and %d: private", tt.uid, tt.gid)
		rig.Is(t, writable(info), !tt.want, "of %d and %d: writable", tt.uid, tt.gid)
	}
}

// TestFolder: somebody who may write one of the folders or links on the way chooses the secret.
func TestFolder(t *testing.T) {
	t.Parallel()
	me, top := os.Geteuid(), t.TempDir()
	mkdir := func(name string, uid int, mode os.FileMode) {
		t.Helper()
		path := filepath.Join(top, name)
		rig.Must(t, os.Mkdir(path, 0o700))
		give(t, path, uid, -1, mode)
	}
	link := func(target, name string, uid int) {
		t.Helper()
		path := filepath.Join(top, name)
		rig.Must(t, errors.Join(os.Symlink(target, path), os.Lchown(path, uid, -1)))
	}
	mkdir("own", me, 0o755)
	mkdir("open", me, 0o777)
	mkdir("open/inner", me, 0o700)
	mkdir("sticky", me, 0o777|os.ModeSticky)
	mkdir("sticky/own", me, 0o700)
	mkdir("theirs", stranger, 0o755)
	for _, dir := range []string{"own", "open", "open/inner", "sticky", "sticky/own", "theirs"} {
		write(t, filepath.Join(top, dir, "file"), me, -1, 0o600)
	}
	link("own/../own/./file", "relative", me)
	link(filepath.Join(top, "own"), "absolute", me)
	link("../own/file", "open/out", me)
	link("open/inner", "into", me)
	link("../own/file", "sticky/planted", stranger)
	link("../own/file", "sticky/mine", me)
	link("loop", "loop", me)
	for path, want := range map[string]string{
		"own/file": fine, "relative": fine, "absolute/file": fine, "sticky/file": fine, "sticky/own/file": fine, "sticky/mine": fine, "loop": fine,
		"open/file":       fmt.Sprintf("the folder %s/open has mode 0777, so others can replace files in it (run chmod go-w %[1]s/open)", top),
		"open/inner/file": "the folder", "open/out": "the folder", "into/file": "the folder",
		"theirs/file":    fmt.Sprintf("the folder %s/theirs belongs to uid %d, who can replace files in it", top, stranger),
		"sticky/planted": fmt.Sprintf("%s/sticky/planted belongs to uid %d, who can replace it", top, stranger),
	} {
		got, words := verdict(filepath.Join(top, path))
		rig.Is(t, got == want || got == refused && strings.Contains(words, want), true, "%s: %s, %s: as it has to be", path, got, words)
	}
}
