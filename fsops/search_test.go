package fsops_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

var search = fsops.SearchOptions{MaxMatches: 1000, MaxFiles: 1000, MaxDepth: 10, MaxLine: 100, Time: time.Minute}

// TestSearchIgnoresAsGit: git and a search of the same tree find the same files.
func TestSearchIgnoresAsGit(t *testing.T) {
	t.Parallel()
	root := tree(t)
	for _, file := range rig.Sections(t, "testdata/ignore.txt") {
		for line := range strings.SplitSeq(strings.TrimSpace(file.Text), "\n") {
			path := filepath.Join(root, file.Name)
			if file.Name == "tree" {
				path = filepath.Join(root, line)
			}
			rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o777), os.WriteFile(path, []byte(file.Text), 0o666))
		}
	}
	git := func(args ...string) string {
		args = append([]string{"-C", root, "-c", "core.excludesFile=/dev/null"}, args...)
		return string(rig.Value(rig.Command(t, "git", args...).Output()))
	}
	git("init", "-q")
	want := strings.Split(strings.Trim(git("ls-files", "-z", "--others", "--exclude-standard"), "\x00"), "\x00")
	o := search
	o.Hidden, o.Kind = true, "file"
	var got []string
	for _, f := range rig.Value(host.Search(t.Context(), root, o)).Files {
		got = append(got, strings.TrimPrefix(f.Path, root+"/"))
	}
	slices.Sort(want)
	rig.Same(t, "what git does not ignore", want, got)
}

// TestSearchEnds: neither an expression, nor a file, nor a tree holds a search up beyond its time.
func TestSearchEnds(t *testing.T) {
	t.Parallel()
	root := tree(t, "line ="+strings.Repeat("x", 1<<20))
	o := search
	o.Pattern, o.Time = strings.Repeat("x{900}y?", 5)+"[zw]", 50*time.Millisecond
	r := rig.Value(host.Search(t.Context(), root, o))
	rig.Is(t, r.Truncated, fsops.SearchedTime, "the bound")
	rig.Is(t, len(r.Files), 0, "files")
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // before the search begins
	rig.Is(t, rig.Err(host.Search(ctx, root, search)), context.Canceled, "a search that nobody waits for")
}
