package enforce

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// landlockCase has a policy, how a ruleset is made of it, and what has to become
// of calls under that ruleset.
type landlockCase struct {
	rules   []sandbox.Rule // their paths are relative to the test's directory
	root    sandbox.Access // of "/"; Hidden: there is no rule for "/"
	ruleset func(p *sandbox.Policy, abi int) sandbox.Ruleset
	calls   []string
}

func mountedRules(p *sandbox.Policy, abi int) sandbox.Ruleset { return p.ProcessRuleset(abi, true) }
func aloneRules(p *sandbox.Policy, abi int) sandbox.Ruleset   { return p.ProcessRuleset(abi, false) }
func helperRules(p *sandbox.Policy, abi int) sandbox.Ruleset  { return p.HelperRuleset(abi) }

var landlockCases = map[string]landlockCase{
	"workspace, mounted": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "w", Access: sandbox.Write}, {Path: "w2", Access: sandbox.Write}, {Path: "ro/file2", Access: sandbox.Write}, {Path: "gone", Access: sandbox.Write}},
		ruleset: mountedRules,
		calls: []string{
			"ok: open ro/file, opendir ro, execute /bin/true",
			"EACCES: overwrite ro/file, create ro/new, truncate ro/file, mkdir ro/dir2, unlink ro/file, mkfifo ro/fifo, tmpfile ro",
			"EXDEV: link ro/file w/link",
			"EACCES: rename w/file ro/moved",
			"ok: overwrite ro/file2, truncate ro/file2",
			"EACCES: unlink ro/file2, mkdir gone",
			"ok: create w/new, overwrite w/new, truncate w/new, mkdir w/dir, rename w/new w2/new, link w2/new w/link, unlink w/link, rmdir w/dir",
			"ok: mkfifo w/fifo, bind w/socket, tmpfile w, overwrite /dev/null, overwrite /proc/self/comm",
		},
	},
	"the agent's own files, alone": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "private", Access: sandbox.Denied, Origin: sandbox.Private}},
		ruleset: aloneRules,
		calls:   []string{"ok: open file", "EACCES: open private/file"},
	},
	"a rule whose path leads elsewhere, alone": {
		rules:   []sandbox.Rule{{Path: "ro", Access: sandbox.Read}, {Path: "link/sub", Access: sandbox.Read}},
		ruleset: aloneRules,
		calls:   []string{"ok: open ro/file", "EACCES: open linked/sub/file"},
	},
	"helper": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "w", Access: sandbox.Write}, {Path: "ro/file2", Access: sandbox.Write}},
		ruleset: helperRules,
		calls: []string{
			"ok: open ro/file",
			"EACCES: execute /bin/true, overwrite ro/file, overwrite /dev/null, overwrite /proc/self/comm",
			"ok: create w/new, mkdir w/dir, rename w/new w/dir/new, symlink anywhere w/symlink",
			"EACCES: mkfifo w/fifo, bind w/socket",
			"ok: overwrite ro/file2",
		},
	},
	"helper with a view": {
		rules:   []sandbox.Rule{{Path: "ro", Access: sandbox.Read}},
		ruleset: helperRules,
		calls: []string{
			"ok: open ro/file",
			"ok: opendir .", // the way there
			"EACCES: open w/file, overwrite ro/file",
		},
	},
}

// outside are calls that try to reach other processes.
const outside = "EPERM: signal-parent, connect-abstract ."

func TestLandlock(t *testing.T) {
	t.Parallel()
	if abi := LandlockABI(); abi < 6 {
		t.Skipf("the kernel has Landlock ABI %d, this tests 6 and later", abi)
	}
	for name := range landlockCases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sandboxtest.RunChild(t, "landlock/thread", name, landlockFiles(t))
		})
	}
}

// cgo is true if this binary was built with it.
var cgo bool

// TestRestrictProcess: all threads are bound, also those that existed before.
func TestRestrictProcess(t *testing.T) {
	t.Parallel()
	if abi := LandlockABI(); abi < 6 {
		t.Skipf("the kernel has Landlock ABI %d, this tests 6 and later", abi)
	}
	run := sandboxtest.ChildCommand(t, "landlock/process", landlockFiles(t))
	if cgo {
		// Run the child from a build without cgo, as the shipped program is.
		static := filepath.Join(t.TempDir(), "static")
		build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", static, ".")
		build.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building without cgo: %v\n%s", err, out)
		}
		run.Path = static
	}
	run.Stdout, run.Stderr = t.Output(), t.Output()
	rig.Check(t, run.Run())
}

// landlockFiles makes the files of landlockCases, and an abstract socket that
// listens. It returns their directory, without symbolic links.
func landlockFiles(t *testing.T) string {
	t.Helper()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	for _, name := range []string{"file", "ro/file", "ro/file2", "w/file", "w2/file", "private/file", "linked/sub/file"} {
		rig.Must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755))
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o644))
	}
	rig.Must(t, os.Symlink("linked", filepath.Join(dir, "link")))
	listener := rig.Value(net.Listen("unix", "@"+dir))
	t.Cleanup(func() { _ = listener.Close() })
	return dir
}

// in returns the ruleset of the case, with the paths of its rules below dir.
func (c landlockCase) in(dir string) sandbox.Ruleset {
	p := &sandbox.Policy{Confined: true}
	if c.root != sandbox.Hidden {
		p.Rules = append(p.Rules, sandbox.Rule{Path: "/", Access: c.root})
	}
	for _, rule := range c.rules {
		rule.Path = filepath.Join(dir, rule.Path)
		p.Rules = append(p.Rules, rule)
	}
	return c.ruleset(p, LandlockABI())
}

func (c landlockCase) try(dir string) error {
	return sandboxtest.TryAll(sandboxtest.Attempts(dir, append(c.calls, outside)...))
}

var _ = sandboxtest.RegisterChild("landlock/thread", func(t rig.T, args []string) {
	c, dir := landlockCases[args[0]], args[1]
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		if err := RestrictThread(c.in(dir)); err != nil {
			result <- err
			return
		}
		result <- c.try(dir)
	}()
	err := <-result
	// The other threads, also new ones, are not restricted.
	rig.Must(t, errors.Join(err, unix.Kill(os.Getppid(), 0)))
})

var _ = sandboxtest.RegisterChild("landlock/process", func(t rig.T, args []string) {
	c, dir := landlockCases["helper"], args[0]
	var restricted, tried sync.WaitGroup
	failures := make(chan error, 4)
	restricted.Add(1)
	for range cap(failures) {
		ready := make(chan struct{})
		tried.Go(func() {
			runtime.LockOSThread()
			close(ready)
			restricted.Wait()
			failures <- landlockCase{}.try(dir)
		})
		<-ready
	}
	err := RestrictProcess(c.in(dir))
	restricted.Done()
	tried.Wait()
	close(failures)
	for failure := range failures {
		err = errors.Join(err, failure)
	}
	rig.Must(t, errors.Join(err, c.try(dir)))
})

// TestRulesetEmpty: a ruleset that handles nothing, as one for a kernel without
// Landlock does, is an error and not in force.
func TestRulesetEmpty(t *testing.T) {
	t.Parallel()
	p := &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}}
	rig.Is(t, RestrictProcess(p.HelperRuleset(0)) != nil, true, "a ruleset of ABI 0 is refused")
	rig.Is(t, RestrictThread(p.ProcessRuleset(0, false)) != nil, true, "a ruleset of ABI 0 is refused")
}
