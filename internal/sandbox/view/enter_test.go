package view

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// viewCase is what a child needs to know.
type viewCase struct {
	UID      int
	Binds    []bindMount      // made before the namespaces of the view
	Profile  *sandbox.Profile // compiled and resolved in the child; if nil, Policy is used as it is
	Policy   sandbox.Policy
	Missing  []placeholder.Missing
	Options  Options
	Attempts []sandboxtest.Attempt
	Timed    bool // print how many nanoseconds Enter took, and attempt nothing
}

// bindMount binds From to To in the mount namespace around the view.
type bindMount struct {
	From, To string
	ReadOnly bool
}

// The outer child makes mounts; the inner one enters the view in namespaces of
// its own, and makes the attempts without capabilities.
var (
	_ = sandboxtest.RegisterChild("view/outer", func(t rig.T, args []string) {
		var c viewCase
		rig.Must(t, json.Unmarshal([]byte(args[0]), &c), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
		for _, b := range c.Binds {
			rig.Must(t, unix.Mount(b.From, b.To, "", unix.MS_BIND|unix.MS_REC, ""))
			if b.ReadOnly {
				rig.Must(t, unix.Mount("", b.To, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
			}
		}
		cmd := exec.Command("/proc/self/exe", sandboxtest.ChildArg, "view/inner", args[0])
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: c.UID, HostID: c.UID, Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: c.UID, HostID: c.UID, Size: 1}},
			Credential:  &syscall.Credential{Uid: uint32(c.UID), Gid: uint32(c.UID), NoSetGroups: true},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE},
			Pdeathsig:   syscall.SIGKILL,
		}
		runtime.LockOSThread() // for Pdeathsig
		rig.Must(t, cmd.Run())
	})
	_ = sandboxtest.RegisterChild("view/inner", func(t rig.T, args []string) {
		var c viewCase
		rig.Must(t, json.Unmarshal([]byte(args[0]), &c))
		r := &resolve.Resolved{Policy: &c.Policy, Missing: c.Missing}
		if c.Profile != nil {
			r = rig.Value(resolve.Policy(rig.Value(c.Profile.Compile())))
			defer r.Close()
		}
		begin := time.Now()
		_, err := Enter(r, c.Options)
		if c.Timed {
			fmt.Println(time.Since(begin).Nanoseconds())
			rig.Must(t, err)
			return
		}
		if err != nil {
			rig.Must(t, json.NewEncoder(os.Stdout).Encode([]string{err.Error()}))
			return
		}
		runtime.LockOSThread()
		var none [2]unix.CapUserData
		rig.Must(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
		var got []string
		for _, a := range c.Attempts {
			got = append(got, a.Try())
		}
		rig.Must(t, json.NewEncoder(os.Stdout).Encode(got))
	})
)

// enter runs a case as an ordinary user and as uid 0. For each, c fills a tree
// below root and returns the case.
func enter(t *testing.T, c func(t *testing.T, root string, uid int) viewCase) {
	t.Helper()
	for _, uid := range []int{0, 1000} {
		t.Run("uid "+strconv.Itoa(uid), func(t *testing.T) {
			t.Parallel()
			if os.Getuid() != 0 {
				t.Skip("mapping other users needs uid 0")
			}
			root := rig.Value(os.MkdirTemp("", "view"))
			t.Cleanup(func() { os.RemoveAll(root) })
			// Anybody may enter root, and its path is canonical even where TMPDIR
			// is a symlink.
			root = rig.Value(filepath.EvalSymlinks(root))
			rig.Must(t, os.Chmod(root, 0o755))
			vc := c(t, root, uid)
			vc.UID, vc.Policy.Confined = uid, true
			slices.SortFunc(vc.Policy.Rules, func(a, b sandbox.Rule) int { return strings.Compare(a.Path, b.Path) })
			filepath.WalkDir(root, func(name string, _ os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				return os.Lchown(name, uid, uid)
			})
			got := runView(t, vc)
			if len(got) != len(vc.Attempts) {
				t.Fatalf("EnterView: %s", got)
			}
			for i, a := range vc.Attempts {
				rig.Is(t, got[i], a.Want, "%s", a.Call)
			}
		})
	}
}

func runView(t testing.TB, c viewCase) []string {
	t.Helper()
	out := runOuter(t, c)
	var got []string
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("child said %q: %v", out, err)
	}
	return got
}

func runOuter(t testing.TB, c viewCase) []byte {
	t.Helper()
	arg := rig.Value(json.Marshal(c))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", sandboxtest.ChildArg, "view/outer", string(arg))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	// GORACE: the race detector would wait a second before the child ends.
	// GODEBUG: the runtime would hold files of its cgroup open.
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GODEBUG=containermaxprocs=0")
	cmd.Stderr = t.Output()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("child: %v\n%s", err, out)
	}
	return out
}

func listen(t *testing.T, name string) {
	t.Helper()
	l := rig.Value(net.Listen("unix", name))
	t.Cleanup(func() { l.Close() })
	rig.Must(t, os.Chmod(name, 0o666))
}

// viewOf makes a case of the lines of testdata.
func viewOf(t *testing.T, root string, c sandboxtest.Case) (vc viewCase) {
	t.Helper()
	inRoot := strings.NewReplacer("$$", strconv.Itoa(os.Getpid()), "$", root)
	for _, files := range c.Parts[0] {
		sandboxtest.Tree(t, root, strings.Split(inRoot.Replace(files), ", ")...)
	}
	vc.Options.FreshProc = true
	for _, line := range c.Parts[1] {
		words := strings.Fields(inRoot.Replace(line))
		switch words[0] {
		case "profile":
			vc.Profile = new(sandbox.Profile)
		case "bind", "bindread":
			vc.Binds = append(vc.Binds, bindMount{words[1], words[2], words[0] == "bindread"})
		case "host's":
			vc.Options.FreshProc = false
		case "shm":
			vc.Options.ShmBytes = rig.Value(strconv.ParseInt(words[1], 10, 64))
		case "terminal":
			vc.Options.Terminal = words[1]
		default:
			vc.Missing = append(vc.Missing, addTo(&vc.Policy, words)...)
		}
	}
	if vc.Profile != nil {
		for _, rule := range vc.Policy.Rules {
			vc.Profile.Entries = append(vc.Profile.Entries, sandbox.Entry{Path: rule.Path, Access: rule.Access})
		}
	}
	return vc
}

// TestView has its cases in testdata.
func TestView(t *testing.T) {
	t.Parallel()
	for _, c := range sandboxtest.Cases(t, "testdata/enter.txt", 3) {
		t.Run(c.Name, func(t *testing.T) {
			enter(t, func(t *testing.T, root string, uid int) viewCase {
				vc := viewOf(t, root, c)
				for _, line := range c.Parts[2] {
					line = strings.Replace(line, "EROFS|EACCES", map[int]string{0: "EROFS", 1000: "EACCES"}[uid], 1)
					vc.Attempts = append(vc.Attempts, sandboxtest.Attempts(root, line)...)
				}
				return vc
			})
		})
	}
}

// TestViewOfProfile goes the whole way from a profile, with the rules that only
// resolving adds.
func TestViewOfProfile(t *testing.T) {
	t.Parallel()
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		sandboxtest.Tree(t, root, "real/repo/f", "real/repo/.agents/", "real/repo/.codex/", "real/repo/.aws/c", "way -> real",
			"store/wt/HEAD", "store/other", "private/key")
		rig.Must(t, os.WriteFile(root+"/real/repo/.git", []byte("gitdir: "+root+"/store/wt\n"), 0o644))
		// store becomes a writable root, so its protected names need objects:
		// nobody holds placeholders here.
		for _, name := range sandbox.ProtectedNames() {
			sandboxtest.Tree(t, root, "store/"+name+"/")
		}
		sandboxtest.Tree(t, root, "store/.git/HEAD", "store/.git/objects/", "store/.git/refs/")
		return viewCase{
			Profile: &sandbox.Profile{
				Entries: []sandbox.Entry{
					{Place: sandbox.PlaceMinimal, Access: sandbox.Read},
					{Place: sandbox.PlaceProjectRoots, Access: sandbox.Write},
					{Place: sandbox.PlacePath, Path: root + "/store", Access: sandbox.Write},
					{Place: sandbox.PlacePath, Path: root + "/nothing", Access: sandbox.Write},
				},
				Cwd: root + "/way/repo", WorkspaceRoots: []string{root + "/way/repo"}, Private: []string{root + "/private"},
			},
			Options: Options{FreshProc: true},
			Attempts: sandboxtest.Attempts(root,
				"ok: write real/repo/f, write way/repo/f",
				"EROFS: write real/repo/.git",
				"EBUSY: unlink real/repo/.git",
				"EROFS: write store/wt/HEAD",
				"ok: write store/other",
				"EBUSY: rename store/wt store/x",
				"dr-xr-xr-x: mode real/repo/.codex",
				"EROFS: write real/repo/.aws/c",
				"ok: open /bin/sh, open /etc/passwd",
				"ENOENT: open private",
				"EROFS: create nothing",
			),
		}
	})
}

// TestViewAbove: a directory above what a view shows has the names that lead there, and no others.
func TestViewAbove(t *testing.T) {
	t.Parallel()
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		sandboxtest.Tree(t, root, "repo/f", "other/o")
		above := []string{"dev", "etc", "proc", "usr", "zoo", strings.Split(root, "/")[1]}
		slices.Sort(above)
		return viewCase{
			Policy: sandbox.Policy{Rules: []sandbox.Rule{
				{Path: root + "/repo", Access: sandbox.Read}, {Path: "/usr", Access: sandbox.Read, Origin: sandbox.Minimal}, {Path: "/etc/passwd", Access: sandbox.Read},
			}, Links: []sandbox.Link{{Path: "/zoo/link", Target: "../usr/bin"}}},
			Options: Options{FreshProc: true},
			Attempts: sandboxtest.Attempts(root,
				strings.Join(slices.Compact(above), " ")+": list /..", "passwd: list /etc", "repo: list .",
				map[int]string{0: "EROFS", 1000: "EACCES"}[uid]+": write /etc/passwd",
			),
		}
	})
}

func TestViewSockets(t *testing.T) {
	t.Parallel()
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		sandboxtest.Tree(t, root, "repo/", "run/plain", "hid/")
		sockets := []string{root + "/run/s", root + "/repo/s", root + "/hid/s"}
		for _, name := range sockets {
			listen(t, name)
		}
		// This socket only the agent can reach, not the user of the view.
		other := rig.Value(os.MkdirTemp("", "view"))
		t.Cleanup(func() { os.RemoveAll(other) })
		listen(t, other+"/s")
		rig.Must(t, os.Chown(other, 4242, 4242))
		return viewCase{
			Policy: sandbox.Policy{Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}, {Path: root + "/repo", Access: sandbox.Write},
				{Path: root + "/hid", Access: sandbox.Denied}}},
			Options: Options{FreshProc: true,
				Sockets: append(sockets, root+"/run/gone", root+"/nowhere/s", root+"/run/plain", other+"/s")},
			Attempts: sandboxtest.Attempts(root,
				"ECONNREFUSED: connect run/s",
				"ok: connect repo/s",
				"EACCES: connect hid/s, connect "+other+"/s",
				"plain: read run/plain",
			),
		}
	})
}

func TestViewShm(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/shm"); err != nil {
		t.Skip(err)
	}
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		dir := rig.Value(os.MkdirTemp("/dev/shm", "view"))
		t.Cleanup(func() { os.RemoveAll(dir) })
		sandboxtest.Tree(t, dir, "w/f", "private/f")
		for _, name := range []string{dir, dir + "/w", dir + "/w/f"} {
			rig.Must(t, os.Chown(name, uid, uid))
		}
		return viewCase{
			Policy: sandbox.Policy{Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}, {Path: dir + "/w", Access: sandbox.Write},
				{Path: dir + "/private", Access: sandbox.Denied, Origin: sandbox.Private}}},
			Options: Options{FreshProc: true},
			Attempts: sandboxtest.Attempts(root,
				"w: list "+dir,
				"ok: write "+dir+"/w/f, create /dev/shm/x",
				"ENOENT: read "+dir+"/private/f",
			),
		}
	})
}

// TestViewRefused: if a view cannot be built, the error says what could not be
// mounted and where.
func TestViewRefused(t *testing.T) {
	t.Parallel()
	for _, c := range sandboxtest.Cases(t, "testdata/refused.txt", 3) {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			if os.Getuid() != 0 {
				t.Skip("a mount namespace needs uid 0")
			}
			root := t.TempDir()
			vc := viewOf(t, root, c)
			vc.Policy.Confined = len(c.Parts[1]) > 0
			rig.Same(t, "what came of it", []string{strings.ReplaceAll(c.Parts[2][0], "$", root)}, runView(t, vc))
		})
	}
}

// TestViewOfSwappedRoot: while a writable root and a symlink are swapped again
// and again, the target of the symlink never becomes writable.
func TestViewOfSwappedRoot(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a mount namespace needs uid 0")
	}
	root := t.TempDir()
	sandboxtest.Tree(t, root, "victim/f", "w/f", "link -> victim")
	done := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if err := unix.Renameat2(unix.AT_FDCWD, root+"/w", unix.AT_FDCWD, root+"/link", unix.RENAME_EXCHANGE); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	defer swapper.Wait()
	defer close(done)
	c := viewCase{
		Policy:   sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}, {Path: root + "/w", Access: sandbox.Write}}},
		Options:  Options{FreshProc: true},
		Attempts: sandboxtest.Attempts(root, "EROFS: write victim/f"),
	}
	entered, tries := 0, 5
	if rig.Runs(rig.Nightly) {
		tries = 100
	}
	for range tries {
		switch got := runView(t, c)[0]; {
		case got == "EROFS":
			entered++
		case !strings.HasSuffix(got, "too many levels of symbolic links"):
			t.Errorf("got %q", got)
		}
	}
	t.Logf("%d of %d entered", entered, tries)
}

// globbedMost is the limit of files that globs may deny in the tests that reach it. It is the real one
// where there is the time to make so many files.
func globbedMost() int {
	if rig.Runs(rig.Merge) {
		return maxGlobbed
	}
	return 512
}

// TestViewTooManyGlobbed: a command cannot keep later ones from starting by
// making many files that a glob denies: their directories are hidden.
func TestViewTooManyGlobbed(t *testing.T) {
	t.Parallel()
	most := globbedMost()
	fd := rig.Value(unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	fill := func(root string, from, to int) {
		rig.Must(t, os.MkdirAll(root, 0o755))
		for i := from; i < to; i++ {
			rig.Must(t, os.WriteFile(fmt.Sprintf("%s/%d.env", root, i), nil, 0o600))
		}
	}
	root := t.TempDir()
	p := &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}, Globs: []sandbox.Glob{{Base: root, Pattern: "**/*.env"}}}
	check := func(what string, files int, hidden ...string) {
		t.Helper()
		got, dirs, err := atMost(most, fd, p)
		for i := range hidden {
			hidden[i] = root + hidden[i]
		}
		rig.Is(t, fmt.Sprint(len(got), dirs, err), fmt.Sprint(files, hidden, nil), "%s: files, directories", what)
	}
	fill(root+"/a/few", 0, 10)
	fill(root+"/a/many/in", 0, most-10)
	check("as many as can be", most)
	fill(root+"/b", 0, 1)
	check("one more", 11, "/a/many/in")
	for i := range most/16 + 1 { // many in all, but no directory is a crowd
		fill(fmt.Sprintf("%s/a/many/%d", root, i), 0, min(20, most/32))
	}
	check("in many directories", 11, "/a/many")
	fill(root, 0, most)
	check("at the top", 0, "")
}

// TestViewManyTooDeep: many directories that lie too deep are not hidden one by
// one, which would take ever longer, but together with a directory above them.
func TestViewManyTooDeep(t *testing.T) {
	t.Parallel()
	fd := rig.Value(unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	root := t.TempDir()
	deep, most := root+strings.Repeat("/d", maxGlobDepth-4), globbedMost()
	for i := range most / 3 {
		rig.Must(t, os.MkdirAll(fmt.Sprintf("%s/%d/d/d/d/d", deep, i), 0o755))
	}
	g := globber{
		most:   most,
		policy: &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}, Globs: []sandbox.Glob{{Base: root, Pattern: "**/*.env"}}},
		files:  map[string]bool{}, hidden: map[string]bool{},
	}
	if err := g.glob(fd, g.policy.Globs[0]); err != nil || g.weight() > most || len(g.hidden) == 0 || g.hidden[root] {
		t.Errorf("%d directories are hidden, %v", len(g.hidden), err)
	}
}

// TestViewTooDeep: directories that lie too deep are hidden, and those with files
// or directories whose path is longer than the kernel takes.
func TestViewTooDeep(t *testing.T) {
	t.Parallel()
	fd := rig.Value(unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	for _, tt := range []struct {
		name   string
		dir    string // the name of nested directories, one in the other
		depth  int    // how many they are
		file   string // in the innermost
		hidden bool
	}{
		{"not too deep", "d", 200, "secret.env", false},
		{"too deep", "d", 300, "secret.env", true},
		{"a long path", strings.Repeat("l", 200), 20, strings.Repeat("n", 200) + ".env", true},
		{"a long path to something else", strings.Repeat("l", 200), 19, strings.Repeat("n", 250), false},
		{"a directory with a long path", strings.Repeat("l", 200), 22, "secret.env", true},
	} {
		root := t.TempDir()
		p := &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}, Globs: []sandbox.Glob{{Base: root, Pattern: "**/*.env"}}}
		dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		for range tt.depth {
			var next int
			if err == nil {
				if err = unix.Mkdirat(dir, tt.dir, 0o755); err == nil {
					next, err = unix.Openat(dir, tt.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
				}
				unix.Close(dir)
				dir = next
			}
		}
		if err == nil {
			err = unix.Mknodat(dir, tt.file, unix.S_IFREG|0o600, 0)
			unix.Close(dir)
		}
		rig.Must(t, err)
		files, hidden, err := deniedFiles(fd, p)
		if err != nil || len(hidden) > 1 || tt.hidden != (len(hidden) == 1) {
			t.Errorf("%s: %d files, %d directories hidden, %v", tt.name, len(files), len(hidden), err)
		}
		for _, name := range append(files, hidden...) {
			rig.Is(t, len(name) < unix.PathMax, true, "%s: a path of %d bytes", tt.name, len(name))
		}
	}
}

// TestViewCrowded: a view can be built if a directory has to be hidden in which
// other rules have their paths.
func TestViewCrowded(t *testing.T) {
	rig.Tier(t, rig.Merge) // it makes 8193 files, twice
	t.Parallel()
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		sandboxtest.Tree(t, root, "w/x", "w/deep/keep/f", "w/deep/.git/f", "w/deep/vendor/prod.env", "w/deep/sub/prod.env", "w/deep/list")
		for i := range maxGlobbed + 1 {
			rig.Must(t, os.WriteFile(fmt.Sprintf("%s/w/deep/%d.env", root, i), nil, 0o600))
		}
		return viewCase{
			Policy: sandbox.Policy{
				Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}, {Path: root + "/w", Access: sandbox.Write}, {Path: root + "/w/deep/keep", Access: sandbox.Write},
					{Path: root + "/w/deep/.git", Access: sandbox.Read, Origin: sandbox.Protected}, {Path: root + "/w/deep/vendor", Access: sandbox.Read},
					{Path: root + "/w/deep/sub", Access: sandbox.Write}, {Path: root + "/w/deep/sub/prod.env", Access: sandbox.Read}, {Path: root + "/w/deep/list", Access: sandbox.Read}},
				Globs: []sandbox.Glob{{Base: root + "/w", Pattern: "**/*.env"}},
			},
			Options: Options{FreshProc: true},
			Attempts: sandboxtest.Attempts(root,
				"ok: write w/x",
				"EACCES: list w/deep, open w/deep/1.env, create w/deep/new",
				"EBUSY: rename w/deep w/shallow",
				// The paths of the other rules are hidden too: nobody has searched
				// them for denied files.
				"EACCES: read w/deep/vendor/prod.env, read w/deep/sub/prod.env, read w/deep/list, write w/deep/keep/f, write w/deep/.git/f",
			),
		}
	})
}

// TestViewConsole: the view shows one terminal of the host, as /dev/console, and
// no other device of the host's /dev/pts.
func TestViewConsole(t *testing.T) {
	t.Parallel()
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { ptmx.Close() })
	n := rig.Value(unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN))
	rig.Must(t, unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0))
	terminal := "/dev/pts/" + strconv.Itoa(n)
	enter(t, func(t *testing.T, root string, uid int) viewCase {
		c := viewCase{
			Policy:  sandbox.Policy{Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}},
			Options: Options{FreshProc: true, Terminal: terminal},
			Attempts: sandboxtest.Attempts(root,
				"ENOENT: open "+terminal,
				"Dcrw-------: mode /dev/console",
			),
		}
		if uid == 0 {
			c.Attempts = append(c.Attempts, sandboxtest.Attempts(root, "ok: write /dev/console")...)
		}
		return c
	})
}

func TestSocketPaths(t *testing.T) {
	t.Parallel()
	root := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	sandboxtest.Tree(t, root, "real dir/", "alias -> real dir", "gone/")
	listen(t, root+"/alias/with space")
	listen(t, root+"/gone/s")
	rig.Must(t, os.Remove(root+"/gone/s"))
	paths := rig.Value(SocketPaths())
	paths = slices.DeleteFunc(paths, func(name string) bool { return !pathname.Within(name, root) })
	rig.Same(t, "what came of it", []string{root + "/real dir/with space"}, paths)
}

// TestSocketPathsOfMany: a process that binds too many sockets does not make
// SocketPaths fail, and so keeps no command from starting.
func TestSocketPathsOfMany(t *testing.T) {
	rig.Tier(t, rig.Merge) // it binds 4196 sockets
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a network namespace needs uid 0")
	}
	cmd := sandboxtest.ChildCommand(t, "sockets/many", t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	rig.Check(t, cmd.Run())
}

var _ = sandboxtest.RegisterChild("sockets/many", func(t rig.T, args []string) {
	const many = maxSockets + 100
	rig.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: many + 100, Max: many + 100}))
	for i := range many {
		fd := rig.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
		rig.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join(args[0], strconv.Itoa(i))}))
	}
	rig.Is(t, len(rig.Value(SocketPaths())), maxSockets, "paths")
})

func TestTableHead(t *testing.T) {
	t.Parallel()
	const line = "0: 0 0 0 0 0 0 /x\n"
	for _, n := range []int{0, 1, maxUnixTable/len(line) + 1, maxUnixTable} {
		text := rig.Value(tableHead(strings.NewReader(strings.Repeat(line, n))))
		rig.Is(t, len(text), min(n, maxUnixTable/len(line))*len(line), "bytes of %d lines", n)
	}
}

func FuzzBoundPaths(f *testing.F) {
	const head = "Num       RefCount Protocol Flags    Type St Inode Path\n"
	f.Add([]byte(head + "0000000038f00a21: 00000003 00000000 00000000 0001 03    38\n0000000038f00a21: 00000002 00000000 00010000 0001 01 17 /run/a b\n"))
	f.Add([]byte(head + "0: 0 0 0 0 0 0 @abstract\n0: 0 0 0 0 0 0 relative\n0: 0 0 0 0 0 0 /x"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, name := range boundPaths(text) {
			if !strings.HasPrefix(name, "/") || strings.Contains(name, "\n") || !strings.Contains(string(text), name) {
				t.Errorf("boundPaths gave %q", name)
			}
		}
	})
}

func BenchmarkEnterView(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("a mount namespace needs uid 0")
	}
	root := b.TempDir()
	rules := []sandbox.Rule{{Path: "/", Access: sandbox.Read}}
	var missing []placeholder.Missing
	for _, name := range []string{"a", "b", "c"} {
		dir := filepath.Join(root, name)
		rules = append(rules, sandbox.Rule{Path: dir, Access: sandbox.Write})
		for _, protected := range []string{".agents", ".aws", ".codex", ".git"} {
			rig.Must(b, os.MkdirAll(filepath.Join(dir, protected), 0o755))
			rules = append(rules, sandbox.Rule{Path: filepath.Join(dir, protected), Access: sandbox.Read, Origin: sandbox.Protected})
			if protected != ".git" {
				missing = append(missing, placeholder.Missing{Parent: dir, Name: protected, Dir: true})
			}
		}
	}
	c := viewCase{Policy: sandbox.Policy{Confined: true, Rules: rules}, Missing: missing, Options: Options{FreshProc: true}, Timed: true}
	var times []int
	for b.Loop() {
		n := rig.Value(strconv.Atoi(strings.TrimSpace(string(runOuter(b, c)))))
		times = append(times, n)
	}
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2])/1e3, "µs-median/view")
	b.ReportMetric(float64(times[len(times)*95/100])/1e3, "µs-p95/view")
}
