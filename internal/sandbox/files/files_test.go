package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// tree is a workspace with something of everything.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"d/e", "vault/in", ".git", "bad\xff"} {
		rig.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o777))
	}
	for _, f := range []string{"file", "d/e/deep", "vault/in/secret", ".git/config", "bad\xff/f"} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, f), []byte("contents of "+f), 0o666))
	}
	for link, target := range map[string]string{"link": "file", "out": "/etc/hostname", "in": "vault/in", "dangling": "nowhere"} {
		rig.Must(t, os.Symlink(target, filepath.Join(dir, link)))
	}
	rig.Must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	return dir
}

// perform does a bit of everything in dir and tells what came of each step.
func perform(ctx context.Context, o fsops.FS, dir string) []string {
	var told []string
	tell := func(step string, value any, err error) {
		if e, ok := errors.AsType[syscall.Errno](err); ok {
			err = fmt.Errorf("%w, errno %d, a %T", err, int(e), err)
		}
		text := fmt.Sprintf("%s: %+v, %v", step, value, err)
		told = append(told, strings.ReplaceAll(text, dir, "DIR"))
	}
	for _, name := range []string{"", "file", "link", "out", "in", "in/secret", "dangling", "fifo", "d", "nothing", "vault", "vault/in/secret", ".git/config", "file/x"} {
		path := strings.TrimSuffix(dir+"/"+name, "/")
		for _, links := range []fsops.Links{fsops.FollowLinks, fsops.RefuseLinks} {
			data, err := fsops.ReadFile(ctx, o, path, links, nil)
			tell("read "+name, string(data), err)
			m, err := o.Stat(ctx, path, links)
			m.CreatedAtMs, m.ModifiedAtMs = 0, 0
			tell("stat "+name, m, err)
		}
		kept, err := o.Stat(ctx, path, fsops.KeepLast)
		kept.CreatedAtMs, kept.ModifiedAtMs = 0, 0
		tell("lstat "+name, kept, err)
		for _, more := range []bool{false, true} {
			canonical, err := o.Canonicalize(ctx, path, more)
			tell("canonicalize "+name, canonical, err)
			entries, err := o.ReadDirectory(ctx, path, more)
			slices.SortFunc(entries, func(a, b fsops.DirEntry) int { return strings.Compare(a.Name, b.Name) })
			for i := range entries {
				entries[i].ModifiedAtMs = 0
			}
			tell("list "+name, entries, err)
		}
		walk, err := o.Walk(ctx, path, fsops.WalkOptions{MaxDepth: 9, MaxDirectories: 99, MaxEntries: 99})
		tell("walk "+name, walk, err)
		found, err := o.Search(ctx, path, fsops.SearchOptions{Pattern: ".", Before: 1, MaxMatches: 9, MaxFiles: 99, MaxDepth: 9, MaxLine: 9, Time: time.Minute})
		tell("search "+name, found, err)
	}
	for _, name := range []string{"", "new", "file", "link", "out", "vault/x", ".git/config", ".codex", "fifo", "d", "no/such"} {
		path := strings.TrimSuffix(dir+"/"+name, "/")
		tell("write "+name, nil, fsops.WriteFile(ctx, o, path, []byte("written "+name), fsops.WriteOptions{}))
		tell("write new "+name, nil, fsops.WriteFile(ctx, o, path+".n", []byte(name), fsops.WriteOptions{Exclusive: true, Mode: new(uint32(0o751))}))
		tell("replace "+name, nil, fsops.WriteFile(ctx, o, path, []byte("replaced "+name), fsops.WriteOptions{Atomic: true, Parents: true}))
	}
	outside := filepath.Join(filepath.Dir(dir), "outside")
	tell("mkdir", nil, o.CreateDirectory(ctx, dir+"/made/deep", true, fsops.FollowLinks))
	tell("mkdir not recursive", nil, o.CreateDirectory(ctx, dir+"/lost/deep", false, fsops.FollowLinks))
	tell("mkdir protected", nil, o.CreateDirectory(ctx, dir+"/.agents/skills", true, fsops.FollowLinks))
	tell("mkdir outside", nil, o.CreateDirectory(ctx, outside, true, fsops.FollowLinks))
	tell("copy", nil, o.Copy(ctx, dir+"/d", dir+"/copied", true))
	tell("copy without recursive", nil, o.Copy(ctx, dir+"/d", dir+"/copied", false))
	tell("copy onto itself", nil, o.Copy(ctx, dir+"/file", dir+"/link", false))
	tell("copy secret", nil, o.Copy(ctx, dir+"/vault/in/secret", dir+"/stolen", false))
	tell("copy outside", nil, o.Copy(ctx, dir+"/file", outside, false))
	tell("rename", nil, o.Rename(ctx, dir+"/copied", dir+"/renamed", true))
	tell("rename over", nil, o.Rename(ctx, dir+"/new", dir+"/file", false))
	tell("rename protected", nil, o.Rename(ctx, dir+"/.git", dir+"/git", true))
	tell("remove", nil, o.Remove(ctx, dir+"/renamed", true, false, fsops.FollowLinks))
	tell("remove nothing", nil, o.Remove(ctx, dir+"/renamed", true, false, fsops.FollowLinks))
	tell("remove nothing by force", nil, o.Remove(ctx, dir+"/renamed", true, true, fsops.FollowLinks))
	tell("remove a full directory", nil, o.Remove(ctx, dir+"/d", false, false, fsops.FollowLinks))
	tell("remove protected", nil, o.Remove(ctx, dir+"/.git", true, true, fsops.FollowLinks))
	tell("remove the root", nil, o.Remove(ctx, dir, true, true, fsops.FollowLinks))
	data, err := fsops.ReadFile(ctx, o, dir+"/file", fsops.FollowLinks, nil)
	tell("read again", string(data), err)
	return told
}

// TestHelperDoesWhatViewDoes: a request that crosses to a helper has the same
// outcome, to the text of the error, as one in this process.
func TestHelperDoesWhatViewDoes(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	here, there := tree(t), tree(t)

	resolved := rig.Value(resolve.Policy(workspace(t, here)))
	defer resolved.Close()
	view := rig.Value(newView(resolved.Policy))
	defer view.Close()
	files := rig.Value(pool.Files(t.Context(), workspace(t, there)))
	want := perform(t.Context(), view, here)
	got := perform(t.Context(), files, there)
	rig.Same(t, "in this process and in a helper", want, got)
	for _, needed := range []string{
		"read vault/in/secret: , open DIR/vault/in/secret: permission denied",
		"write .git/config: <nil>, open DIR/.git/config: read-only file system",
		"read file: contents of file, <nil>",
		"read again: replaced link, <nil>",
	} {
		begins := func(s string) bool { return strings.HasPrefix(s, needed) }
		rig.Is(t, slices.ContainsFunc(got, begins), true, "an outcome begins with %q", needed)
	}
	pool.Close()
	children.check(t, 1)
}

// TestReadsUnderFullReadStayHere: no process is started for them.
func TestReadsUnderFullReadStayHere(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := tree(t)
	policy := compile(t, sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read})
	f := rig.Value(pool.Files(t.Context(), policy))
	rig.Is(t, string(rig.Value(fsops.ReadFile(t.Context(), f, dir+"/link", fsops.FollowLinks, nil))), "contents of file", "read")
	rig.Is(t, rig.Value(f.Stat(t.Context(), dir+"/d", fsops.FollowLinks)).IsDirectory, true, "a directory")
	rig.Is(t, rig.Value(f.Canonicalize(t.Context(), dir+"/link", false)), dir+"/file", "canonicalize")
	rig.Is(t, len(rig.Value(f.ReadDirectory(t.Context(), dir+"/d", false))), 1, "entries of the list")
	o := fsops.WalkOptions{MaxDepth: 9, MaxDirectories: 9, MaxEntries: 9}
	rig.Is(t, len(rig.Value(f.Walk(t.Context(), dir+"/d", o)).Entries), 2, "entries of the walk")
	for _, path := range []string{"/proc/self/environ", fmt.Sprintf("/proc/%d/environ", os.Getpid())} {
		rig.Is[error](t, rig.Err(f.OpenRead(t.Context(), path, fsops.FollowLinks)), syscall.EACCES, "reading %s", path)
	}
	children.check(t, 0)
	rig.Is[error](t, write(t, pool, policy, dir+"/x"), syscall.EROFS, "writing")
	pool.Close()
	children.check(t, 1)
}

// TestLongLists: lists that take many packets arrive whole and in order.
func TestLongLists(t *testing.T) {
	t.Parallel()
	pool, _ := testPool(t, Config{})
	dir := t.TempDir()
	const files = 1200
	long := strings.Repeat("n", 200)
	for i := range files {
		rig.Must(t, os.WriteFile(fmt.Sprintf("%s/%04d-%s", dir, i, long), nil, 0o666))
	}
	rig.Must(t, os.Mkdir(dir+"/0100-\xff", 0o777))
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	want := rig.Value(fsops.Host{}.ReadDirectory(t.Context(), dir, false))
	got, err := f.ReadDirectory(t.Context(), dir, false)
	rig.Must(t, err)
	byName := cmpopts.SortSlices(func(a, b fsops.DirEntry) bool { return a.Name < b.Name })
	rig.Same(t, "listing", want, got, byName)
	// The caller's count of the size decides where a walk ends.
	for _, each := range []int{0, 500, 5000, 100_000} {
		o := fsops.WalkOptions{MaxDepth: 9, MaxDirectories: 9, MaxEntries: 50_000}
		if each > 0 {
			o.Size = func(path string, err error) int {
				n := len(path) + entryAllowance + each
				if err != nil {
					n += 1 << 20
				}
				return n
			}
		}
		want := rig.Value(fsops.Host{}.Walk(t.Context(), dir, o))
		got := rig.Value(f.Walk(t.Context(), dir, o))
		rig.Same(t, fmt.Sprintf("walk with %d bytes an entry", each), want, got, cmpopts.EquateErrors())
		rig.Is(t, got.Truncated, each > 500, "walk with %d bytes an entry is truncated", each)
		rig.Is(t, len(got.Entries) > 0, true, "walk with %d bytes an entry has some", each)
	}
}

// TestCancel: a request that is given up returns at once, and so does its
// helper.
func TestCancel(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Hang: time.Hour})
	dir := t.TempDir()
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	ctx, cancel := context.WithCancel(t.Context())
	helper, failed := slowCopy(ctx, t, f, children, dir)
	cancel()
	rig.Is(t, <-failed, context.Canceled, "the error")
	rig.Must(t, unix.Kill(helper, unix.SIGCONT))
	w := f.entry.worker
	sandboxtest.Eventually(t, "the helper gives up too", func() bool { return len(w.slots) == 0 })
	rig.Is(t, rig.Err(f.Stat(ctx, dir, fsops.FollowLinks)), context.Canceled, "with an ended context")
	rig.Check(t, write(t, pool, workspace(t, dir), dir+"/x"))
	pool.Close()
	children.check(t, 1)
}

// TestManyAtOnce: more requests than a helper takes wait, and none gets the
// reply of another.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := t.TempDir()
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	rounds := 4
	if rig.Runs(rig.Merge) {
		rounds = 20
	}
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() {
			for j := range rounds {
				path := fmt.Sprintf("%s/%d-%d", dir, i, j)
				err := fsops.WriteFile(t.Context(), f, path, make([]byte, i), fsops.WriteOptions{})
				m, serr := f.Stat(t.Context(), path, fsops.FollowLinks)
				if err := errors.Join(err, serr); err != nil || m.Size != uint64(i) {
					t.Errorf("%s: size %d, %v", path, m.Size, err)
					return
				}
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				if fd, err := f.OpenRead(ctx, path, fsops.FollowLinks); err == nil {
					unix.Close(fd)
				}
			}
		})
	}
	running.Wait()
	pool.Close()
	children.check(t, 1)
}

func TestPathTooLong(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	f := rig.Value(pool.Files(t.Context(), workspace(t, t.TempDir())))
	long := strings.Repeat("/x", maxPath)
	rig.Is[error](t, rig.Err(f.Stat(t.Context(), long, fsops.FollowLinks)), syscall.ENAMETOOLONG, "stat")
	rig.Is[error](t, f.Rename(t.Context(), "/x", long, true), syscall.ENAMETOOLONG, "rename")
	children.check(t, 0)
}

// TestHelperIsConfined looks at a helper from outside.
func TestHelperIsConfined(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := t.TempDir()
	rig.Must(t, write(t, pool, workspace(t, dir), dir+"/x"))
	proc := fmt.Sprintf("/proc/%d/", children.last())
	tasks := rig.Value(filepath.Glob(proc + "task/*/status"))
	rig.Is(t, len(tasks) > 0, true, "it has threads")
	caps := []string{"CapInh", "CapPrm", "CapEff", "CapAmb", "CapBnd"}
	if os.Getuid() != 0 {
		caps = caps[:4] // the bounding set takes a capability
	}
	for _, task := range tasks {
		status := rig.Value(os.ReadFile(task))
		want := map[string]string{"NoNewPrivs": "1", "Seccomp": "2"}
		for _, set := range caps {
			want[set] = "0000000000000000"
		}
		if !strings.Contains(task, fmt.Sprintf("task/%d/", children.last())) {
			delete(want, "CapBnd") // that of the main thread is enough, see dropEverywhere
		}
		for name, value := range want {
			rig.Is(t, strings.Contains(string(status), "\n"+name+":\t"+value+"\n"), true, "%s: %s is %s", task, name, value)
		}
	}
	rig.Is(t, string(rig.Value(os.ReadFile(proc+"environ"))), "", "environment")
	limits := string(rig.Value(os.ReadFile(proc + "limits")))
	rig.Is(t, strings.Contains(limits, "Max core file size        0                    0"), true, "no core file:\n%s", limits)
	// Owned by root: it is not dumpable.
	var st unix.Stat_t
	rig.Check(t, unix.Stat(proc+"environ", &st))
	rig.Is(t, st.Uid, 0, "owner of its environment")
	want := []string{"/", proc + "fd", "pipe", "socket", "socket"}
	var links []string
	sandboxtest.Eventually(t, "the last request's descriptor is closed", func() bool {
		links = nil
		for _, fd := range must(os.ReadDir(proc + "fd")) {
			link, _ := os.Readlink(proc + "fd/" + fd.Name()) // "" if closed by now
			link, _, _ = strings.Cut(link, ":")
			links = append(links, link)
		}
		slices.Sort(links)
		return len(links) <= len(want)
	})
	rig.Same(t, "where descriptors lead to", want, links)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
