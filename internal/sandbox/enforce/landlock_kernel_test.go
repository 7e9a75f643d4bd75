package enforce

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"golang.org/x/sys/unix"
)

// landlockCase has a policy, how a ruleset is made of it, and what has to become
// of operations under that ruleset.
type landlockCase struct {
	rules   []sandbox.Rule // their paths are relative to the test's directory
	root    sandbox.Access // of "/"; Hidden: there is no rule for "/"
	ruleset func(p *sandbox.Policy, abi int) sandbox.Ruleset
	ops     []landlockOp
}

type landlockOp struct {
	name string
	do   func(dir string) error
	want unix.Errno
}

func mountedRules(p *sandbox.Policy, abi int) sandbox.Ruleset { return p.ProcessRuleset(abi, true) }
func aloneRules(p *sandbox.Policy, abi int) sandbox.Ruleset   { return p.ProcessRuleset(abi, false) }
func helperRules(p *sandbox.Policy, abi int) sandbox.Ruleset  { return p.HelperRuleset(abi) }

var landlockCases = map[string]landlockCase{
	"workspace, mounted": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "w", Access: sandbox.Write}, {Path: "w2", Access: sandbox.Write}, {Path: "ro/file2", Access: sandbox.Write}, {Path: "gone", Access: sandbox.Write}},
		ruleset: mountedRules,
		ops: slices.Concat(outsideOps, []landlockOp{
			{"read", opRead("ro/file"), 0},
			{"list", opList("ro"), 0},
			{"execute", opExecute("/bin/true"), 0},
			{"write outside", opWrite("ro/file"), unix.EACCES},
			{"create outside", opCreate("ro/new"), unix.EACCES},
			{"truncate outside", opTruncate("ro/file"), unix.EACCES},
			{"mkdir outside", opMkdir("ro/dir2"), unix.EACCES},
			{"unlink outside", opRemove("ro/file"), unix.EACCES},
			{"fifo outside", opFifo("ro/fifo"), unix.EACCES},
			{"temporary file outside", opTemporary("ro"), unix.EACCES},
			{"link from outside", opLink("ro/file", "w/link"), unix.EXDEV},
			{"move to outside", opRename("w/file", "ro/moved"), unix.EACCES},
			{"write the file that may be", opWrite("ro/file2"), 0},
			{"truncate the file that may be", opTruncate("ro/file2"), 0},
			{"remove the file that may be written", opRemove("ro/file2"), unix.EACCES},
			{"make the root that is gone", opMkdir("gone"), unix.EACCES},
			{"create", opCreate("w/new"), 0},
			{"write", opWrite("w/new"), 0},
			{"truncate", opTruncate("w/new"), 0},
			{"mkdir", opMkdir("w/dir"), 0},
			{"move between roots", opRename("w/new", "w2/new"), 0},
			{"link between roots", opLink("w2/new", "w/link"), 0},
			{"unlink", opRemove("w/link"), 0},
			{"rmdir", opRemove("w/dir"), 0},
			{"fifo", opFifo("w/fifo"), 0},
			{"socket", opBind("w/socket"), 0},
			{"temporary file", opTemporary("w"), 0},
			{"null device", opWrite("/dev/null"), 0},
			{"own name", opWrite("/proc/self/comm"), 0},
		}),
	},
	"read-only, alone": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "private", Access: sandbox.Denied, Origin: sandbox.Private}},
		ruleset: aloneRules,
		ops: slices.Concat(outsideOps, []landlockOp{
			{"read", opRead("ro/file"), 0},
			{"list", opList("ro"), 0},
			{"list the root", opList("/"), 0},
			{"execute", opExecute("/bin/true"), 0},
			{"write", opWrite("ro/file"), unix.EACCES},
			{"create", opCreate("ro/new"), unix.EACCES},
			{"truncate", opTruncate("ro/file"), unix.EACCES},
			{"read what is private", opRead("private/file"), unix.EACCES},
			{"read beside what is private", opRead("file"), 0},
			{"null device", opWrite("/dev/null"), 0},
			{"random device", opRead("/dev/urandom"), 0},
			{"other device", opRead("/dev/kmsg"), unix.EACCES},
			{"new terminal", opTerminal, 0},
			{"shared memory", opCreate("/dev/shm/execagent-test"), unix.EACCES},
			{"own name", opWrite("/proc/self/comm"), unix.EACCES},
		}),
	},
	"view, alone": {
		rules:   []sandbox.Rule{{Path: "ro", Access: sandbox.Read}, {Path: "file", Access: sandbox.Read}, {Path: "link/sub", Access: sandbox.Read}},
		ruleset: aloneRules,
		ops: slices.Concat(outsideOps, []landlockOp{
			{"read", opRead("ro/file"), 0},
			{"list", opList("ro"), 0},
			{"read a file", opRead("file"), 0},
			{"list the parent", opList("."), unix.EACCES},
			{"read outside", opRead("w/file"), unix.EACCES},
			{"read where a link leads", opRead("linked/sub/file"), unix.EACCES},
			{"execute outside", opExecute("/bin/true"), unix.EACCES},
			{"write", opWrite("ro/file"), unix.EACCES},
			{"null device", opWrite("/dev/null"), 0},
		}),
	},
	"helper": {
		root:    sandbox.Read,
		rules:   []sandbox.Rule{{Path: "w", Access: sandbox.Write}, {Path: "ro/file2", Access: sandbox.Write}},
		ruleset: helperRules,
		ops: slices.Concat(outsideOps, []landlockOp{
			{"read", opRead("ro/file"), 0},
			{"execute", opExecute("/bin/true"), unix.EACCES},
			{"write outside", opWrite("ro/file"), unix.EACCES},
			{"null device", opWrite("/dev/null"), unix.EACCES},
			{"own name", opWrite("/proc/self/comm"), unix.EACCES},
			{"create", opCreate("w/new"), 0},
			{"mkdir", opMkdir("w/dir"), 0},
			{"move", opRename("w/new", "w/dir/new"), 0},
			{"symlink", opSymlink("w/symlink"), 0},
			{"fifo", opFifo("w/fifo"), unix.EACCES},
			{"socket", opBind("w/socket"), unix.EACCES},
			{"write a file", opWrite("ro/file2"), 0},
		}),
	},
	"helper with a view": {
		rules:   []sandbox.Rule{{Path: "ro", Access: sandbox.Read}},
		ruleset: helperRules,
		ops: slices.Concat(outsideOps, []landlockOp{
			{"read", opRead("ro/file"), 0},
			{"list the way", opList("."), 0},
			{"read outside", opRead("w/file"), unix.EACCES},
			{"write", opWrite("ro/file"), unix.EACCES},
		}),
	},
}

// outsideOps try to reach other processes.
var outsideOps = []landlockOp{
	{"signal to the parent", func(string) error { return unix.Kill(os.Getppid(), 0) }, unix.EPERM},
	{"abstract socket", func(dir string) error { return opConnect("@" + dir) }, unix.EPERM},
}

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
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// landlockFiles makes the files of landlockCases, and an abstract socket that
// listens. It returns their directory, without symbolic links.
func landlockFiles(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "ro/file", "ro/file2", "w/file", "w2/file", "private/file", "linked/sub/file"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte("content"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("linked", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", "@"+dir)
	if err != nil {
		t.Fatal(err)
	}
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
	var failures error
	for _, op := range c.ops {
		err := op.do(dir)
		if op.want == 0 && err == nil || op.want != 0 && errors.Is(err, op.want) {
			continue
		}
		failures = errors.Join(failures, fmt.Errorf("%s: %v, want %v", op.name, err, op.want))
	}
	return failures
}

var _ = sandboxtest.RegisterChild("landlock/thread", func(args []string) error {
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
	return errors.Join(err, unix.Kill(os.Getppid(), 0))
})

var _ = sandboxtest.RegisterChild("landlock/process", func(args []string) error {
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
			failures <- landlockCase{ops: outsideOps}.try(dir)
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
	return errors.Join(err, c.try(dir))
})

// TestRulesetEmpty: a ruleset that handles nothing, as one for a kernel without
// Landlock does, is an error and not in force.
func TestRulesetEmpty(t *testing.T) {
	t.Parallel()
	p := &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}}
	if err := RestrictProcess(p.HelperRuleset(0)); err == nil {
		t.Error("a ruleset of ABI 0 is in force")
	}
	if err := RestrictThread(p.ProcessRuleset(0, false)); err == nil {
		t.Error("a ruleset of ABI 0 is in force")
	}
}

// opPath returns an absolute path as it is, and any other below dir.
func opPath(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

func opOpen(path string, flags int) func(string) error {
	return func(dir string) error {
		fd, err := unix.Open(opPath(dir, path), flags|unix.O_CLOEXEC, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	}
}

func opRead(path string) func(string) error  { return opOpen(path, unix.O_RDONLY) }
func opList(path string) func(string) error  { return opOpen(path, unix.O_RDONLY|unix.O_DIRECTORY) }
func opWrite(path string) func(string) error { return opOpen(path, unix.O_WRONLY|unix.O_TRUNC) }
func opCreate(path string) func(string) error {
	return opOpen(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL)
}
func opTemporary(path string) func(string) error { return opOpen(path, unix.O_WRONLY|unix.O_TMPFILE) }

func opTruncate(path string) func(string) error {
	return func(dir string) error { return unix.Truncate(opPath(dir, path), 3) }
}

func opMkdir(path string) func(string) error {
	return func(dir string) error { return unix.Mkdir(opPath(dir, path), 0o700) }
}

func opRemove(path string) func(string) error {
	return func(dir string) error { return os.Remove(opPath(dir, path)) }
}

func opFifo(path string) func(string) error {
	return func(dir string) error { return unix.Mkfifo(opPath(dir, path), 0o600) }
}

func opSymlink(path string) func(string) error {
	return func(dir string) error { return unix.Symlink("anywhere", opPath(dir, path)) }
}

func opLink(from, to string) func(string) error {
	return func(dir string) error { return unix.Link(opPath(dir, from), opPath(dir, to)) }
}

func opRename(from, to string) func(string) error {
	return func(dir string) error { return unix.Rename(opPath(dir, from), opPath(dir, to)) }
}

// opExecute starts a program, which inherits the restrictions of the thread.
func opExecute(path string) func(string) error {
	return func(string) error {
		cmd := exec.Command(path)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	}
}

func opBind(path string) func(string) error {
	return func(dir string) error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Bind(fd, &unix.SockaddrUnix{Name: opPath(dir, path)})
	}
}

func opConnect(name string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: name})
}

// opTerminal makes a terminal, and asks for its number by ioctl.
func opTerminal(string) error {
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
	return err
}
