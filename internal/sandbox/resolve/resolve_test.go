package resolve

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/pathname"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// asked makes a profile of lines such as "write $/repo", "skip read $/x",
// "glob $/x/*", "private $/x" and "socket $/x".
func asked(base string, lines ...string) sandbox.Profile {
	var p sandbox.Profile
	for _, line := range lines {
		line, skipped := strings.CutPrefix(strings.ReplaceAll(line, "$", base), "skip ")
		word, path, _ := strings.Cut(line, " ")
		e := sandbox.Entry{Path: path, SkipMissing: skipped}
		switch word {
		case "private":
			p.Private = append(p.Private, path)
			continue
		case "socket":
			p.Sockets = append(p.Sockets, path)
			continue
		case "device":
			p.Devices = append(p.Devices, path)
			continue
		case "minimal":
			e.Place, e.Access = sandbox.PlaceMinimal, sandbox.Read
		case "glob":
			e.Place, e.Access = sandbox.PlaceGlob, sandbox.Denied
		case "replaceable":
			e.Access, e.Replaceable = sandbox.Denied, true
		default:
			e.Access = sandbox.Access(slices.Index([]string{"hidden", "denied", "read", "write"}, word))
		}
		p.Entries = append(p.Entries, e)
	}
	return p
}

func resolve(t *testing.T, p sandbox.Profile) (*Resolved, error) {
	t.Helper()
	policy := rig.Value(p.Compile())
	r, err := Policy(policy)
	if err == nil {
		t.Cleanup(r.Close)
	}
	return r, err
}

// policyLines prints the rules of a policy, one a line, and of the protected ones
// only how many there are.
func policyLines(p *sandbox.Policy) []string {
	var out []string
	protected := 0
	for line := range strings.Lines(p.String()) {
		if strings.HasSuffix(line, "(protected)\n") {
			protected++
			continue
		}
		if !strings.HasPrefix(line, "network") {
			out = append(out, strings.Join(strings.Fields(line), " "))
		}
	}
	if protected > 0 {
		out = append(out, fmt.Sprintf("%d protected", protected))
	}
	return out
}

// resolvedLines prints the rules, the links and what is missing of each directory, with $ for base.
func resolvedLines(base string, r *Resolved) []string {
	out := policyLines(r.Policy)
	for i, m := range r.Missing {
		if i == 0 || r.Missing[i-1].Parent != m.Parent {
			out = append(out, "missing in "+m.Parent+":")
		}
		out[len(out)-1] += " " + m.Name + map[bool]string{true: "/"}[m.Dir]
	}
	for i := range out {
		out[i] = strings.ReplaceAll(out[i], base, "$")
	}
	return out
}

// TestResolve has its cases in testdata.
func TestResolve(t *testing.T) {
	t.Parallel()
	unseen := strings.NewReplacer(`\n`, "\n", `\r`, "\r", `\0`, "\x00", "LONG", "gitdir: /"+strings.Repeat("x/", maxPointer/2))
	for _, c := range sandboxtest.Cases(t, "testdata/resolve.txt", 3) {
		tree, lines, want := c.Parts[0], c.Parts[1], c.Parts[2]
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			base := sandboxtest.Sow(t)
			for _, files := range tree {
				sandboxtest.Tree(t, base, strings.Split(unseen.Replace(files), ", ")...)
			}
			r, err := resolve(t, asked(base, lines...))
			if why, refused := strings.CutPrefix(strings.Join(want, "\n"), "refused: "); refused {
				rig.Says(t, err, strings.ReplaceAll(why, "$", base), "what came of it")
				return
			}
			rig.Must(t, err)
			rig.Same(t, "what came of it", want, resolvedLines(base, r))
			rig.Is(t, r.Fresh(), true, "fresh")
			// To resolve a resolved policy changes nothing.
			again := rig.Value(Policy(r.Policy))
			defer again.Close()
			rig.Is(t, again.Policy.Key(), r.Policy.Key(), "resolved again:\n%v, before:\n%v", again.Policy, r.Policy)
			rig.Same(t, "what came of it", r.Missing, again.Missing)
		})
	}
}

func TestResolveUnconfined(t *testing.T) {
	t.Parallel()
	p := &sandbox.Policy{Network: sandbox.NetworkEnabled}
	r := rig.Value(Policy(p))
	if r.Policy.Key() != p.Key() || r.Missing != nil || !r.Fresh() {
		t.Errorf("%+v", r)
	}
	r.Close()
	rig.Is(t, r.Fresh(), false, "fresh after Close")
}

// TestResolveMinimal looks at the real system: every distribution has /usr,
// and most have links to it.
func TestResolveMinimal(t *testing.T) {
	t.Parallel()
	r := rig.Value(resolve(t, asked("", "minimal")))
	for _, name := range []string{"/usr/bin/env", "/etc/passwd", "/bin"} {
		rig.Is(t, r.Policy.Access(name), sandbox.Read, "%s", name)
	}
	rig.Is(t, r.Policy.Access("/root"), sandbox.Hidden, "/root")
	for _, rule := range r.Policy.Rules {
		rig.Check(t, rig.Err(os.Lstat(rule.Path)))
		for dir := pathname.Parent(rule.Path); dir != "/"; dir = pathname.Parent(dir) {
			isDir := func(r sandbox.Rule) bool { return r.Path == dir }
			rig.Is(t, slices.ContainsFunc(r.Policy.Rules, isDir), false, "%s adds nothing to %s", rule.Path, dir)
		}
	}
	info := rig.Value(os.Lstat("/bin"))
	if info.Mode()&os.ModeSymlink != 0 && !strings.Contains(r.Policy.String(), "link     /bin -> ") {
		t.Errorf("no link /bin in\n%v", r.Policy)
	}
	again := rig.Value(Policy(r.Policy))
	defer again.Close()
	rig.Is(t, again.Policy.Key(), r.Policy.Key(), "resolved again:\n%v, before:\n%v", again.Policy, r.Policy)
}

// TestResolvePlaceholders: a name where another process has a placeholder counts
// as missing.
func TestResolvePlaceholders(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "repo/")
	p := asked(base, "write $/repo", "denied $/repo/a/b", "denied $/repo/c", "skip read $/repo/a", "skip read $/repo/.git")
	before := rig.Value(resolve(t, p))
	holders := rig.Value(placeholder.Open(t.TempDir()))
	t.Cleanup(func() { rig.Check(t, holders.Close()) })
	release := rig.Value(holders.Hold(before.Missing))
	rig.Is(t, before.Fresh(), true, "fresh while they are held")
	held := rig.Value(resolve(t, p))
	rig.Same(t, "what came of it", before.Missing, held.Missing)
	rig.Is(t, held.Policy.Key(), before.Policy.Key(), "held:\n%v, before:\n%v", held.Policy, before.Policy)
	release()
	rig.Is(t, before.Fresh() && held.Fresh(), true, "fresh when they are gone")
}

func TestResolveDescriptors(t *testing.T) {
	t.Parallel()
	base := sandboxtest.Sow(t, "repo/")
	var lines []string
	for i := range maxPins + 1 {
		sandboxtest.Tree(t, base, fmt.Sprintf("d/%d/", i))
		lines = append(lines, fmt.Sprintf("read $/d/%d", i))
	}
	err := rig.Err(resolve(t, asked(base, lines...)))
	rig.Is(t, strings.Contains(fmt.Sprint(err), "more than 1024 paths"), true, "%v", err)
	r := rig.Value(resolve(t, asked(base, "write $/repo")))
	rig.Is(t, len(r.pins), 1, "pins")
	fd := r.pins[0]
	rig.Is(t, rig.Value(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.FD_CLOEXEC, "flags")
	r.Close()
	r.Close()
}

// TestResolveBarred: in a directory where this user can make nothing, the names
// are in Missing, but barred: nothing has to keep them from coming into being. The
// owner is told from others by user nobody too, whose number all others have in a
// namespace. Where it can make names, a placeholder of another user bars none.
func TestResolveBarred(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	sticky, own := t.TempDir(), t.TempDir()
	holders := rig.Value(placeholder.Open(t.TempDir()))
	t.Cleanup(func() { rig.Check(t, holders.Close()) })
	rig.Value(holders.Hold([]placeholder.Missing{{Parent: sticky, Name: ".git", Dir: true}}))
	ids := []syscall.SysProcIDMap{{ContainerID: nobody, HostID: nobody, Size: 1}}
	inside := &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	for _, tt := range []struct {
		dir    string
		attr   *syscall.SysProcAttr
		barred bool
	}{
		{"/usr", new(syscall.SysProcAttr), true}, {"/usr", inside, true}, {own, inside, false}, {sticky, new(syscall.SysProcAttr), false},
	} {
		cmd := sandboxtest.ChildCommand(t, "resolve/barred", tt.dir, strconv.FormatBool(tt.barred))
		if os.Geteuid() == 0 {
			rig.Must(t, os.Chmod(filepath.Dir(own), 0o755), os.Chmod(filepath.Dir(sticky), 0o755), os.Chmod(sticky, os.ModeSticky|0o777), os.Chown(own, nobody, 0), os.Chmod(own, 0o555))
			cmd.SysProcAttr = tt.attr
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
		} else if tt.attr == inside {
			continue // it needs root, to map nobody
		}
		out, err := cmd.CombinedOutput()
		rig.Is(t, err, nil, "%s: %s", tt.dir, out)
	}
}

var _ = sandboxtest.RegisterChild("resolve/barred", func(t rig.T, args []string) {
	policy := rig.Value(sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: args[0], Access: sandbox.Write}}}.Compile())
	resolved := rig.Value(Policy(policy))
	defer resolved.Close()
	rig.Is(t, len(resolved.Missing) >= 5, true, "missing: %v", resolved.Missing)
	for _, m := range resolved.Missing {
		rig.Is(t, strconv.FormatBool(m.Barred), args[1], "%v is barred", m)
	}
})

// TestResolveAliases: private files are denied at every path at which a mount
// shows them. The policy itself has to say so, for file requests, which see the
// host without a view.
func TestResolveAliases(t *testing.T) {
	t.Parallel()
	dir := sandboxtest.Sow(t, "own/key", "alias/")
	cmd := sandboxtest.ChildCommand(t, "resolve/aliases", dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	rig.Check(t, cmd.Run())
}

var _ = sandboxtest.RegisterChild("resolve/aliases", func(t rig.T, args []string) {
	dir := args[0]
	rig.Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount(dir+"/own", dir+"/alias", "", unix.MS_BIND, ""))
	policy := rig.Value(sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}, Private: []string{dir + "/own"}}.Compile())
	resolved := rig.Value(Policy(policy))
	defer resolved.Close()
	for _, name := range []string{"/own/key", "/alias/key", "/alias"} {
		rig.Is(t, resolved.Policy.Access(dir+name), sandbox.Denied, "%s", name)
	}
})
