package fsops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

var limits = fsops.WalkOptions{MaxDepth: 10, MaxDirectories: 100, MaxEntries: 1000}

// walk returns a result in one line: entries, directories with a slash, then
// errors in brackets, then "..." if it is truncated.
func walk(t testing.TB, root, path string, o fsops.WalkOptions) (string, error) {
	t.Helper()
	res, err := host.Walk(t.Context(), filepath.Join(root, path), o)
	var out []string
	for _, e := range res.Entries {
		rel, _ := filepath.Rel(root, e.Path)
		if e.IsDirectory {
			rel += "/"
		}
		out = append(out, rel)
	}
	for _, e := range res.Errors {
		rel, _ := filepath.Rel(root, e.Path)
		out = append(out, fmt.Sprintf("[%s: %v]", rel, e.Err))
	}
	if res.Truncated {
		out = append(out, "...")
	}
	return strings.Join(out, " "), err
}

// TestWalk: the results wanted are those of the reference.
func TestWalk(t *testing.T) {
	t.Parallel()
	root := tree(t, "t/a/1", "t/b/2", "t/c/3", "t/c/d/4", "t/c/d/e/5", "t/z", "t/la -> a", "t/lz -> z",
		"t/ld -> nowhere", "t/self -> .", "t/ff |", "t/.h/x", "t/.hf", "tl -> t", "f =f", "fl -> f", "dl -> nope", "lp -> lp")
	outcomes := map[string]error{"ok": nil, "ENOENT": unix.ENOENT, "ELOOP": unix.ELOOP, "invalid": invalid}
	for _, row := range rig.Rows(t, "testdata/walks.txt", "walk", 4) {
		o := limits
		rig.Must(t, json.Unmarshal([]byte(row[1]), &o))
		got, err := walk(t, root, row[0], o)
		checkErr(t, err, outcomes[row[2]])
		rig.Is(t, got, row[3], "%s %s", row[0], row[1])
	}
}

// TestWalkAliases: a directory is entered once, under the first name that leads
// to it.
func TestWalkAliases(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/walks.txt", "aliases", 3) {
		o := limits
		o.FollowDirectoryLinks = true
		rig.Must(t, json.Unmarshal([]byte(row[1]), &o))
		rig.Is(t, rig.Value(walk(t, tree(t, strings.Split(row[0], ", ")...), "t", o)), row[2], "%s", row[0])
	}
}

func TestWalkNames(t *testing.T) {
	t.Parallel()
	root := tree(t, "t/ok", "t/\xff", "t/a\xffb", "t/d\xff/in", "t/l\xff -> ok", "t/p\xff |", "u\xff/f")
	const bad = ": file name is not UTF-8]"
	want := "t/ok [t/a\ufffdb" + bad + " [t/d\ufffd" + bad + " [t/l\ufffd" + bad + " [t/p\ufffd" + bad + " [t/\ufffd" + bad
	rig.Is(t, rig.Value(walk(t, root, "t", limits)), want, "")
	o := limits
	o.MaxEntries = 2
	want = "[t/a\ufffdb" + bad + " [t/d\ufffd" + bad + " ..."
	rig.Is(t, rig.Value(walk(t, root, "t", o)), want, "")
	rig.Is(t, rig.Value(walk(t, root, "u\xff", limits)), "u\xff/f", "root with a bad name")
	if got, err := host.Walk(t.Context(), "/", fsops.WalkOptions{MaxDirectories: 1, MaxEntries: 1000}); err != nil ||
		len(got.Entries) == 0 || strings.HasPrefix(got.Entries[0].Path, "//") {
		t.Errorf("walk of /: %+v, %v", got, err)
	}
}

// TestWalkLargeDirectory: of a directory with more names than the limit the
// first in order are listed, whatever the order of the file system.
func TestWalkLargeDirectory(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 300 {
		grow(t, root, fmt.Sprintf("%03d", i))
	}
	o := limits
	o.MaxEntries = 3
	rig.Is(t, rig.Value(walk(t, root, "", o)), "000 001 002 ...", "")
}

func TestWalkSize(t *testing.T) {
	t.Parallel()
	root := tree(t, "t/a", "t/b\xff", "t/c", "t/d/e")
	for most, want := range map[int]string{
		4: "t/a t/c t/d/ [t/b\ufffd: file name is not UTF-8] ...",
		5: "t/a t/c t/d/ t/d/e [t/b\ufffd: file name is not UTF-8]",
		1: "t/a ...",
		2: "t/a [t/b\ufffd: file name is not UTF-8] ...",
	} {
		o := limits
		var calls []string
		o.Size = func(path string, err error) int {
			calls = append(calls, fmt.Sprint(filepath.Base(path), err != nil))
			return fsops.MaxWalkSize / most
		}
		rig.Is(t, rig.Value(walk(t, root, "t", o)), want, "room for %d", most)
		all := []string{"afalse", "b\ufffdtrue", "cfalse", "dfalse", "efalse"}
		rig.Is(t, strings.Join(calls, " "), strings.Join(all[:min(most+1, 5)], " "), "room for %d: Size was called for", most)
	}
}

func TestWalkCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	root := tree(t, "a/b/c/d")
	o := limits
	o.Size = func(path string, err error) int {
		if strings.HasSuffix(path, "/b") {
			cancel()
		}
		if strings.HasSuffix(path, "/c") {
			t.Error("the walk went on")
		}
		return 1
	}
	rig.Is(t, rig.Err(host.Walk(ctx, root, o)), context.Canceled, "error")
}

func TestWalkNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "t/a/1", "t/b/2", "t/c/3", "t/d/x", "t/d/y/", "t/lb -> b")
	for path, mode := range map[string]os.FileMode{"b": 0, "c": 0o100, "d": 0o600} {
		path := filepath.Join(root, "t", path)
		rig.Must(t, os.Chmod(path, mode))
		t.Cleanup(func() { _ = os.Chmod(path, 0o700) })
	}
	const denied = ": permission denied]"
	for _, tt := range []struct {
		path   string
		follow bool
		want   string
		err    error
	}{
		{path: "t", want: "t/a/ t/b/ t/c/ t/d/ t/a/1 [t/b" + denied + " [t/c" + denied + " [t/d/x" + denied + " [t/d/y" + denied},
		{path: "t", follow: true, want: "t/a/ t/b/ t/c/ t/d/ t/lb/ t/a/1 [t/b" + denied + " [t/c" + denied + " [t/d/x" + denied + " [t/d/y" + denied},
		{path: "t/b", want: "[t/b" + denied},
		{path: "t/d", want: "[t/d/x" + denied + " [t/d/y" + denied},
		{path: "t/b/x", err: unix.EACCES},
	} {
		o := limits
		o.FollowDirectoryLinks = tt.follow
		got, err := walk(t, root, tt.path, o)
		checkErr(t, err, tt.err)
		rig.Is(t, got, tt.want, "%s, follow %v", tt.path, tt.follow)
	}
}
