package applypatch

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/test/rig"
)

// everything is a patch with one of each, and what it makes of begin.
const everything = `*** Begin Patch
*** Update File: a
@@
-one
+1
*** Add File: new/deep/b
+b
*** Delete File: c
*** Update File: d
*** Move to: moved/d
@@
-four
+4
*** Update File: link
@@
-six
+6
*** Add File: over
+over
*** Update File: a
@@
-two
+2
*** Delete File: gone
*** Add File: gone
+back
*** Delete File: away
*** Add File: away
+away
*** Update File: moved/d
@@
-4
+vier
*** End Patch
`

// begin makes the files, and returns what is in each afterwards.
func begin(t *testing.T) (dir string, after map[string]string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	rig.Must(t, err)
	for name, text := range map[string]string{
		"a": "one\ntwo\n", "c": "three\n", "d": "four\n", "real/e": "six\n", "over": "old\n", "gone": "x\n", "untouched": "y\n",
	} {
		put(t, filepath.Join(dir, name), text)
	}
	for path, mode := range map[string]os.FileMode{"a": 0o640, "d": 0o755, "real/e": 0o700} {
		rig.Must(t, os.Chmod(filepath.Join(dir, path), mode))
	}
	for path, to := range map[string]string{"link": "real/e", "away": "a"} {
		rig.Must(t, os.Symlink(to, filepath.Join(dir, path)))
	}
	return dir, map[string]string{
		"a": "-rw-r----- 1\n2\n", "new/deep/b": "-rw-r--r-- b\n", "moved/d": "-rwxr-xr-x vier\n", "real/e": "-rwx------ 6\n",
		"link": "Lrwxrwxrwx real/e", "over": "-rw-r--r-- over\n", "gone": "-rw-r--r-- back\n", "away": "-rw-r--r-- away\n",
		"untouched": "-rw-r--r-- y\n",
	}
}

func put(t *testing.T, path, text string) {
	t.Helper()
	rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o777))
	rig.Must(t, os.WriteFile(path, []byte(text), 0o644))
}

// look returns the files below dir, each with its mode and its content; of directories only those
// that are empty.
func look(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	walk(t, dir, func(path string, mode fs.FileMode, data []byte) {
		found[rig.Value(filepath.Rel(dir, path))] = mode.String() + " " + string(data)
	})
	return found
}

// TestWhole: Whole leaves what inOrder leaves.
func TestWhole(t *testing.T) {
	t.Parallel()
	p := rig.Value(Parse(everything))
	dir, after := begin(t)
	changes, err := (&Target{Files: fsops.Host{}, Dir: dir}).Whole(t.Context(), p)
	rig.Must(t, err)
	rig.Same(t, "files", after, look(t, dir))
	other, _ := begin(t)
	same, err := (&Target{Files: fsops.Host{}, Dir: other}).inOrder(t.Context(), p)
	rig.Must(t, err)
	rig.Same(t, "files", after, look(t, other))
	rig.Is(t, Summary(changes), Summary(same), "what was told, and in order")
	c := changes[3]
	rig.Is(t, fmt.Sprint(c.Kind == Update, c.Path, " ", c.Name, " ", c.From), "truemoved/d "+dir+"/moved/d "+dir+"/d", "a move is an update")
}

// errFault is what a call fails with in the tests of failures.
var errFault = &fs.PathError{Op: "fault", Err: syscall.EIO}

// faulty is the host's files, whose n-th call that changes something, counted from 0, is the
// first for which fail is called.
type faulty struct {
	fsops.Host
	n    *int
	fail func() error
}

func (f faulty) count() error {
	*f.n--
	if *f.n == -1 {
		return f.fail()
	}
	return nil
}

func (f faulty) OpenWrite(ctx context.Context, path string, o fsops.Writing) (int, error) {
	if err := f.count(); err != nil {
		return -1, err
	}
	return f.Host.OpenWrite(ctx, path, o)
}

func (f faulty) CreateDirectory(ctx context.Context, path string, recursive bool, links fsops.Links) error {
	if err := f.count(); err != nil {
		return err
	}
	return f.Host.CreateDirectory(ctx, path, recursive, links)
}

func (f faulty) Rename(ctx context.Context, src, dst string, replace bool) error {
	if err := f.count(); err != nil {
		return err
	}
	return f.Host.Rename(ctx, src, dst, replace)
}

func (f faulty) Remove(ctx context.Context, path string, recursive, force bool, links fsops.Links) error {
	if err := f.count(); err != nil && !strings.HasPrefix(filepath.Base(path), ".apply-patch-") {
		return err
	}
	return f.Host.Remove(ctx, path, recursive, force, links)
}

// TestWholeFails: whichever step fails, all files are as they were, and nothing is left over.
func TestWholeFails(t *testing.T) {
	t.Parallel()
	p := rig.Value(Parse(everything))
	dir, after := begin(t)
	before, failed := look(t, dir), 0
	for step, n := 0, -1; n < 0; step++ { // until there are fewer steps
		n = step
		files := faulty{n: &n, fail: func() error { return errFault }}
		_, err := (&Target{Files: files, Dir: dir}).Whole(t.Context(), p)
		if err == nil { // nothing has failed that matters
			rig.Same(t, "files", after, look(t, dir))
			dir, _ = begin(t)
			continue
		}
		failed++
		rig.Is[error](t, err, syscall.EIO, "step %d", step)
		rig.Same(t, "files", before, look(t, dir))
	}
	rig.Is(t, failed >= 15, true, "%d steps have failed, which are all kinds", failed)
}

// mounted is files of which each one that is there is a mount point, so that nothing can replace it.
type mounted struct{ faulty }

func (m mounted) Rename(ctx context.Context, src, dst string, replace bool) error {
	if replace {
		return &fs.PathError{Op: "rename", Path: src, Err: syscall.EBUSY}
	}
	return m.faulty.Rename(ctx, src, dst, replace)
}

// TestWholeMounted: a mounted file is written in place. If a step fails, all files are as they were.
func TestWholeMounted(t *testing.T) {
	t.Parallel()
	p := rig.Value(Parse("*** Begin Patch\n*** Update File: a\n@@\n-1\n+one\n*** Add File: new\n+new\n*** Update File: b\n@@\n-2\n+two\n*** End Patch\n"))
	var dir string
	for step, n := 0, -1; n < 0; step++ {
		n, dir = step, t.TempDir()
		rig.Must(t, os.WriteFile(dir+"/a", []byte("1\n"), 0o640))
		rig.Must(t, os.WriteFile(dir+"/b", []byte("2\n"), 0o640))
		rig.Must(t, os.Link(dir+"/a", dir+"/other"))
		before := look(t, dir)
		files := mounted{faulty{n: &n, fail: func() error { return errFault }}}
		if _, err := (&Target{Files: files, Dir: dir}).Whole(t.Context(), p); err != nil {
			rig.Same(t, "files", before, look(t, dir))
		}
	}
	for name, want := range map[string]string{"a": "one\n", "other": "one\n", "b": "two\n", "new": "new\n"} {
		rig.Is(t, string(rig.Value(os.ReadFile(dir+"/"+name))), want, "%s", name)
	}
}

// TestWholeKilled: if the program ends in the middle, each file is the old one or the new one.
// What is left over says what it is of.
func TestWholeKilled(t *testing.T) {
	t.Parallel()
	p := rig.Value(Parse(everything))
	for step, n := 0, -1; n < 0; step++ {
		dir, after := begin(t)
		before := look(t, dir)
		n = step
		func() {
			defer func() {
				if r := recover(); r != nil && r != errFault {
					panic(r)
				}
			}()
			files := faulty{n: &n, fail: func() error { panic(errFault) }} // nothing of Whole runs after this
			rig.Check(t, rig.Err((&Target{Files: files, Dir: dir}).Whole(t.Context(), p)))
		}()
		now := look(t, dir)
		for name, text := range now {
			known := text == before[name] || text == after[name] || strings.HasPrefix(text, "d")
			rig.Is(t, known || strings.HasPrefix(filepath.Base(name), ".apply-patch-"), true, "step %d: %s is %q, old or new", step, name, text)
		}
		for name := range before {
			_, stays := after[name]
			if _, there := now[name]; !there && stays && name != "away" { // a link is not replaced in one step
				t.Errorf("step %d: %s is missing", step, name)
			}
		}
	}
}

// TestWholeRefuses: what cannot be done as a whole is not begun.
func TestWholeRefuses(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ hunks, want string }{
		"lines":         {"*** Add File: n\n+x\n*** Update File: a\n@@\n-nope\n+x\n", "Failed to find expected lines in DIR/a:\nnope"},
		"missing":       {"*** Delete File: a\n*** Update File: a\n@@\n-one\n+x\n", "Failed to read file to update DIR/a: No such file or directory (os error 2)"},
		"twice":         {"*** Delete File: a\n*** Delete File: a\n", "Failed to delete file DIR/a\nNo such file or directory (os error 2)"},
		"directory":     {"*** Delete File: a\n*** Add File: real\n+x\n", "Failed to write file DIR/real\npath \"DIR/real\" is not a regular file"},
		"delete dir":    {"*** Delete File: a\n*** Delete File: real\n", "Failed to delete file DIR/real\nIs a directory (os error 21)"},
		"below a file":  {"*** Add File: n/m\n+x\n*** Add File: a/b\n+x\n", "Failed to write file DIR/a/b\nNot a directory (os error 20)"},
		"below a new":   {"*** Add File: n/m\n+x\n*** Add File: n/m/b\n+x\n", "Failed to write file DIR/n/m/b\nNot a directory (os error 20)"},
		"dangling":      {"*** Add File: n\n+x\n*** Add File: dangling\n+x\n", "Failed to write file DIR/dangling\nFile exists (os error 17)"},
		"dangling dir":  {"*** Add File: n\n+x\n*** Add File: dangling/x\n+x\n", "Failed to write file DIR/dangling/x\nNot a directory (os error 20)"},
		"through gone":  {"*** Delete File: a\n*** Delete File: away\n", "Failed to delete file DIR/away\nNo such file or directory (os error 2)"},
		"null":          {"*** Add File: n\n+x\n*** Add File: a\x00b\n+x\n", "'a\x00b' is invalid on 'linux'"},
		"a link's loss": {"*** Update File: real/e\n@@\n-six\n+6\n*** Update File: link\n@@\n-six\n+x\n", "Failed to find expected lines in DIR/link:\nsix"},
		"move below":    {"*** Update File: c\n*** Move to: a/b\n@@\n-three\n+x\n", "Failed to write file DIR/a/b\nNot a directory (os error 20)"},
		"chain":         {"*** Delete File: away\n*** Delete File: chain\n", "Failed to delete file DIR/chain\n" + errLinks.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, _ := begin(t)
			rig.Must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")), os.Symlink("away", filepath.Join(dir, "chain")))
			before := look(t, dir)
			p := rig.Value(Parse("*** Begin Patch\n" + tt.hunks + "*** End Patch"))
			target := &Target{Files: fsops.Host{}, Dir: dir}
			_, err := target.Whole(t.Context(), p)
			rig.Is(t, strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"), tt.want, "the result")
			if !strings.HasPrefix(name, "dangling") { // what the others do as well
				_, err = target.Preview(t.Context(), p, new(strings.Builder), 1<<20)
				rig.Is(t, strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"), tt.want, "the result of Preview")
			}
			rig.Same(t, "files", before, look(t, dir))
			_, err = target.inOrder(t.Context(), p)
			rig.Is(t, err == nil, name == "dangling", "in order: %v: it is done", err)
		})
	}
}

// TestWholeView: under a policy nothing changes that may not be written, and nothing at all then.
func TestWholeView(t *testing.T) {
	t.Parallel()
	dir, _ := begin(t)
	put(t, filepath.Join(dir, "real/kept"), "kept\n")
	rig.Must(t, os.Symlink("../a", filepath.Join(dir, "real/out")))
	writable := filepath.Join(dir, "real")
	view, err := fsops.NewView(fsops.Rules{
		Access: func(path string) fsops.Access {
			switch {
			case path == writable+"/kept":
				return fsops.Read
			case path == writable || strings.HasPrefix(path, writable+"/"):
				return fsops.Write
			case path == dir+"/c":
				return fsops.Denied
			}
			return fsops.Read
		},
		DeniesFile: func(path string) bool { return strings.HasSuffix(path, ".env") },
		Leads:      func(string) bool { return false },
		Bound:      func(path string) bool { return path == writable || path == writable+"/kept" },
	})
	rig.Must(t, err)
	defer view.Close()
	target := &Target{Files: view, Dir: dir}
	before := look(t, dir)
	const rofs, access, busy = "Read-only file system (os error 30)", "Permission denied (os error 13)", "Resource busy (os error 16)"
	for _, tt := range []struct{ hunk, want string }{
		{"*** Update File: a\n@@\n-one\n+1\n", "Failed to write file DIR/a\n" + rofs},
		{"*** Update File: real/out\n@@\n-one\n+1\n", "Failed to write file DIR/real/out\n" + rofs},
		{"*** Add File: real/../new\n+1\n", "Failed to write file DIR/new\n" + rofs},
		{"*** Add File: real/x/.env\n+1\n", "Failed to write file DIR/real/x/.env\n" + access},
		{"*** Update File: c\n@@\n-three\n+1\n", "Failed to read file to update DIR/c: " + access},
		{"*** Update File: real/kept\n@@\n-kept\n+1\n", "Failed to write file DIR/real/kept\n" + busy},
		{"*** Delete File: real/kept\n", "Failed to delete file DIR/real/kept\n" + busy},
		{"*** Delete File: over\n", "Failed to delete file DIR/over\n" + rofs},
		{"*** Update File: real/e\n*** Move to: e\n@@\n-six\n+6\n", "Failed to write file DIR/e\n" + rofs},
	} {
		p := rig.Value(Parse("*** Begin Patch\n*** Add File: real/x/y\n+y\n*** Delete File: real/e\n*** Add File: real/e\n+six\n" + tt.hunk + "*** End Patch"))
		_, err := target.Whole(t.Context(), p)
		rig.Is(t, strings.ReplaceAll(fmt.Sprint(err), dir, "DIR"), tt.want, "the result")
		rig.Same(t, "files", before, look(t, dir))
	}
	p := rig.Value(Parse("*** Begin Patch\n*** Update File: real/e\n*** Move to: real/x/f\n@@\n-six\n+6\n*** Add File: real/g\n+g\n*** End Patch"))
	rig.Must(t, rig.Err(target.Whole(t.Context(), p)))
	delete(before, "real/e")
	before["real/x/f"], before["real/g"] = "-rwx------ 6\n", "-rw-r--r-- g\n"
	rig.Same(t, "files", before, look(t, dir))
}

// swapping does something behind the nth opening of a file for reading.
type swapping struct {
	fsops.Host
	behind int
	swap   func()
	opened *int
}

func (s swapping) OpenRead(ctx context.Context, path string, links fsops.Links) (int, error) {
	fd, err := s.Host.OpenRead(ctx, path, links)
	if *s.opened++; *s.opened == s.behind {
		s.swap()
	}
	return fd, err
}

// TestWholeSwapped: who exchanges a file for a link to another one, or the reverse, while a patch
// is applied gets nothing of the other one into a file of theirs.
func TestWholeSwapped(t *testing.T) {
	t.Parallel()
	for behind, link := range map[int]bool{1: true, 2: false} {
		dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
		a := filepath.Join(dir, "a")
		put(t, other, "secret\n")
		exchange := func(link bool) {
			_ = os.Remove(a)
			if !link {
				put(t, a, "mine\n")
			} else if err := os.Symlink(other, a); err != nil {
				t.Error(err)
			}
		}
		exchange(link)
		target := &Target{Dir: dir, Files: swapping{behind: behind, swap: func() { exchange(!link) }, opened: new(int)}}
		_, err := target.Whole(t.Context(), rig.Value(Parse("*** Begin Patch\n*** Update File: a\n@@\n+more\n*** Add File: b\n+b\n*** End Patch")))
		rig.Is(t, err != nil, true, "behind opening %d the file was exchanged, and the patch refused", behind)
		for name, text := range look(t, dir) {
			rig.Is(t, strings.Contains(text, "secret"), false, "%d: %s has %q", behind, name, text)
		}
	}
}

// TestWholeMovesOntoItself: a file that is moved to where it is, by whatever path, is not lost.
func TestWholeMovesOntoItself(t *testing.T) {
	t.Parallel()
	for _, paths := range [][2]string{{"a", "a"}, {"a", "./real/../a"}, {"real/e", "link"}, {"a", "away"}, {"link", "real/e"}, {"a", "hard"}} {
		for _, whole := range []bool{true, false} {
			dir, _ := begin(t)
			rig.Must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "hard")))
			line := map[string]string{"a": "one", "real/e": "six", "link": "six"}[paths[0]]
			p := rig.Value(Parse("*** Begin Patch\n*** Update File: " + paths[0] + "\n*** Move to: " + paths[1] + "\n@@\n-" + line + "\n+new\n*** End Patch"))
			target := &Target{Files: fsops.Host{}, Dir: dir}
			apply := target.inOrder
			if whole {
				apply = target.Whole
			}
			rig.Check(t, rig.Err(apply(t.Context(), p)))
			data := rig.Value(os.ReadFile(filepath.Join(dir, paths[1])))
			rig.Is(t, strings.HasPrefix(string(data), "new\n"), true, "%q, as a whole %v: %q is new", paths, whole, data)
		}
	}
}

// TestPreview: the diff is one that git applies, with the same result, and nothing is changed.
func TestPreview(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ before, hunk string }{
		"change":    {"one\ntwo\nthree\n", "@@\n one\n-two\n+2\n three\n"},
		"two":       {"1\n2\n3\n4\n5\n6\n7\n8\n9\n", "@@\n 1\n+new\n 2\n@@\n 7\n-8\n+x\n+y\n 9\n"},
		"append":    {"1\n2\n", "@@\n+3\n"},
		"no end":    {"1\n2", "@@\n-1\n+one\n 2\n"},
		"no end 2":  {"1\n2\n3\n4", "@@\n 1\n-2\n 3\n"},
		"no end 3":  {"1\n2", "@@\n 1\n-2\n+3\n"},
		"to append": {"1\n2", "@@\n+3\n"},
		"crlf":      {"1\r\n2\r\n3\r\n", "@@\n 1\n-2\n+x\n 3\n"},
		"empty":     {"", "@@\n+1\n"},
		"all":       {"1\n", "@@\n-1\n"},
		"mark":      {"\ufeff1\n2\n", "@@\n-1\n+one\n 2\n"},
		"mark 2":    {"\ufeff1\n2\n3\n", "@@\n-1\n 2\n-3\n"},
		"mark 3":    {"\ufeff1\n2", "@@\n+0\n+0\n 1\n 2\n"},
		"mark 4":    {"\ufeff1\n", "@@\n-\ufeff1\n+\ufeffone\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			put(t, filepath.Join(dir, "f"), tt.before)
			p := rig.Value(Parse("*** Begin Patch\n*** Update File: f\n" + tt.hunk + "*** End Patch"))
			target := &Target{Files: fsops.Host{}, Dir: dir}
			var diff strings.Builder
			rig.Must(t, rig.Err(target.Preview(t.Context(), p, &diff, 1<<20)))
			other := t.TempDir()
			put(t, filepath.Join(other, "f"), look(t, dir)["f"][len("-rw-r--r-- "):])
			git(t, other, diff.String())
			rig.Must(t, rig.Err(target.Whole(t.Context(), p)))
			rig.Is(t, look(t, other)["f"], look(t, dir)["f"], "%s\nwhat the diff makes", diff.String())
		})
	}

	dir, _ := begin(t)
	before := look(t, dir)
	p := rig.Value(Parse(everything))
	var diff strings.Builder
	changes, err := (&Target{Files: fsops.Host{}, Dir: dir}).Preview(t.Context(), p, &diff, 1<<20)
	rig.Must(t, err)
	rig.Same(t, "files", before, look(t, dir))
	rig.Is(t, len(changes), 12, "changes that are told")
	want := `--- a/a
+++ b/a
@@ -1,1 +1,1 @@
-one
+1
--- /dev/null
+++ b/new/deep/b
@@ -0,0 +1,1 @@
+b
--- a/c
+++ /dev/null
@@ -1,1 +0,0 @@
-three
diff --git a/d b/moved/d
rename from d
rename to moved/d
--- a/d
+++ b/moved/d
@@ -1,1 +1,1 @@
-four
+4
--- a/link
+++ b/link
@@ -1,1 +1,1 @@
-six
+6
--- a/over
+++ b/over
@@ -1,1 +1,1 @@
-old
+over
--- a/a
+++ b/a
@@ -2,1 +2,1 @@
-two
+2
`
	rig.Same(t, "diff", want, diff.String()[:min(len(want), diff.Len())])
}

// git applies a diff in dir.
func git(t *testing.T, dir, diff string) {
	t.Helper()
	path, err := exec.LookPath("git")
	if err != nil {
		t.Skip("there is no git to apply the diff with")
	}
	cmd := exec.CommandContext(t.Context(), path, "apply", "--unidiff-zero", "--whitespace=nowarn", "-")
	cmd.Dir, cmd.Stdin = dir, strings.NewReader(diff)
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git apply: %v\n%s\n%s", err, out, diff)
	}
}
