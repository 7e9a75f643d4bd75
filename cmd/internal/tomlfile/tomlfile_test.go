package tomlfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRead: only what nobody else can have written is read, and not more than the limit.
func TestRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		rig.Must(t, errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)))
		return path
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	rig.Must(t, errors.Join(os.Symlink("own", link), syscall.Mkfifo(fifo, 0o600)))
	for _, tt := range []struct{ path, others, want string }{
		{write("own", "text", 0o600), "", ""},
		{write("readable", "text", 0o644), "has mode 0644", ""},
		{link, "", ""},
		{write("group", "text", 0o660), "", " has mode 0660: others can write it, and do harm (chmod go-w " + dir + "/group)"},
		{write("all", "text", 0o602), "", " has mode 0602: others can write it, and do harm (chmod go-w " + dir + "/all)"},
		{write("long", "texts", 0o600), "", " is longer than 4 bytes"},
		{fifo, "", " is not a regular file"},
		{dir, "", " is not a regular file"},
		{os.DevNull, "", " is not a regular file"},
	} {
		text, others, err := Read(tt.path, 4, "do harm")
		switch {
		case tt.want == "" && (err != nil || text != "text" || others != tt.others):
			t.Errorf("%s: %q, %q, %v", tt.path, text, others, err)
		case tt.want != "" && (err == nil || err.Error() != tt.path+tt.want):
			t.Errorf("%s: %v", tt.path, err)
		}
	}
	if _, _, err := Read(filepath.Join(dir, "missing"), 4, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	theirs := write("theirs", "text", 0o600)
	if err := os.Chown(theirs, 4321, -1); err != nil {
		t.Skip(err)
	}
	if _, _, err := Read(theirs, 4, "do harm"); err == nil || err.Error() != theirs+" belongs to user 4321, who could do harm" {
		t.Error(err)
	}
}

// TestParse: what is wrong is told with its line, the first one first, and without the text.
func TestParse(t *testing.T) {
	t.Parallel()
	const secret = "s3cret"
	for text, want := range map[string]string{
		"a = 1\nb = '" + secret:          "file:2: not TOML, after the key b",
		"[a]\n[a]\nx = '" + secret + "'": "file:2: this table or key is defined twice",
		"a = 1\na = '" + secret + "'":    "file:2: this table or key is defined twice",
		"a = '" + secret + "'\n[a]\n":    "file:2: this table or key is defined twice",
		"[a]\nb = 1\nb.c = 2":            "file:3: this table or key is defined twice",
		secret + "==\n":                  "file:1: not TOML",
		"\xff" + secret:                  "file is not UTF-8",
		"a = [[[[[[[[[1]]]]]]]]]":        "file is nested deeper than 8",
	} {
		_, _, err := Parse("file", text)
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", text, err)
		}
	}
	d, values, err := Parse("file", "[t]\nx = 1\n\n[t.u]\ny = [1,\n2]\nz = 'z'")
	rig.Must(t, err)
	table := d.Table("t", values["t"])
	inner := d.Table("u", table["u"])
	if d.Err() != nil || d.Line(table["x"]) != 2 || d.Line(inner["z"]) != 7 {
		t.Errorf("%v, %d, %d", d.Err(), d.Line(table["x"]), d.Line(inner["z"]))
	}
	d.Fail(inner["z"], "z")
	if _, ok := As[string](d, "x", "a string", table["x"]); ok || d.Err() == nil || d.Err().Error() != "file:2: x is not a string" {
		t.Error(d.Err())
	}
	d.Fail(inner["y"], "y")
	rig.Is(t, d.Err().Error(), "file:2: x is not a string", "the error")
}

// FuzzParse: whatever a file has, each of its values has a line in it, or none.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{"", "a = 1", "[t]\nx = [1, 2]\n[t.u]\ny.z = 'a'", "[[a]]\nb = 1\n[[a]]\nb = 2", "a = {b = 1}", "a = \"\"\"\n\"\"\"", "a = [", "a.b.c = 1979-05-27"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<12 {
			return
		}
		d, values, err := Parse("file", text)
		if err != nil {
			return
		}
		lines := strings.Count(text, "\n") + 1
		for key, at := range values {
			line := d.Line(at)
			rig.Is(t, line >= 0 && line <= lines, true, "%q is in line %d of %d", key, line, lines)
			d.Any(at)
			d.Table(key, at)
		}
	})
}
