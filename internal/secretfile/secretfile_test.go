package secretfile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExposed(t *testing.T) {
	t.Parallel()
	me := os.Geteuid()
	dir := t.TempDir()
	for n, tt := range []struct {
		owner   int
		mode    os.FileMode
		exposed bool
	}{
		{me, 0o600, false},
		{me, 0o400, false},
		{me, 0o644, true},
		{me, 0o604, true},
		{me, 0o666, true},
		{me, 0o620, true},
		{me, 0o602, true},
		{me, 0o640, me != 0}, // the group may read a file of root
		{me, 0o440, me != 0},
		{1, 0o644, false}, // a secret that is mounted for a process of another user
		{1, 0o666, false},
	} {
		if tt.owner != me && me != 0 {
			continue
		}
		path := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(path, []byte("secret"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, tt.owner, -1); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, tt.mode); err != nil {
			t.Fatal(err)
		}
		link := path + ".link"
		if err := os.Symlink(path, link); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{path, link} {
			err := Exposed(name)
			if (err != nil) != tt.exposed || err != nil && !strings.HasPrefix(err.Error(), fmt.Sprintf("%s has mode %04o", name, tt.mode)) {
				t.Errorf("mode %04o of user %d: %v", tt.mode, tt.owner, err)
			}
		}
	}
	for _, path := range []string{"", filepath.Join(dir, "missing"), dir, "/dev/null"} {
		if err := Exposed(path); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
}
