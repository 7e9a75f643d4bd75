package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// tableCase is a policy, what lies below the directory that it is about, and what becomes of calls
// under it. A backend makes the calls of all rows one after the other, in one process.
type tableCase struct {
	name string
	// rules are "ACCESS PATH PATH ...". Below the directory is a PATH that is no absolute one. ACCESS is read,
	// write, denied, protected (read), private (denied), temporary (write), link=TARGET or the pattern of a glob.
	rules  []string
	tree   []string // as sandboxtest.Tree has it
	held   []string // placeholders that a view needs; those of directories end with a slash
	levels []int    // in which a supervisor runs the calls
	alone  bool     // Landlock alone can enforce the policy
	rows   []tableRow
}

// tableRow is about calls that have the same outcome.
type tableRow struct {
	name  string
	want  string
	calls string // separated by commas, as sandboxtest.Call has them; $ is the directory
	// differ has what comes of them in other backends, and why: "BACKEND=OUTCOME ... | REASON". The
	// outcome "-" is not looked at.
	differ string
}

// Reasons that many rows have.
const (
	oneErrno  = "landlock=EACCES | Landlock has one errno for all it refuses"
	twoMounts = "namespaces=EXDEV | the kernel sees two mounts before it sees that one is read-only"
	noFile    = "landlock=EACCES | Landlock hides nothing"
	noSocket  = "files=- | it makes no sockets"
	held      = "namespaces=EEXIST | the placeholder is there"
)

// backends make the calls of a case, as a user or in a level of a supervisor, and return their outcomes.
var backends = map[string]func(c tableCase, t *testing.T, root string, as int) []string{
	"files": tableCase.files, "namespaces": tableCase.namespaces, "landlock": tableCase.landlock,
	"supervised": func(c tableCase, t *testing.T, root string, level int) []string {
		args := append([]string{root}, c.calls(root)...)
		return outcomes(supervised(t, Config{Policy: c.policy(root)}, sandbox.Level(level), "calls", args...))
	},
}

// TestBackends: the operations on files of the agent (fsops.View), a command in namespaces, one under
// Landlock alone and one under a supervisor may do the same under a policy, but for what the table says.
func TestBackends(t *testing.T) {
	t.Parallel()
	for _, c := range table {
		variants := map[string][]int{"files": {0}, "namespaces": {0, 1000}, "supervised": c.levels}
		if c.alone && enforce.LandlockABI() >= 6 {
			variants["landlock"] = []int{0}
		}
		for name, all := range variants {
			t.Run(c.name+", "+name, func(t *testing.T) {
				t.Parallel()
				for _, as := range all {
					root := rig.Value(filepath.EvalSymlinks(rig.Public(t)))
					sandboxtest.Tree(t, root, c.tree...)
					outside := tree(t, filepath.Join(root, "outside"))
					got := backends[name](c, t, root, as)
					for _, row := range c.rows {
						for call := range strings.SplitSeq(row.calls, ", ") {
							if want := row.in(t, name); want != "-" && got[0] != "-" {
								rig.Is(t, got[0], want, "%s, as %d: %s", row.name, as, call)
							}
							got = got[1:]
						}
					}
					if name == "namespaces" { // it is the user's there
						outside = strings.ReplaceAll(outside, " 0  ", fmt.Sprintf(" %d  ", as))
					}
					rig.Is(t, tree(t, filepath.Join(root, "outside")), outside, "as %d: outside", as)
				}
			})
		}
	}
}

// in returns the outcome of a row in a backend.
func (r tableRow) in(t *testing.T, backend string) string {
	t.Helper()
	outcomes, reason, _ := strings.Cut(r.differ, " | ")
	if (outcomes == "") != (reason == "") {
		t.Fatalf("%q has no reason", r.differ)
	}
	for outcome := range strings.FieldsSeq(outcomes) {
		if of, differs := strings.CutPrefix(outcome, backend+"="); differs {
			return of
		}
	}
	return r.want
}

func (c tableCase) calls(root string) (all []string) {
	for _, row := range c.rows {
		all = append(all, strings.Split(strings.ReplaceAll(row.calls, "$", root), ", ")...)
	}
	return all
}

func (c tableCase) policy(root string) *sandbox.Policy {
	p := &sandbox.Policy{Confined: true, FullRead: slices.Contains(c.levels, int(sandbox.LevelWrites))}
	kinds := map[string]sandbox.Rule{
		"read": {Access: sandbox.Read}, "write": {Access: sandbox.Write}, "denied": {Access: sandbox.Denied},
		"protected": {Access: sandbox.Read, Origin: sandbox.Protected}, "private": {Access: sandbox.Denied, Origin: sandbox.Private},
		"temporary": {Access: sandbox.Write, Temporary: true},
	}
	for _, line := range c.rules {
		words := strings.Fields(line)
		for _, path := range words[1:] {
			if !filepath.IsAbs(path) {
				path = filepath.Join(root, path)
			}
			rule, known := kinds[words[0]]
			rule.Path = path
			if target, isLink := strings.CutPrefix(words[0], "link="); isLink {
				p.Links = append(p.Links, sandbox.Link{Path: path, Target: target})
			} else if known {
				p.Rules = append(p.Rules, rule)
			} else {
				p.Globs = append(p.Globs, sandbox.Glob{Base: path, Pattern: words[0]})
			}
		}
	}
	slices.SortFunc(p.Rules, func(a, b sandbox.Rule) int { return strings.Compare(a.Path, b.Path) })
	return p
}

// files does what operations on files there are for the calls. The outcome of others is "-".
func (c tableCase) files(t *testing.T, root string, _ int) (got []string) {
	p := c.policy(root)
	access := func(path string) fsops.Access { return fsops.Access(p.Access(path)) }
	v := rig.Value(fsops.NewView(fsops.Rules{Access: access, DeniesFile: p.DeniesFile, Leads: p.Leads, Bound: p.Bound}))
	defer v.Close()
	for _, call := range c.calls(root) {
		words := append(strings.Fields(call), "/")
		for i := range words[1:] {
			if !filepath.IsAbs(words[i+1]) {
				words[i+1] = filepath.Join(root, words[i+1])
			}
		}
		told, path, err := "ok", words[1], error(nil)
		switch words[0] {
		case "open", "read":
			var data []byte
			if data, err = fsops.ReadFile(t.Context(), v, path, fsops.FollowLinks, nil); words[0] == "read" {
				told = string(data)
			}
		case "write", "create":
			err = fsops.WriteFile(t.Context(), v, path, []byte(filepath.Base(path)), fsops.WriteOptions{})
		case "list", "opendir":
			var entries []fsops.DirEntry
			entries, err = v.ReadDirectory(t.Context(), path, false)
			var names []string
			for _, e := range entries {
				names = append(names, e.Name)
			}
			slices.Sort(names)
			if words[0] == "list" && len(names) > 0 {
				told = strings.Join(names, " ")
			}
		case "mkdir":
			err = v.CreateDirectory(t.Context(), path, false, fsops.FollowLinks)
		case "unlink", "rmdir":
			err = v.Remove(t.Context(), path, false, false, fsops.FollowLinks)
		case "rename":
			err = v.Rename(t.Context(), path, words[2], true)
		default:
			told = "-"
		}
		if errno, ok := errors.AsType[unix.Errno](err); ok {
			told = unix.ErrnoName(errno)
		} else if err != nil {
			told = "invalid"
		}
		got = append(got, told)
	}
	return got
}

// outcomes returns those that the child "calls" has printed.
func outcomes(printed string) (got []string) {
	for line := range strings.Lines(printed) {
		got = append(got, strings.TrimSpace(line[strings.LastIndex(line, ": ")+2:]))
	}
	return got
}

func (c tableCase) landlock(t *testing.T, root string, _ int) []string {
	args := append([]string{string(rig.Value(json.Marshal(c.policy(root)))), root}, c.calls(root)...)
	return outcomes(supervised(t, Config{Policy: c.policy(root)}, sandbox.NoLevel, "calls under landlock", args...))
}

// The child makes calls under Landlock and the filter that goes with it.
var _ = child("calls under landlock", func(t rig.T, args []string) {
	var p sandbox.Policy
	rig.Must(t, json.Unmarshal([]byte(args[0]), &p))
	b := sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Seccomp), Landlock: enforce.LandlockABI()}
	rig.Must(t, enforce.RestrictThread(p.ProcessRuleset(b.Landlock, false)))
	filters, listener := enforce.FiltersFor(b, &p, false)
	for _, f := range filters {
		rig.Must(t, rig.Err(f.Load(listener)))
	}
	children["calls"](t, args[1:])
})

// namespaces makes the calls in a view, as a user.
func (c tableCase) namespaces(t *testing.T, root string, uid int) []string {
	if os.Getuid() != 0 {
		t.Skip("mapping other users needs uid 0")
	}
	r := resolve.Resolved{Policy: c.policy(root)}
	sandboxtest.Tree(t, root, c.held...)
	for _, name := range c.held {
		dir, isDir := strings.CutSuffix(filepath.Join(root, filepath.Dir(name)), "/"+filepath.Base(name))
		r.Missing = append(r.Missing, placeholder.Missing{Parent: dir, Name: filepath.Base(name), Dir: isDir})
	}
	rig.Must(t, filepath.WalkDir(root, func(name string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(name, uid, uid))
	}))
	args := append([]string{supervisedChild, "calls in a view", string(rig.Value(json.Marshal(&r))), root}, c.calls(root)...)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "LEVEL=", "GORACE=atexit_sleep_ms=0", "GODEBUG=containermaxprocs=0")
	cmd.Stderr = t.Output()
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: uid, HostID: uid, Size: 1}},
		Credential:  &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: true},
		AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_DAC_OVERRIDE},
	}
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("uid %d: %v, %s", uid, err, printed)
	}
	return outcomes(string(printed))
}

// The child makes calls in a view, without capabilities.
var _ = child("calls in a view", func(t rig.T, args []string) {
	var r resolve.Resolved
	rig.Must(t, json.Unmarshal([]byte(args[0]), &r))
	_ = rig.Value(view.Enter(&r, view.Options{FreshProc: true}))
	var none [2]unix.CapUserData
	rig.Must(t, unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]))
	children["calls"](t, args[1:])
})
