package placeholder

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// four returns the protected names of root, which get directories, and a denied
// name, which gets a file.
func four(root string) []Missing {
	return []Missing{
		{Parent: root, Name: ".git", Dir: true}, {Parent: root, Name: ".agents", Dir: true}, {Parent: root, Name: ".codex", Dir: true},
		{Parent: root, Name: ".aws", Dir: true}, {Parent: root, Name: "secret"},
	}
}

func openPlaceholders(t *testing.T, dir string) *Placeholders {
	t.Helper()
	p := rig.Value(Open(dir))
	t.Cleanup(func() { rig.Check(t, p.Close()) })
	return p
}

func hold(t *testing.T, p *Placeholders, missing ...Missing) (release func()) {
	t.Helper()
	return rig.Value(p.Hold(missing))
}

// wantListing compares the names in dir, with a slash behind those of directories.
func wantListing(t *testing.T, dir, want string) {
	t.Helper()
	var names []string
	for _, e := range rig.Value(os.ReadDir(dir)) {
		names = append(names, e.Name()+map[bool]string{true: "/"}[e.IsDir()])
	}
	rig.Is(t, strings.Join(names, " "), want, "%s has", dir)
}

const allFour = ".agents/ .aws/ .codex/ .git/ secret"

func TestHold(t *testing.T) {
	t.Parallel()
	root, state := t.TempDir(), t.TempDir()
	p := openPlaceholders(t, state)
	first := hold(t, p, four(root)...)
	wantListing(t, root, allFour)
	for _, m := range four(root) {
		info := rig.Value(os.Lstat(filepath.Join(root, m.Name)))
		want := os.FileMode(0o444)
		if m.Dir {
			want = os.ModeDir | 0o555
		}
		rig.Is(t, info.Mode(), want, "%s has mode", m.Name)
		st := info.Sys().(*syscall.Stat_t)
		is := IsPlaceholder(&unix.Stat_t{Mode: st.Mode, Size: st.Size, Mtim: unix.Timespec(st.Mtim)})
		rig.Is(t, is, true, "%s is a placeholder", m.Name)
	}
	second := hold(t, p, four(root)[:2]...)
	first()
	first()
	wantListing(t, root, ".agents/ .git/")
	second()
	wantListing(t, root, "")
}

func TestHoldUmask(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rig.Is(t, sandboxtest.RunChild(t, "placeholders/umask", t.TempDir(), root), "dr-xr-xr-x -r--r--r--", "modes")
}

var _ = sandboxtest.RegisterChild("placeholders/umask", func(t rig.T, args []string) {
	unix.Umask(0o777)
	p := rig.Value(Open(args[0]))
	release := rig.Value(p.Hold([]Missing{{Parent: args[1], Name: "dir", Dir: true}, {Parent: args[1], Name: "file"}}))
	fmt.Print(rig.Value(os.Lstat(args[1]+"/dir")).Mode(), " ", rig.Value(os.Lstat(args[1]+"/file")).Mode())
	release()
	rig.Must(t, p.Close())
})

// TestHoldLeavesUserData: objects that somebody else made are not touched,
// whether they were made before a name was held, meanwhile or afterwards.
func TestHoldLeavesUserData(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name          string
		before, while func(path string) error
		want          string
	}{
		{name: "empty directory", before: mkdir, want: "x/"},
		{name: "empty read-only directory", before: func(p string) error { return os.Mkdir(p, 0o555) }, want: "x/"},
		{name: "empty file", before: touch, want: "x"},
		{name: "symlink", before: func(p string) error { return os.Symlink("nowhere", p) }, want: "x"},
		{name: "fifo", before: func(p string) error { return unix.Mkfifo(p, 0o444) }, want: "x"},
		{name: "something put into it", while: func(p string) error {
			return errors.Join(os.Chmod(p, 0o755), touch(p+"/file"))
		}, want: "x/"},
		{name: "used and emptied again", while: func(p string) error {
			return errors.Join(os.Chmod(p, 0o755), touch(p+"/file"), os.Remove(p+"/file"))
		}, want: "x/"},
		{name: "something put into it with the time kept", while: func(p string) error {
			return errors.Join(os.Chmod(p, 0o755), touch(p+"/file"), os.Chmod(p, 0o555),
				os.Chtimes(p, time.Time{}, time.Unix(placeholderTime, 0)))
		}, want: "x/"},
		{name: "made writable", while: func(p string) error { return os.Chmod(p, 0o755) }, want: "x/"},
		{name: "replaced by a directory", while: func(p string) error { return errors.Join(os.Remove(p), mkdir(p)) }, want: "x/"},
		{name: "replaced by a file", while: func(p string) error { return errors.Join(os.Remove(p), touch(p)) }, want: "x"},
		{name: "removed", while: os.Remove, want: ""},
		{name: "moved", while: func(p string) error { return os.Rename(p, p+"-moved") }, want: ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			path := filepath.Join(root, "x")
			p := openPlaceholders(t, t.TempDir())
			if tt.before != nil {
				rig.Must(t, tt.before(path))
			}
			release := hold(t, p, Missing{Parent: root, Name: "x", Dir: true})
			if tt.while != nil {
				rig.Must(t, tt.while(path))
			}
			release()
			wantListing(t, root, tt.want)
		})
	}
}

func mkdir(path string) error { return os.Mkdir(path, 0o755) }
func touch(path string) error { return os.WriteFile(path, nil, 0o644) }

// TestHoldAgain: when somebody has moved or removed a placeholder that is held,
// the next Hold of the name makes a new one.
func TestHoldAgain(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	m := Missing{Parent: root, Name: "x", Dir: true}
	p := openPlaceholders(t, t.TempDir())
	first := hold(t, p, m)
	rig.Must(t, os.Remove(root+"/x"))
	second := hold(t, p, m)
	wantListing(t, root, "x/")
	first()
	wantListing(t, root, "x/")
	second()
	wantListing(t, root, "")
}

// TestRenamedParent: a placeholder is found where its parent was moved.
func TestRenamedParent(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	rig.Must(t, os.Mkdir(top+"/a", 0o755))
	p := openPlaceholders(t, t.TempDir())
	release := hold(t, p, four(top+"/a")...)
	rig.Must(t, os.Rename(top+"/a", top+"/b"))
	release()
	wantListing(t, top+"/b", "")
}

// TestHoldRefused: if a name cannot be held, the error has its path, and none of
// the names of that call stays held.
func TestHoldRefused(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rig.Must(t, os.Symlink(root, root+"/link"), touch(root+"/file"))
	p := openPlaceholders(t, t.TempDir())
	for _, m := range []Missing{
		{Parent: root + "/gone", Name: "x", Dir: true},
		{Parent: root + "/link", Name: "x", Dir: true},
		{Parent: root + "/file", Name: "x", Dir: true},
		{Parent: "relative", Name: "x", Dir: true},
		{Parent: root, Name: "", Dir: true},
		{Parent: root, Name: "..", Dir: true},
		{Parent: root, Name: "a/b", Dir: true},
		{Parent: root, Name: strings.Repeat("n", 256), Dir: true},
	} {
		release, err := p.Hold([]Missing{{Parent: root, Name: "fine", Dir: true}, m})
		if err == nil {
			release()
			t.Errorf("%+v was held", m)
		} else if !strings.Contains(err.Error(), m.Parent+"/"+m.Name) {
			t.Errorf("%+v: %q does not name the path", m, err)
		}
	}
	wantListing(t, root, "file link")
	rig.Must(t, p.Close())
	rig.Is(t, rig.Err(p.Hold([]Missing{{Parent: root, Name: "x", Dir: true}})), os.ErrClosed, "Hold after Close")
}

// TestHoldWithoutRights: an ordinary user skips directories of others in which it
// can create nothing. Its own directories it does not skip: it could give itself
// the right, so Hold fails there. In a directory such as /tmp it shares the
// placeholders of others, which it cannot remove. It keeps what looks like one
// and is locked, or cannot be read, as any other object.
func TestHoldWithoutRights(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to become somebody else")
	}
	const user = 65534
	top := t.TempDir()
	theirs, ours, sticky, forged := top+"/theirs", top+"/ours", top+"/sticky", top+"/forged"
	for _, dir := range []string{theirs, ours, sticky, forged, forged + "/.git", forged + "/.aws"} {
		rig.Must(t, os.Mkdir(dir, 0o755))
	}
	hold(t, openPlaceholders(t, t.TempDir()), four(sticky)...)
	rig.Must(t, os.Chmod(sticky, os.ModeSticky|0o777), os.Chmod(forged, os.ModeSticky|0o777), os.Chmod(forged+"/.git", 0o555), os.Chmod(forged+"/.aws", 0o100))
	for _, name := range []string{"/.git", "/.aws"} {
		rig.Must(t, os.Chtimes(forged+name, time.Time{}, time.Unix(placeholderTime, 0)))
	}
	locked := rig.Value(os.Open(forged + "/.git"))
	defer locked.Close()
	rig.Must(t, unix.Flock(int(locked.Fd()), unix.LOCK_EX))
	rig.Must(t, os.Chown(ours, user, user), os.Chmod(filepath.Dir(top), 0o755), os.Chmod(ours, 0o555))
	for parent, want := range map[string]string{
		theirs: "held []", ours: "run chmod u+w on the folder", sticky: "held [.agents .aws .codex .git secret]\n5 left", forged: "held [.agents .aws .codex .git secret]\n0 left",
	} {
		before := listingOf(parent)
		state := filepath.Join(t.TempDir(), "state")
		rig.Must(t, os.Mkdir(state, 0o700), os.Chown(state, user, user), os.Chmod(filepath.Dir(state), 0o755))
		cmd := sandboxtest.ChildCommand(t, "placeholders/hold-once", state, parent)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, err := cmd.CombinedOutput()
		rig.Is(t, strings.Contains(string(out), want), true, "%s: %s is in %s (%v)", parent, want, out, err)
		rig.Same(t, parent, listingOf(parent), before)
	}
}

var _ = sandboxtest.RegisterChild("placeholders/hold-once", func(t rig.T, args []string) {
	p := rig.Value(Open(args[0]))
	release, err := p.Hold(four(args[1]))
	rig.Must(t, err)
	fmt.Println("held", listingOf(args[1]))
	release()
	rig.Value(p.Hold(four(args[1])))() // what is left is left once
	fmt.Println(len(p.left), "left")
	rig.Must(t, p.Close())
})

func listingOf(dir string) []string {
	entries, _ := os.ReadDir(dir) // after an error, nothing is listed
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestReadOnlyParent: Hold skips names on a read-only file system, where nobody
// can create anything.
func TestReadOnlyParent(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	cmd := sandboxtest.ChildCommand(t, "placeholders/read-only", t.TempDir(), t.TempDir())
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	rig.Check(t, cmd.Run())
}

var _ = sandboxtest.RegisterChild("placeholders/read-only", func(t rig.T, args []string) {
	rig.Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tmpfs", args[1], "tmpfs", unix.MS_RDONLY, ""))
	p := rig.Value(Open(args[0]))
	rig.Value(p.Hold(four(args[1])))()
	rig.Must(t, p.Close())
})

// steps are the moments at which an agent may die: while it makes a placeholder,
// holds it and removes it, and when all are released.
var steps = []string{"recorded", "made", "marked", "known", "placed", "held", "locked", "seen", "away", "released"}

// TestCrash kills an agent at each step of its first, second and last name;
// the next one leaves nothing behind.
func TestCrash(t *testing.T) {
	t.Parallel()
	for _, step := range steps {
		for _, nth := range []string{"1", "2", "5"} {
			if step == "away" && nth != "1" {
				continue // only files are moved away, and there is one
			}
			t.Run(step+" "+nth, func(t *testing.T) {
				t.Parallel()
				root, state := t.TempDir(), t.TempDir()
				rig.Must(t, mkdir(root+"/.aws")) // the user's
				cmd := sandboxtest.ChildCommand(t, "placeholders/crash", state, root, step, nth)
				out, err := cmd.CombinedOutput()
				if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
					t.Fatalf("the agent was not killed: %v %s", err, out)
				}
				rig.Is(t, step == "released" || len(listingOf(state)) > 0, true, "there is a ledger")
				p := openPlaceholders(t, state)
				wantListing(t, root, ".aws/")
				rig.Must(t, p.Close())
				wantListing(t, state, "")
			})
		}
	}
}

// TestCrashKeepsUserData: what somebody has put into the placeholder of a dead
// agent stays.
func TestCrashKeepsUserData(t *testing.T) {
	t.Parallel()
	root, state := t.TempDir(), t.TempDir()
	if out, err := sandboxtest.ChildCommand(t, "placeholders/crash", state, root, "held", "1").CombinedOutput(); err == nil {
		t.Fatalf("the agent was not killed: %s", out)
	}
	rig.Must(t, os.Chmod(root+"/.git", 0o755), touch(root+"/.git/HEAD"), os.Remove(root+"/.codex"), mkdir(root+"/.codex"))
	openPlaceholders(t, state)
	wantListing(t, root, ".codex/ .git/")
	wantListing(t, root+"/.git", "HEAD")
}

var _ = sandboxtest.RegisterChild("placeholders/crash", func(t rig.T, args []string) {
	var nth, seen int
	_ = rig.Value(fmt.Sscan(args[3], &nth))
	p := rig.Value(Open(args[0]))
	missing := slices.DeleteFunc(four(args[1]), func(m Missing) bool { return m.Name == ".aws" })
	missing = append(missing, Missing{Parent: args[1], Name: "fifth", Dir: true})
	crash := func(step string) {
		if step != args[2] {
			return
		}
		if seen++; seen == nth || step == "held" || step == "released" {
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			select {}
		}
	}
	p.ledger.step = crash
	release := rig.Value(p.Hold(missing))
	crash("held")
	release()
	crash("released")
	t.Fatalf("it has lived")
})

// holder is another agent that holds names until its stdin ends.
type holder struct {
	cmd   *exec.Cmd
	stdin io.Closer
}

func startHolder(t *testing.T, state, root string) *holder {
	t.Helper()
	cmd := sandboxtest.ChildCommand(t, "placeholders/holder", state, root)
	stdin := rig.Value(cmd.StdinPipe())
	stdout := rig.Value(cmd.StdoutPipe())
	cmd.Stderr = os.Stderr
	rig.Must(t, cmd.Start())
	rig.Is(t, rig.Value(bufio.NewReader(stdout).ReadString('\n')), "held\n", "the other agent said")
	return &holder{cmd, stdin}
}

func (h *holder) end(t *testing.T) {
	t.Helper()
	rig.Must(t, h.stdin.Close(), h.cmd.Wait())
}

func (h *holder) kill(t *testing.T) {
	t.Helper()
	rig.Must(t, h.cmd.Process.Kill())
	rig.Is(t, h.cmd.Wait() != nil, true, "a killed agent has failed")
}

var _ = sandboxtest.RegisterChild("placeholders/holder", func(t rig.T, args []string) {
	p := rig.Value(Open(args[0]))
	release := rig.Value(p.Hold(four(args[1])))
	fmt.Println("held")
	err := rig.Err(io.Copy(io.Discard, os.Stdin))
	release()
	rig.Must(t, err, p.Close())
})

// TestTwoAgents: a placeholder stays until the last agent that holds it has
// released it, whichever agent made it. This holds too if the agents' ledgers lie
// in two directories, as those of two users or in two containers do.
func TestTwoAgents(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		apart bool
	}{{"one state directory", false}, {"two state directories", true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root, state := t.TempDir(), t.TempDir()
			other := state
			if tt.apart {
				other = t.TempDir()
			}
			p := openPlaceholders(t, state)

			h := startHolder(t, other, root)
			release := hold(t, p, four(root)...)
			h.end(t)
			wantListing(t, root, allFour)
			release()
			wantListing(t, root, "")

			release = hold(t, p, four(root)...)
			h = startHolder(t, other, root)
			release()
			wantListing(t, root, allFour)
			h.end(t)
			wantListing(t, root, "")

			// The other agent holds last, and is killed: our ledger still has the
			// placeholders, so we remove them.
			release = hold(t, p, four(root)...)
			h = startHolder(t, other, root)
			release()
			h.kill(t)
			wantListing(t, root, allFour)
			hold(t, p)()
			wantListing(t, root, "")

			// The other agent holds first, and is killed. A third agent sweeps its
			// ledger while we need the placeholders: they stay.
			h = startHolder(t, other, root)
			release = hold(t, p, four(root)...)
			h.kill(t)
			sweeper := openPlaceholders(t, other)
			wantListing(t, root, allFour)
			release()
			wantListing(t, root, "")
			hold(t, sweeper)()
			rig.Is(t, len(sweeper.left), 0, "are still remembered")
		})
	}
}

// TestLostLedger: if the ledger of a dead agent is lost, with its container for
// one, its placeholders go when the next agent has held and released the names.
func TestLostLedger(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	startHolder(t, t.TempDir(), root).kill(t)
	wantListing(t, root, allFour)
	p := openPlaceholders(t, t.TempDir())
	hold(t, p, four(root)...)()
	wantListing(t, root, "")
}

// TestLockedByOthers: a process that can read a placeholder may lock it, but that
// keeps no agent from holding the name.
func TestLockedByOthers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	lock := func(how int) *os.File {
		f := rig.Value(os.Open(root + "/x"))
		t.Cleanup(func() { _ = f.Close() }) // if the test has not closed it
		rig.Must(t, unix.Flock(int(f.Fd()), how|unix.LOCK_NB))
		return f
	}
	m := Missing{Parent: root, Name: "x", Dir: true}
	startHolderOf(t, root).kill(t)
	p := openPlaceholders(t, t.TempDir())
	exclusive := lock(unix.LOCK_EX)
	release := hold(t, p, m)
	same := os.SameFile(rig.Value(exclusive.Stat()), rig.Value(os.Stat(root+"/x")))
	rig.Is(t, same, false, "the locked one is still there")

	shared := lock(unix.LOCK_SH)
	release()
	wantListing(t, root, "x/")
	rig.Must(t, shared.Close())
	hold(t, p)()
	wantListing(t, root, "")
}

// startHolderOf starts another agent that holds only the name x.
func startHolderOf(t *testing.T, root string) *holder {
	t.Helper()
	h := startHolder(t, t.TempDir(), root)
	rig.Must(t, os.Rename(root+"/.git", root+"/x"))
	for _, m := range four(root)[1:] {
		rig.Must(t, os.Remove(filepath.Join(root, m.Name)))
	}
	return h
}

// TestCrowd: many goroutines hold and release the same names at once, in two
// agents. While one holds a name, there is an object; in the end nothing is left.
func TestCrowd(t *testing.T) {
	t.Parallel()
	root, state := t.TempDir(), t.TempDir()
	agents := []*Placeholders{openPlaceholders(t, state), openPlaceholders(t, state)}
	var crowd sync.WaitGroup
	for i := range 8 {
		crowd.Go(func() {
			for range 200 {
				release, err := agents[i%2].Hold(four(root))
				if err != nil {
					t.Error(err)
					return
				}
				for _, m := range four(root) {
					rig.Check(t, rig.Err(os.Lstat(filepath.Join(root, m.Name))))
				}
				release()
			}
		})
	}
	crowd.Wait()
	for _, p := range agents {
		hold(t, p)()
	}
	wantListing(t, root, "")
}

func TestStateDir(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	rig.Must(t, os.Mkdir(top+"/ours", 0o700), os.Mkdir(top+"/open", 0o755), touch(top+"/file"), os.Symlink(top+"/ours", top+"/link"))
	for _, tt := range []struct {
		candidates []string
		want       string
	}{
		{[]string{"/new"}, "/new"},
		{[]string{"/ours"}, "/ours"},
		{[]string{"/gone/below", "/open", "/file", "/link", "/ours"}, "/ours"},
		{[]string{"/open", "/link"}, ""},
		{nil, ""},
	} {
		var candidates []string
		for _, c := range tt.candidates {
			candidates = append(candidates, top+c)
		}
		got, err := StateDir(candidates...)
		rig.Is(t, err == nil, tt.want != "", "StateDir(%q) has one: %v", candidates, err)
		rig.Is(t, strings.TrimPrefix(got, top), tt.want, "StateDir(%q)", candidates)
	}
	rig.Is(t, rig.Err(StateDir("relative")) != nil, true, "a relative path is refused")
}

// FuzzRecord: a record that was read from a ledger leads nowhere outside its
// parent, and a record that was written is read back.
func FuzzRecord(f *testing.F) {
	for _, r := range []record{
		{parent: "/repo", in: objectID{1, 2}, name: ".git", temp: tempPrefix + "A", object: objectID{3, 4}},
		{parent: "/", name: "x", temp: tempPrefix + "B"},
	} {
		f.Add(rig.Value(r.encode()))
	}
	f.Add(make([]byte, slotHeader))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, ok := decodeRecord(data)
		if !ok {
			return
		}
		for _, name := range []string{r.name, r.temp} {
			rig.Is(t, strings.Contains(name, "/") || name == "..", false, "%+v leads elsewhere", r)
		}
		again := rig.Value(r.encode())
		back, _ := decodeRecord(again)
		rig.Is(t, back, r, "encoded and decoded")
	})
}

func BenchmarkHold(b *testing.B) {
	for _, where := range []string{"/dev/shm", os.TempDir()} {
		for _, alone := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/alone=%t", where, alone), func(b *testing.B) {
				root := rig.Value(os.MkdirTemp(where, "placeholders"))
				defer os.RemoveAll(root)
				state := rig.Value(os.MkdirTemp("/dev/shm", "placeholders")) // as StateDirs has it
				defer os.RemoveAll(state)
				p := rig.Value(Open(state))
				defer p.Close()
				if !alone {
					release := rig.Value(p.Hold(four(root)[:4]))
					defer release()
				}
				b.ReportAllocs()
				for b.Loop() {
					release := rig.Value(p.Hold(four(root)[:4]))
					release()
				}
			})
		}
	}
}

// TestCloseBesideRelease: an agent that ends while a command does releases and
// closes at once. Whoever is first, nothing is left, also no ledger.
func TestCloseBesideRelease(t *testing.T) {
	t.Parallel()
	for range 50 {
		root, state := t.TempDir(), t.TempDir()
		p := rig.Value(Open(state))
		var released sync.WaitGroup
		for _, m := range four(root) {
			released.Go(hold(t, p, m))
		}
		rig.Check(t, p.Close())
		released.Wait()
		wantListing(t, root, "")
		wantListing(t, state, "")
	}
}
