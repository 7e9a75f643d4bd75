package fsops_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/inotify"
	"github.com/execagent/execagent/test/rig"
)

// inotifies is the inotify instance of all tests.
var inotifies inotify.Group

// TestWatchMissing: what ends a watch, and what does not, is as in the
// reference.
func TestWatchMissing(t *testing.T) {
	t.Parallel()
	run := func(f func(a, b string) error, a, b string) func(t *testing.T, root string) {
		return func(t *testing.T, root string) {
			t.Helper()
			rig.Must(t, f(filepath.Join(root, a), filepath.Join(root, b)))
		}
	}
	grows := func(lines ...string) func(*testing.T, string) {
		return func(t *testing.T, root string) { t.Helper(); grow(t, root, lines...) }
	}
	removes := func(name string) func(*testing.T, string) {
		return run(func(a, _ string) error { return os.RemoveAll(a) }, name, "")
	}
	chmods := func(name string) func(*testing.T, string) {
		return run(func(a, _ string) error { return os.Chmod(a, 0o700) }, name, "")
	}
	touches := func(name string) func(*testing.T, string) {
		return run(func(a, _ string) error { return os.Chtimes(a, time.Time{}, time.Unix(1, 0)) }, name, "")
	}
	moves := func(a, b string) func(*testing.T, string) { return run(os.Rename, a, b) }
	reads := func(name string) func(*testing.T, string) {
		return run(func(a, _ string) error { _, err := os.ReadFile(a); return err }, name, "")
	}
	type do = func(*testing.T, string)

	for _, tt := range []struct {
		name    string
		have    []string
		missing []string
		present string
		quiet   []do // these do not end the watch
		fires   do
	}{
		{name: "file", missing: []string{"a"}, quiet: []do{grows("b")}, fires: grows("a")},
		{name: "directory", missing: []string{"a"}, fires: grows("a/")},
		{name: "dangling link", missing: []string{"a"}, fires: grows("a -> nowhere")},
		{name: "fifo", missing: []string{"a"}, fires: grows("a |")},
		{name: "renamed into place", have: []string{"z"}, missing: []string{"a"}, fires: moves("z", "a")},
		{name: "directory renamed into place", have: []string{"z/b/c"}, missing: []string{"a/b/c"}, fires: moves("z", "a")},
		{name: "linked", have: []string{"z"}, missing: []string{"a"}, fires: run(os.Link, "z", "a")},
		{name: "created and removed", missing: []string{"a"}, fires: func(t *testing.T, root string) {
			grow(t, root, "a")
			rig.Must(t, os.Remove(filepath.Join(root, "a")))
		}},
		{name: "ancestor", missing: []string{"a/b/c"}, quiet: []do{grows("b", "c")}, fires: grows("a/")},
		{name: "ancestor as a file", missing: []string{"a/b"}, fires: grows("a")},
		{name: "second of two", have: []string{"x/", "y/"}, missing: []string{"x/a", "y/b"}, quiet: []do{grows("x/b", "y/a")}, fires: grows("y/b")},
		{name: "names that begin alike", missing: []string{"ab/c"}, quiet: []do{grows("a/", "abc/")}, fires: grows("ab")},
		{name: "siblings", have: []string{"s", "g/x/"}, missing: []string{"g/x/a"}, fires: grows("g/x/a"), quiet: []do{
			grows("s =text", "t/", "g/y", "g/x/q/r"), removes("s"), removes("g/y"), moves("t", "u"), chmods("u"), chmods("g/x/q"),
		}},
		{name: "parent removed", have: []string{"x/"}, missing: []string{"x/a"}, fires: removes("x")},
		{name: "parent renamed", have: []string{"x/"}, missing: []string{"x/a"}, fires: moves("x", "y")},
		{name: "grandparent renamed", have: []string{"g/x/"}, missing: []string{"g/x/a"}, fires: moves("g", "h")},
		{name: "parent replaced by a link", have: []string{"x/", "y/a"}, missing: []string{"x/a"}, fires: func(t *testing.T, root string) {
			removes("x")(t, root)
			grow(t, root, "x -> y")
		}},
		{name: "parent mode", have: []string{"x/"}, missing: []string{"x/a"}, fires: chmods("x")},
		{name: "ancestor mode", have: []string{"g/x/"}, missing: []string{"g/x/a"}, fires: chmods("g")},

		{name: "present written", have: []string{"p"}, missing: []string{"a"}, present: "p", quiet: []do{grows("q =text"), reads("p")}, fires: grows("p =text")},
		{name: "present touched", have: []string{"p"}, missing: []string{"a"}, present: "p", fires: touches("p")},
		{name: "present mode", have: []string{"p"}, missing: []string{"a"}, present: "p", fires: chmods("p")},
		{name: "present removed", have: []string{"p"}, missing: []string{"a"}, present: "p", fires: removes("p")},
		{name: "present renamed", have: []string{"p"}, missing: []string{"a"}, present: "p", fires: moves("p", "q")},
		{name: "present replaced", have: []string{"p", "q"}, missing: []string{"a"}, present: "p", fires: moves("q", "p")},
		{name: "present fifo", have: []string{"p |"}, missing: []string{"a"}, present: "p", fires: chmods("p")},
		{name: "present directory", have: []string{"p/s/", "p/f"}, missing: []string{"a"}, present: "p",
			quiet: []do{grows("p/x", "p/s/y", "p/f =text"), removes("p/x")}, fires: chmods("p")},
		{name: "present directory removed", have: []string{"p/"}, missing: []string{"a"}, present: "p", fires: removes("p")},
		{name: "present directory renamed", have: []string{"p/"}, missing: []string{"a"}, present: "p", fires: moves("p", "q")},
		{name: "present parent renamed", have: []string{"g/p/"}, missing: []string{"a"}, present: "g/p", fires: moves("g", "h")},
		{name: "present beside missing", have: []string{"d/p"}, missing: []string{"d/a"}, present: "d/p", quiet: []do{grows("d/x =text")}, fires: grows("d/p =text")},
		{name: "present above missing", have: []string{"d/e/"}, missing: []string{"d/e/a"}, present: "d", quiet: []do{grows("d/x", "d/e/x")}, fires: grows("d/e/a")},
		{name: "missing still fires with present", have: []string{"p"}, missing: []string{"a"}, present: "p", fires: grows("a")},
		{name: "a path twice", missing: []string{"a", "a"}, fires: grows("a")},
		{name: "name that is not UTF-8", missing: []string{"a\xff"}, quiet: []do{grows("a\xfe")}, fires: grows("a\xff")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := tree(t, tt.have...)
			w := rig.Value(fsops.WatchMissing(&inotifies, under(root, tt.missing...), under(root, tt.present)[0]))
			defer w.Close()
			for i, do := range tt.quiet {
				do(t, root)
				settle(t, w, root)
				select {
				case <-w.Changed():
					t.Fatalf("fired after quiet step %d", i)
				default:
				}
			}
			tt.fires(t, root)
			select {
			case <-w.Changed():
			case <-time.After(patience):
				t.Fatal("did not fire")
			}
		})
	}
}

// under makes names absolute; "" stays as it is.
func under(root string, names ...string) []string {
	var out []string
	for _, name := range names {
		if name != "" {
			name = root + "/" + name
		}
		out = append(out, name)
	}
	return out
}

// settle waits until the system has reported all that was done before. It makes
// a second watch beside w, whose event comes after all others.
func settle(t *testing.T, w *fsops.Watch, root string) {
	t.Helper()
	mark := filepath.Join(root, fmt.Sprintf("mark%d", time.Now().UnixNano()))
	m := rig.Value(fsops.WatchMissing(&inotifies, []string{mark}, ""))
	defer m.Close()
	rig.Must(t, os.WriteFile(mark, nil, 0o600))
	select {
	case <-m.Changed():
	case <-time.After(patience):
		t.Fatal("the mark was not seen")
	}
	// The goroutine of w may be slower than that of m: it gets a moment to do
	// the wrong thing.
	select {
	case <-w.Changed():
	case <-time.After(5 * time.Millisecond):
	}
}

func TestWatchMissingRefused(t *testing.T) {
	t.Parallel()
	root := tree(t, "f", "d/", "l -> d", "dang -> nowhere", "loop -> loop", "p -> f")
	many := make([]string, fsops.MaxMissingPaths+1)
	for i := range many {
		many[i] = fmt.Sprintf("m%d", i)
	}
	for _, tt := range []struct {
		name    string
		missing []string
		present string
		ok      bool
	}{
		{name: "none"},
		{name: "exists", missing: []string{"f"}},
		{name: "second exists", missing: []string{"a", "d"}},
		{name: "root exists", missing: []string{"../../../../../../../.."}},
		{name: "dangling link", missing: []string{"dang"}},
		{name: "loop", missing: []string{"loop/x"}},
		{name: "through a link", missing: []string{"l/a"}},
		{name: "under a file", missing: []string{"f/a"}},
		{name: "present missing", missing: []string{"a"}, present: "q"},
		{name: "present under a file", missing: []string{"a"}, present: "f/q"},
		{name: "present link", missing: []string{"a"}, present: "p"},
		{name: "present through a link", missing: []string{"a"}, present: "l/q"},
		{name: "65", missing: many},
		{name: "64", missing: many[1:], ok: true},
	} {
		missing := under(root, tt.missing...)
		for i, m := range missing {
			missing[i] = filepath.Clean(m)
		}
		w, err := fsops.WatchMissing(&inotifies, missing, under(root, tt.present)[0])
		rig.Is(t, err, map[bool]error{false: fsops.ErrNotWatchable}[tt.ok], "%s", tt.name)
		if err == nil {
			w.Close()
		}
	}
}

// TestWatchSwapped: a directory and a link to a directory elsewhere change places.
// The answer must not reveal whether the next name is a file, a directory or
// missing where the link leads: it is the answer for the directory here, or
// ErrNotWatchable.
func TestWatchSwapped(t *testing.T) {
	t.Parallel()
	root := tree(t, "a/dir/x/", "a/file/x/", "a/nothing/x/", "vault/dir/y/", "vault/file =f", "vault/dir/x -> y", "b -> vault")
	// So many changes can be more than the kernel keeps, and then all watches of the
	// instance are told.
	var flooded inotify.Group
	defer flooded.Close()
	defer swap(t, root+"/a", root+"/b")()
	enough := 20
	if rig.Runs(rig.Merge) {
		enough = 60
	}
	for _, name := range []string{"dir", "file", "nothing"} {
		watched := 0
		// On a busy machine the swaps can hit each of many tries.
		for tries := 0; tries < enough || watched == 0 && tries < 100_000; tries++ {
			w, err := fsops.WatchMissing(&flooded, under(root, "a/"+name+"/x/m"), "")
			switch {
			case err == nil:
				watched++
				w.Close()
			case !errors.Is(err, fsops.ErrNotWatchable):
				t.Fatalf("%s: error %v", name, err)
			}
		}
		rig.Is(t, watched > 0, true, "%s was watched", name)
	}
}

// TestWatchClose: Close ends a watch, however often it is called, and does no harm
// to a watch that has ended by itself.
func TestWatchClose(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w, err := fsops.WatchMissing(&inotifies, under(root, "a"), "")
	rig.Must(t, err)
	w.Close()
	w.Close()
	grow(t, root, "a")
	select {
	case <-w.Changed():
		t.Error("fired after Close")
	default:
	}
	w = rig.Value(fsops.WatchMissing(&inotifies, under(root, "b"), ""))
	grow(t, root, "b")
	<-w.Changed()
	w.Close()
}

func TestWatchNoPermission(t *testing.T) {
	if !asUser(t) {
		return
	}
	root := tree(t, "g/x/")
	rig.Must(t, os.Chmod(filepath.Join(root, "g"), 0o300))
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(root, "g"), 0o700) })
	checkErr(t, rig.Err(fsops.WatchMissing(&inotifies, under(root, "g/x/a"), "")), os.ErrPermission)
}

// TestWatchRace: a path may appear at any moment of making a watch. Then there
// is no watch, or it ends.
func TestWatchRace(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i := range 60 {
		dir := fmt.Sprintf("%s/%d", root, i)
		made := make(chan error, 1)
		go func() { made <- os.MkdirAll(dir+"/a", 0o755) }()
		w, err := fsops.WatchMissing(&inotifies, []string{dir + "/a/f"}, "")
		rig.Must(t, <-made, err)
		// Either the call saw the directories, or the watch sees them.
		select {
		case <-w.Changed():
		case <-time.After(time.Millisecond):
			rig.Must(t, os.WriteFile(dir+"/a/f", nil, 0o600))
			select {
			case <-w.Changed():
			case <-time.After(patience):
				t.Fatal("did not fire")
			}
		}
		w.Close()
	}
}
