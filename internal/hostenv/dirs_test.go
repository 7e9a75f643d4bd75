package hostenv

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func lookup(pairs map[string]string) LookupEnv {
	return func(name string) (string, bool) {
		v, ok := pairs[name]
		return v, ok
	}
}

func TestHomeDir(t *testing.T) {
	t.Parallel()
	database := currentUser().Home
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"HOME": "/home/u"}, "/home/u"},
		{map[string]string{"HOME": "/tmp/../x//y/"}, "/x/y"},
		{map[string]string{"HOME": "/nonexistent"}, "/nonexistent"},
		{map[string]string{"HOME": "rel/x"}, ""},
		{map[string]string{"HOME": ""}, database},
		{nil, database},
	} {
		rig.Is(t, HomeDir(lookup(tt.env)), tt.want, "HomeDir(%v)", tt.env)
	}
}

func TestCodexHomeOfUser(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	rig.Must(t, os.Symlink(dir, dir+"/link"))
	for _, tt := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"CODEX_HOME": dir + "/link", "HOME": "/h"}, dir},
		{map[string]string{"CODEX_HOME": dir + "/none/"}, dir + "/none"},
		{map[string]string{"CODEX_HOME": "", "HOME": "/h"}, "/h/.codex"},
		{map[string]string{"HOME": "rel"}, ""},
	} {
		rig.Is(t, CodexHome(lookup(tt.env)), tt.want, "CodexHome(%v)", tt.env)
	}
}

func TestTempDir(t *testing.T) {
	t.Parallel()
	cwd, err := os.Getwd()
	rig.Must(t, err)
	for _, tt := range []struct {
		env  map[string]string
		want string
		list []string
	}{
		{nil, "/tmp", nil},
		{map[string]string{"TMPDIR": ""}, "/tmp", nil},
		{map[string]string{"TMP": "/a", "TEMP": "/b"}, "/tmp", nil},
		{map[string]string{"TMPDIR": "/srv/t/"}, "/srv/t", []string{"/srv/t"}},
		{map[string]string{"TMPDIR": "/a//b/../c"}, "/a/c", []string{"/a/c"}},
		{map[string]string{"TMPDIR": "rel"}, filepath.Join(cwd, "rel"), []string{filepath.Join(cwd, "rel")}},
	} {
		rig.Is(t, TempDir(lookup(tt.env)), tt.want, "TempDir(%v)", tt.env)
		rig.Same(t, fmt.Sprintf("TemporaryDirectories(%v)", tt.env), tt.list, TemporaryDirectories(lookup(tt.env)))
	}
}

func TestProviderID(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	rig.Must(t, err)
	id := ProviderID(self)
	rig.Is(t, regexp.MustCompile(`^sha256:[0-9a-f]{64}$`).MatchString(id), true, "%q is a sum", id)
	text, err := os.ReadFile(self)
	rig.Must(t, err)
	moved := filepath.Join(t.TempDir(), "copy")
	rig.Must(t, rig.WriteProgram(moved, text))
	rig.Must(t, os.Chtimes(moved, time.Time{}, time.Unix(1, 0)))
	rig.Is(t, ProviderID(moved), id, "a copy has")
	rig.Is(t, ProviderID("/bin/sh") == id, false, "another program has the same id")
	rig.Is(t, len(ProviderID("/nonexistent")), len(id), "the length without a file")
}

func BenchmarkProviderID(b *testing.B) {
	self, err := os.Executable()
	rig.Must(b, err)
	b.ReportAllocs()
	for b.Loop() {
		ProviderID(self)
	}
}

func BenchmarkShell(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Shell(os.LookupEnv)
	}
}
