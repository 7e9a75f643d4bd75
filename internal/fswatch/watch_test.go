package fswatch

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/inotify"
	"github.com/execagent/execagent/test/rig"
)

// group is the inotify instance of all tests.
var group inotify.Group

func TestMain(m *testing.M) { goleak.VerifyTestMain(closing{m}) }

// closing closes the inotify instance after the tests.
type closing struct{ m *testing.M }

func (c closing) Run() int {
	defer group.Close()
	return c.m.Run()
}

// patience is how long a test waits for what must come. The machine may have much else to do.
const patience = time.Minute

func start(t *testing.T, o Options) *Watch {
	t.Helper()
	w, err := NewWatcher(&group).Watch(t.Context(), o)
	rig.Must(t, err)
	t.Cleanup(w.Close)
	return w
}

func next(t *testing.T, w *Watch) Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	rig.Must(t, w.Wait(ctx))
	return w.Take()
}

// root returns a directory without links in its path.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	return dir
}

// grow makes what each line says: "dir/", "file", "link -> target".
func grow(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, target, link := strings.Cut(line, " -> ")
		at := filepath.Join(dir, name)
		var err error
		switch {
		case link:
			err = os.Symlink(target, at)
		case strings.HasSuffix(name, "/"):
			err = os.Mkdir(at, 0o777)
		default:
			err = os.WriteFile(at, []byte("text"), 0o666)
		}
		rig.Must(t, err)
	}
}

// act does what each line says, or makes what it says.
func act(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		at := func(i int) string { return filepath.Join(dir, words[i]) }
		var err error
		switch words[0] {
		case "rm":
			err = os.RemoveAll(at(1))
		case "mv":
			err = os.Rename(at(1), at(2))
		case "mkdir":
			err = os.MkdirAll(at(1), 0o777)
		case "chmod":
			err = os.Chmod(at(1), 0o600)
		case "read":
			err = rig.Err(os.ReadFile(at(1)))
		default:
			grow(t, dir, line)
		}
		rig.Must(t, err)
	}
}

// describe writes changes as lines, with paths below dir.
func describe(dir string, b Batch) []string {
	var lines []string
	for _, c := range b.Changes {
		rel := func(p string) string {
			r, err := filepath.Rel(dir, p)
			if err != nil {
				return p
			}
			if c.Directory {
				r += "/"
			}
			return r
		}
		line := [...]string{"created", "modified", "removed", "renamed"}[c.Kind] + " " + rel(c.Path)
		if c.Kind == Renamed {
			line += " from " + rel(c.From)
		}
		lines = append(lines, line)
	}
	if b.Overflow {
		lines = append(lines, "overflow")
	}
	return lines
}

// TestChanges: what is told of each thing that happens.
func TestChanges(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name      string
		have      []string
		root      string // below the directory of the test
		recursive bool
		hidden    string // a name that nobody may know of
		do        []string
		want      []string
	}{
		{name: "a file is made", do: []string{"a"}, want: []string{"created a"}},
		{name: "a file is written", have: []string{"a"}, want: []string{"modified a"}, do: []string{"a", "a", "a"}},
		{name: "a mode changes", have: []string{"a"}, want: []string{"modified a"}, do: []string{"chmod a"}},
		{name: "a file is read", have: []string{"a"}, want: []string{"created b"}, do: []string{"read a", "b"}},
		{name: "a file is removed", have: []string{"a"}, want: []string{"removed a"}, do: []string{"rm a"}},
		{name: "a file comes and goes", do: []string{"a", "rm a"}, want: []string{"removed a"}},
		{name: "a file is renamed", have: []string{"a"}, want: []string{"renamed b from a"}, do: []string{"mv a b"}},
		{name: "a file is saved as editors do", have: []string{"a"},
			do: []string{".a.new", "mv .a.new a"}, want: []string{"created .a.new", "renamed a from .a.new"}},
		{name: "a file is renamed there and back", have: []string{"a"},
			do: []string{"mv a b", "mv b a"}, want: []string{"renamed b from a", "renamed a from b"}},
		{name: "a link is made", do: []string{"l -> /"}, want: []string{"created l"}},
		{name: "below is not told", have: []string{"d/"}, do: []string{"d/a", "b"}, want: []string{"created b"}},
		{name: "below is told", have: []string{"d/", "d/e/"}, recursive: true, do: []string{"d/e/a"}, want: []string{"created d/e/a"}},
		{name: "below what is new", recursive: true,
			do: []string{"mkdir d/e", "d/e/a"}, want: []string{"created d/", "created d/e/", "created d/e/a"}},
		{name: "a directory is renamed, and then written to", have: []string{"d/", "d/e/"}, recursive: true,
			do: []string{"mv d g", "g/e/a"}, want: []string{"renamed g/ from d/", "created g/e/a"}},
		{name: "a directory comes from elsewhere", have: []string{"other/", "other/d/", "other/d/a", "w/"}, root: "w", recursive: true,
			do: []string{"mv other/d w/d"}, want: []string{"created w/d/", "created w/d/a"}},
		{name: "a directory goes elsewhere", have: []string{"w/", "w/d/", "w/d/a"}, root: "w", recursive: true,
			do: []string{"mv w/d d", "d/unseen", "w/seen"}, want: []string{"removed w/d/", "created w/seen"}},
		{name: "all is removed", have: []string{"d/", "d/a"}, recursive: true, do: []string{"rm d"}, want: []string{"removed d/a", "removed d/"}},
		{name: "the root is a file", have: []string{"a", "b"}, root: "a", do: []string{"b", "a"}, want: []string{"modified a"}},
		{name: "the root is a file that is replaced", have: []string{"a", "b"}, root: "a", do: []string{"mv b a"}, want: []string{"created a"}},
		{name: "the root is removed", have: []string{"w/", "w/a"}, root: "w", do: []string{"rm w"}, want: []string{"removed w/a", "removed w/"}},
		{name: "the root is renamed", have: []string{"w/", "w/a"}, root: "w", do: []string{"mv w v"}, want: []string{"removed w/"}},
		{name: "the root is missing", root: "w", do: []string{"v/", "w/"}, want: []string{"created w/"}},
		{name: "the way to the root is missing", root: "v/w", recursive: true,
			do: []string{"mkdir v/w/d"}, want: []string{"created v/w/", "created v/w/d/"}},
		{name: "what is above the root is renamed", have: []string{"v/", "v/w/"}, root: "v/w",
			do: []string{"mv v u"}, want: []string{"removed v/w/"}},
		{name: "a link takes the place of the root", have: []string{"w/", "v/"}, root: "w",
			do: []string{"rm w", "w -> v", "v/a"}, want: []string{"removed w/"}},
		{name: "a hidden file", hidden: "a", do: []string{"a", "b"}, want: []string{"created b"}},
		{name: "a hidden directory", hidden: "d", recursive: true, do: []string{"d/", "d/a", "b"}, want: []string{"created b"}},
		{name: "out of what is hidden", have: []string{"d/", "d/a"}, hidden: "d", recursive: true,
			do: []string{"mv d e"}, want: []string{"created e/", "created e/a"}},
		{name: "into what is hidden", have: []string{"e/", "e/a"}, hidden: "d", recursive: true,
			do: []string{"mv e d", "d/b", "c"}, want: []string{"removed e/", "created c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := root(t)
			grow(t, dir, tt.have...)
			o := Options{Root: filepath.Join(dir, tt.root), Recursive: tt.recursive}
			if tt.hidden != "" {
				hidden := filepath.Join(dir, tt.hidden)
				o.Shown = func(path string, _ bool) bool { return path != hidden && !strings.HasPrefix(path, hidden+"/") }
			}
			w := start(t, o)
			act(t, dir, tt.do...)
			var got []string
			for len(got) < len(tt.want) {
				got = append(got, describe(dir, next(t, w))...)
			}
			// Several events may lead to more than one batch.
			got = merged(got)
			rig.Same(t, "told", tt.want, got)
			time.Sleep(2 * window)
			if rest := w.Take(); len(rest.Changes) > 0 || rest.Overflow {
				rig.Same(t, "told in the end", tt.want, merged(append(got, describe(dir, rest)...)))
			}
		})
	}
}

// merged leaves out what was told again in a second batch, because the first had gone.
func merged(lines []string) []string {
	var out []string
	for _, line := range lines {
		kind, what, _ := strings.Cut(line, " ")
		again := slices.ContainsFunc(out, func(old string) bool {
			_, before, _ := strings.Cut(old, " ")
			before, _, _ = strings.Cut(before, " from ")
			return before == what
		})
		if !again || kind != "modified" {
			out = append(out, line)
		}
	}
	return out
}

// TestExchange: two objects that change places are told as an overflow, since one rename after
// the other would leave one of them.
func TestExchange(t *testing.T) {
	t.Parallel()
	for _, have := range [][]string{{"a", "b"}, {"a/", "b"}, {"a", "b/"}, {"a/", "b/"}} {
		t.Run(strings.Join(have, " "), func(t *testing.T) {
			t.Parallel()
			dir := root(t)
			grow(t, dir, have...)
			w := start(t, Options{Root: dir, Recursive: true})
			rig.Must(t, unix.Renameat2(unix.AT_FDCWD, dir+"/a", unix.AT_FDCWD, dir+"/b", unix.RENAME_EXCHANGE))
			for b := next(t, w); !b.Overflow; b = next(t, w) {
				t.Log(describe(dir, b))
			}
		})
	}
}

// TestRefused: what cannot be watched is an error.
func TestRefused(t *testing.T) {
	t.Parallel()
	watcher := NewWatcher(&group)
	rig.Is(t, rig.Err(watcher.Watch(t.Context(), Options{Root: "/proc/sys"})), ErrNotOrdinary, "a directory of procfs")
	rig.Is[error](t, rig.Err(watcher.Watch(t.Context(), Options{Root: strings.Repeat("/a", maxAbove+1)})), unix.ENAMETOOLONG, "a long path")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	rig.Is(t, rig.Err(watcher.Watch(ended, Options{Root: root(t)})), context.Canceled, "with an ended context")
	rig.Is(t, watcher.Dirs.Used(), 0, "directories are still counted")
}

// TestManyDirectories: of a tree with too many directories, every batch says that there is more. In
// push the owner's share is small; in merge there is also a tree with too many for one watch.
func TestManyDirectories(t *testing.T) {
	t.Parallel()
	rooms := []int64{20}
	if rig.Runs(rig.Merge) {
		rooms = append(rooms, maxDirs)
	}
	for _, room := range rooms {
		dir := root(t)
		for i := range room {
			rig.Must(t, os.MkdirAll(fmt.Sprintf("%s/%d/%d", dir, i/64, i), 0o777))
		}
		o := Options{Root: dir, Recursive: true}
		watcher := NewWatcher(&group)
		watcher.Dirs.Max = 2 * (room + o.above())
		w, err := watcher.Watch(t.Context(), o)
		rig.Must(t, err)
		defer w.Close()
		rig.Is(t, watcher.Dirs.Used(), room+o.above(), "directories that are watched")
		rig.Is(t, next(t, w).Overflow, true, "the first batch says that there is more")
		grow(t, dir, "a")
		b := next(t, w)
		rig.Is(t, b.Overflow && len(b.Changes) > 0, true, "%v says that there is more", b)
		w.Close()
		rig.Is(t, watcher.Dirs.Used(), 0, "directories that are still counted")
	}
}

// mirror is what whoever watches knows of the tree: whether each path is a directory.
type mirror map[string]bool

// look takes what there is.
func look(dir string) mirror {
	m := mirror{}
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && path != dir {
			m[path] = d.IsDir()
		}
		return nil
	})
	return m
}

func (m mirror) remove(path string) {
	delete(m, path)
	for p := range m {
		if strings.HasPrefix(p, path+"/") {
			delete(m, p)
		}
	}
}

// apply takes a change. It returns false when only a look at the tree helps. Changes that come
// after a look may be older than what it has found, so that a name which was moved then is
// another object now: looked says that there was a look.
func (m mirror) apply(c Change, looked bool) bool {
	switch c.Kind {
	case Created:
		m.remove(c.Path)
		m[c.Path] = c.Directory
	case Removed:
		m.remove(c.Path)
	case Renamed:
		directory, known := m[c.From]
		if !known || looked && (directory || c.Directory) {
			return false
		}
		m.remove(c.Path)
		for p, dir := range m {
			if p == c.From || strings.HasPrefix(p, c.From+"/") {
				delete(m, p)
				m[c.Path+p[len(c.From):]] = dir
			}
		}
	}
	return true
}

// TestMirror: who applies what is told, and looks where told to, knows the tree, whatever happened
// to it and however fast.
func TestMirror(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, tt := range []struct {
		name           string
		hands, changes int
		pause          time.Duration
	}{
		{"one hand", 1, 1000, 5 * time.Millisecond},
		{"three hands", 3, 500, 5 * time.Millisecond},
		{"a flood", 2, 3000, 0},
	} {
		if rig.Runs(rig.Nightly) {
			tt.changes *= 10
		}
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := root(t)
			w := start(t, Options{Root: dir, Recursive: true})
			var hands sync.WaitGroup
			for i := range tt.hands {
				hands.Go(func() {
					random := rand.New(rand.NewPCG(seed, uint64(i)))
					for range tt.changes {
						disturb(random, dir)
						if tt.pause > 0 && random.IntN(10) == 0 {
							time.Sleep(tt.pause)
						}
					}
				})
			}
			quiet := make(chan struct{})
			go func() { hands.Wait(); close(quiet) }()
			known, batches, looks := mirror{}, 0, 0
			take := func(b Batch) {
				batches++
				again := b.Overflow
				for _, c := range b.Changes {
					again = !known.apply(c, looks > 0) || again
				}
				if again {
					looks++
					known = look(dir)
				}
			}
			for over := false; !over; {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				if w.Wait(ctx) == nil {
					take(w.Take())
				}
				cancel()
				select {
				case <-quiet:
					over = true
				default:
				}
			}
			deadline := time.Now().Add(patience)
			for cmp.Diff(look(dir), known) != "" {
				ctx, cancel := context.WithDeadline(t.Context(), deadline)
				err := w.Wait(ctx)
				cancel()
				if err != nil {
					t.Fatalf("in the end (-there +known):\n%s", cmp.Diff(look(dir), known))
				}
				take(w.Take())
			}
			t.Logf("%d batches, %d looks, %d names", batches, looks, len(known))
		})
	}
}

// disturb changes something in a small tree. What cannot be done is not.
func disturb(random *rand.Rand, dir string) {
	name := func() string {
		var path strings.Builder
		path.WriteString(dir)
		for range 1 + random.IntN(3) {
			path.WriteString("/" + string(rune('a'+random.IntN(4))))
		}
		return path.String()
	}
	switch random.IntN(8) {
	case 0, 1:
		_ = os.WriteFile(name(), []byte("text"), 0o666)
	case 2:
		_ = os.Mkdir(name(), 0o777)
	case 3:
		_ = os.MkdirAll(name(), 0o777)
	case 4:
		_ = os.RemoveAll(name())
	case 5, 6, 7:
		// In place of a directory, or with two that change places, all is looked at again.
		from, to := name(), name()
		info, err := os.Lstat(to)
		switch rare := random.IntN(300) == 0; {
		case rare:
			_ = unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_EXCHANGE)
		case err != nil || !info.IsDir() || random.IntN(100) == 0:
			_ = os.Rename(from, to)
		}
	}
}

// TestMerging: changes that were merged lead to the same as all of them, one after the other.
func TestMerging(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		random := rand.New(rand.NewPCG(seed, 3))
		all, told, merging := mirror{}, mirror{}, newChanges()
		at := func() string {
			return "/" + string(rune('a'+random.IntN(3))) + strings.Repeat("/"+string(rune('a'+random.IntN(2))), random.IntN(3))
		}
		for range 60 {
			c := Change{Kind: Kind(random.IntN(4)), Path: at()}
			if above := filepath.Dir(c.Path); above != "/" && !all[above] {
				continue
			}
			switch c.Kind {
			case Created:
				c.Directory = random.IntN(2) == 0
			case Renamed:
				c.From = at()
				directory, there := all[c.From]
				if !there || strings.HasPrefix(c.Path+"/", c.From+"/") || strings.HasPrefix(c.From, c.Path+"/") {
					continue
				}
				c.Directory = directory
			default:
				directory, there := all[c.Path]
				if !there {
					continue
				}
				c.Directory = directory
			}
			all.apply(c, false)
			merging.add(c)
			if random.IntN(8) == 0 {
				for _, c := range merging.take().Changes {
					told.apply(c, false)
				}
			}
		}
		for merging.list.Len() > 0 {
			for _, c := range merging.take().Changes {
				rig.Is(t, told.apply(c, false), true, "seed %d: %v is from somewhere", seed, c)
			}
		}
		rig.Same(t, fmt.Sprint("seed ", seed), all, told)
		rig.Is(t, merging.bytes, 0, "seed %d: bytes of nothing", seed)
	}
}

// TestBounds: of too many changes, it is told that there were too many.
func TestBounds(t *testing.T) {
	t.Parallel()
	c := newChanges()
	for i := range maxChanges {
		c.add(Change{Path: fmt.Sprint("/", i)})
	}
	sum := 0
	for c.list.Len() > 0 {
		b := c.take()
		rig.Is(t, len(b.Changes) <= maxBatch && !b.Overflow, true, "a batch has %d changes, overflow %v", len(b.Changes), b.Overflow)
		sum += len(b.Changes)
	}
	rig.Is(t, sum, maxChanges, "changes")
	for i := range maxChanges + 1 {
		c.add(Change{Path: fmt.Sprint("/", i)})
	}
	rig.Same(t, "of too many", Batch{Overflow: true}, c.take())
	long := strings.Repeat("/long", 500)
	for i := range maxChangeBytes/len(long) + 1 {
		c.add(Change{Path: fmt.Sprint(long, i)})
	}
	rig.Same(t, "of long paths", Batch{Overflow: true}, c.take())
	c.setBlind(true)
	rig.Is(t, c.take().Overflow, true, "that it is blind is told")
	c.add(Change{Path: "/a"})
	rig.Same(t, "of one while it is blind", Batch{Changes: []Change{{Path: "/a"}}, Overflow: true}, c.take())
}

func BenchmarkMerging(b *testing.B) {
	c := newChanges()
	paths := make([]string, 1000)
	for i := range paths {
		paths[i] = fmt.Sprint("/home/user/project/src/file", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		c.add(Change{Path: paths[i%len(paths)], Kind: Kind(i / len(paths) % 3)})
	}
}
