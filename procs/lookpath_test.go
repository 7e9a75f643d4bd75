package procs

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestSearch: the elements of PATH are tried in their order, as execvp(3) does
// it; relative ones as they are.
func TestSearch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"a/prog": 0o755, "b/prog": 0o755, "plain/prog": 0o644, "a/other": 0o755} {
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, nil, mode))
	}
	rig.Must(t, os.MkdirAll(filepath.Join(dir, "folder", "prog"), 0o755))
	path := func(elements ...string) []string {
		for i, e := range elements {
			elements[i] = filepath.Join(dir, e)
		}
		return []string{"X=1", "PATH=" + strings.Join(elements, ":"), "PATH=/second"}
	}
	for _, tt := range []struct {
		name    string
		program string
		env     []string
		exec    map[string]error // the result of executing, by the directory below dir
		tried   []string         // these directories, in the order in which exec was called
		want    error
	}{
		{"first", "prog", path("a", "b"), nil, []string{"a"}, nil},
		{"missing before", "prog", path("none", "a/prog/below", "b"), nil, []string{"b"}, nil},
		{"not executable before", "prog", path("plain", "folder", "b"), nil, []string{"b"}, nil},
		{"refused by landlock before", "prog", path("a", "b"), map[string]error{"a": syscall.EACCES}, []string{"a", "b"}, nil},
		{"gone before", "prog", path("a", "b"), map[string]error{"a": syscall.ENOENT}, []string{"a", "b"}, nil},
		{"nowhere", "none", path("a", "b"), nil, nil, syscall.ENOENT},
		{"nowhere executable", "prog", path("plain", "none"), nil, nil, syscall.EACCES},
		{"all refused", "prog", path("a", "none"), map[string]error{"a": syscall.EACCES}, []string{"a"}, syscall.EACCES},
		{"of no format", "prog", path("a", "b"), map[string]error{"a": syscall.ENOEXEC}, []string{"a"}, syscall.ENOEXEC},
		{"empty", "", path("a"), nil, nil, syscall.ENOENT},
		{"with a slash", dir + "/a/prog", path("b"), nil, []string{"a"}, nil},
		{"with a slash, missing", dir + "/none/prog", path("a"), map[string]error{"none": syscall.ENOENT}, []string{"none"}, syscall.ENOENT},
	} {
		var tried []string
		err := Search(tt.program, "", tt.env, func(path string) error {
			rest, _ := strings.CutPrefix(path, dir+"/")
			element, _, _ := strings.Cut(rest, "/")
			tried = append(tried, element)
			return tt.exec[element]
		})
		rig.Is(t, err, tt.want, "%s", tt.name)
		rig.Same(t, tt.name+": tried", tt.tried, tried)
	}
	near := rig.Value(filepath.Rel(rig.Value(os.Getwd()), dir+"/b"))
	var found string
	rig.Must(t, Search("prog", "", []string{"PATH=" + near}, func(path string) error { found = path; return nil }))
	rig.Is(t, found, near+"/prog", "in a relative element")
	rig.Is[error](t, Search("lookpath_test.go", "", []string{"PATH=/none:"}, nil), syscall.EACCES, "in an empty element, this file")
}
