package procs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/test/rig"
)

// cgroupRoles are the things that a child of a test may do, in a control group that
// the test has made. The child prints what the test looks at.
var cgroupRoles = map[string]func(rig.T){
	"daemon":     cgroupDaemon,
	"members":    cgroupMembers,
	"enable":     cgroupEnable,
	"limits":     cgroupLimits,
	"crash":      cgroupCrash,
	"new":        cgroupNew,
	"read-only":  cgroupReadOnly,
	"threaded":   cgroupThreaded,
	"refused":    cgroupRefused,
	"close-held": cgroupClose,
}

// inCgroup returns the command of a child in a new control group below that of
// the test, and the directory of the new group.
func inCgroup(t *testing.T, role ...string) (cmd *exec.Cmd, dir string) {
	t.Helper()
	own, err := ownCgroup("/proc/self/cgroup", "/proc/self/mountinfo")
	if err != nil {
		t.Skip(err)
	}
	dir, err = os.MkdirTemp(own, "procs-test-")
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		t.Skip(err)
	}
	rig.Must(t, err)
	group := rig.Value(os.Open(dir))
	t.Cleanup(func() { removeCgroups(t, dir); _ = group.Close() })
	cmd = exec.CommandContext(t.Context(), selfPath, append([]string{"cgroup"}, role...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	return cmd, dir
}

// nothingIn fails if there are control groups in dir.
func nothingIn(t rig.T, dir string) {
	t.Helper()
	rig.Is(t, len(groupsIn(dir)), 0, "groups that are left")
}

// removeCgroups removes a control group with all below it.
func removeCgroups(t *testing.T, dir string) {
	t.Helper()
	rig.Check(t, errors.Join(killCgroup(dir), awaitEmpty(dir, maxCgroupWait)))
	var all []string
	_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all = append(all, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(all) {
		rig.Check(t, os.Remove(dir))
	}
}

// groupsIn lists the control groups in dir.
func groupsIn(dir string) []string {
	entries, _ := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names
}

// membersOf has the processes in a control group.
func membersOf(dir string) []string {
	list, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	return strings.Fields(string(list))
}

// newCgroup returns a control group of a process, and what it is one of.
func newCgroup(t rig.T) (*Cgroups, *Cgroup) {
	t.Helper()
	c, err := NewCgroups(CgroupLimits{})
	rig.Must(t, err)
	group, err := c.New()
	rig.Must(t, err)
	return c, group
}

// commandIn returns a command that is born into a control group.
func commandIn(group *Cgroup, name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: group.fd()}
	return cmd
}

func runInCgroup(t *testing.T, role ...string) (out, dir string) {
	t.Helper()
	cmd, dir := inCgroup(t, role...)
	return output(t, cmd), dir
}

// TestCgroupTerminate: a child that has left the session and group of a process
// dies with it, and nothing is left of the control group.
func TestCgroupTerminate(t *testing.T) {
	t.Parallel()
	out, dir := runInCgroup(t, "daemon")
	rig.Is(t, strings.Contains(out, "terminated: 2 members, then 0\nclosed: 1 members, then 0\n"), true, "all end, %s", out)
	nothingIn(t, dir)
}

func cgroupDaemon(t rig.T) {
	c, err := NewCgroups(CgroupLimits{})
	rig.Must(t, err)
	for _, tt := range []struct{ name, then string }{
		{"terminated", "wait"},
		{"closed", "exec true"}, // its leader has ended, which makes no difference to Close
	} {
		group, err := c.New()
		rig.Must(t, err)
		ready := make(chan struct{})
		p, err := Start(Spec{
			Argv: sh("setsid sh -c 'echo ready; exec sleep 60' & " + tt.then), Dir: "/", Env: os.Environ(), Cgroup: group,
			Sink: func(ev Event) {
				if ev.Kind == Output {
					close(ready)
				}
			},
		})
		rig.Must(t, err)
		p.Begin()
		<-ready
		if tt.name == "closed" {
			rig.Must(t, p.Wait(t.Context(), 1)) // for the exit
		}
		before := len(membersOf(group.dir.Name()))
		if tt.name == "terminated" {
			p.Terminate()
			<-p.Done()
			rig.Must(t, awaitEmpty(group.dir.Name(), maxCgroupWait))
		}
		rig.Must(t, errors.Join(p.Close(), p.Close(), group.kill()))
		fmt.Printf("%s: %d members, then %d\n", tt.name, before, len(membersOf(group.dir.Name())))
	}
	rig.Must(t, c.Close())
}

// TestCgroupOldKernel: without cgroup.kill, processes that fork as fast as they
// can are killed too.
func TestCgroupOldKernel(t *testing.T) {
	t.Parallel()
	out, _ := runInCgroup(t, "members")
	rig.Is(t, out, "killed\n", "out")
}

func cgroupMembers(t rig.T) {
	c, group := newCgroup(t)
	cmd := commandIn(group, "sh", "-c", "forks() { for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do true & wait; done' & done; wait; }; echo ready; forks")
	firstLine(t, cmd)
	rig.Must(t, errors.Join(killMembers(group.dir.Name()), awaitEmpty(group.dir.Name(), maxCgroupWait)))
	rig.Is(t, cmd.Wait() == nil, false, "the first one was not killed")
	fmt.Println("killed")
	rig.Must(t, errors.Join(group.Close(), c.Close()))
}

// controller lets the groups below that of the test use a controller, until the
// test ends. It takes any that there is: which one makes no difference.
func controller(t *testing.T) string {
	t.Helper()
	own, err := ownCgroup("/proc/self/cgroup", "/proc/self/mountinfo")
	if err != nil {
		t.Skip(err)
	}
	have, err1 := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	enabled, err2 := os.ReadFile(filepath.Join(own, "cgroup.subtree_control"))
	rig.Must(t, errors.Join(err1, err2))
	names := strings.Fields(string(have))
	if len(names) == 0 {
		t.Skip("cgroup v2 has no controllers here")
	}
	if !slices.Contains(strings.Fields(string(enabled)), names[0]) {
		if err := writeCgroup(own, "cgroup.subtree_control", "+"+names[0]); err != nil {
			t.Skip(err)
		}
		t.Cleanup(func() { rig.Check(t, writeCgroup(own, "cgroup.subtree_control", "-"+names[0])) })
	}
	return names[0]
}

// TestCgroupEnable: the groups of processes have a controller, and the agent
// has moved to make that possible.
func TestCgroupEnable(t *testing.T) {
	out, dir := runInCgroup(t, "enable", controller(t))
	rig.Is(t, strings.Contains(out, "moved and enabled\n"), true, "it is enabled, %s", out)
	// The next agent removes the group.
	rig.Is(t, len(groupsIn(dir)) == 0, false, "there is nothing to be swept")
	sweepCgroups(dir)
	nothingIn(t, dir)
}

func cgroupEnable(t rig.T) {
	dir, err := ownCgroup("/proc/self/cgroup", "/proc/self/mountinfo")
	rig.Must(t, err)
	name := os.Args[3]
	base, err := makeBase(dir)
	rig.Must(t, err)
	c := &Cgroups{dir: dir, base: base, enabled: map[string]bool{}}
	rig.Must(t, c.enable([]string{name}))
	group, err := c.New()
	rig.Must(t, err)
	enabled := rig.Value(os.ReadFile(filepath.Join(group.dir.Name(), "cgroup.controllers")))
	rig.Is(t, strings.TrimSpace(string(enabled)), name, "controllers of a group")
	rig.Same(t, "members of the agent's leaf", []string{strconv.Itoa(os.Getpid())}, membersOf(filepath.Join(base.Name(), "agent")))
	fmt.Println("moved and enabled")
	rig.Must(t, errors.Join(group.Close(), c.Close()))
}

// TestCgroupLimits: a limit holds, or the error names what it needs.
func TestCgroupLimits(t *testing.T) {
	t.Parallel()
	out, dir := runInCgroup(t, "limits")
	switch {
	case strings.Contains(out, `limits of the controller "pids" are asked for`):
		nothingIn(t, dir)
		t.Skip(out)
	case !strings.Contains(out, "bounded\n"):
		t.Error(out)
	}
}

func cgroupLimits(t rig.T) {
	c, err := NewCgroups(CgroupLimits{PIDs: 8})
	if err != nil {
		fmt.Println(err)
		return
	}
	group, err := c.New()
	rig.Must(t, err)
	cmd := commandIn(group, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "fork") {
		t.Fatalf("nine more could be started: %v %s", err, out)
	}
	fmt.Println("bounded")
	rig.Must(t, errors.Join(group.Close(), c.Close()))
}

// TestCgroupCrash: processes in the groups of an agent that was killed die when
// the next agent starts.
func TestCgroupCrash(t *testing.T) {
	t.Parallel()
	cmd, dir := inCgroup(t, "crash")
	daemon := rig.Value(strconv.Atoi(strings.TrimSpace(firstLine(t, cmd))))
	// While the agent lives its groups are not touched.
	sweepCgroups(dir)
	rig.Check(t, syscall.Kill(daemon, 0))
	rig.Must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	sweepCgroups(dir)
	nothingIn(t, dir)
	if s, err := linux.StatOf(daemon); err == nil && !s.Dead() {
		t.Error("the daemon of the dead agent lives")
	}
}

func cgroupCrash(t rig.T) {
	_, group := newCgroup(t)
	cmd := commandIn(group, "setsid", "sh", "-c", "echo $$; exec sleep 60")
	cmd.Stdout = os.Stdout
	rig.Must(t, cmd.Run())
}

// TestCgroupNotDelegated: the reason is in the error, and nothing is left.
func TestCgroupNotDelegated(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount and to become somebody else")
	}
	for _, tt := range []struct {
		name, role, want string
		attr             func(*syscall.SysProcAttr)
	}{
		{"ordinary user", "new", "permission denied", func(a *syscall.SysProcAttr) {
			a.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		}},
		{"read-only", "read-only", "read-only file system", func(a *syscall.SysProcAttr) { a.Unshareflags = syscall.CLONE_NEWNS }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd, dir := inCgroup(t, tt.role)
			tt.attr(cmd.SysProcAttr)
			out := output(t, cmd)
			if !strings.HasPrefix(out, ErrNotDelegated.Error()) || !strings.Contains(out, tt.want) {
				t.Errorf("%s, want %q", out, tt.want)
			}
			nothingIn(t, dir)
		})
	}
}

func cgroupNew(t rig.T) {
	c, err := NewCgroups(CgroupLimits{})
	if !errors.Is(err, ErrNotDelegated) {
		t.Fatalf("%v, %v, want %v", c, err, ErrNotDelegated)
	}
	fmt.Println(err)
}

func cgroupReadOnly(t rig.T) {
	rig.Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	rig.Must(t, unix.MountSetattr(unix.AT_FDCWD, "/sys/fs/cgroup", unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}))
	cgroupNew(t)
}

// TestCgroupThreaded: in a threaded group no process can be born into a new
// one. NewCgroups says so, before a process is started.
func TestCgroupThreaded(t *testing.T) {
	t.Parallel()
	out, _ := runInCgroup(t, "threaded")
	if !strings.HasPrefix(out, ErrNotDelegated.Error()) || !strings.Contains(out, `type "domain invalid"`) {
		t.Error(out)
	}
}

func cgroupThreaded(t rig.T) {
	dir, err := ownCgroup("/proc/self/cgroup", "/proc/self/mountinfo")
	rig.Must(t, err)
	threads := filepath.Join(dir, "threads")
	rig.Must(t, os.Mkdir(threads, 0o755))
	rig.Must(t, writeCgroup(threads, "cgroup.type", "threaded"))
	rig.Must(t, writeCgroup(threads, "cgroup.procs", "0"))
	cgroupNew(t)
	nothingIn(t, threads)
}

// TestCgroupRefused: a process that the kernel does not let into its group is
// not started, with a stage or without.
func TestCgroupRefused(t *testing.T) {
	t.Parallel()
	out, _ := runInCgroup(t, "refused")
	rig.Is(t, out, "refused\nrefused: starting the sandbox\n", "out")
}

func cgroupRefused(t rig.T) {
	c, err := NewCgroups(CgroupLimits{})
	rig.Must(t, err)
	for _, stage := range []func(Program) (*Stage, error){
		nil,
		func(p Program) (*Stage, error) {
			return &Stage{Path: "/bin/true", Argv: []string{"true"}, Cloneflags: unix.CLONE_NEWIPC}, nil
		},
	} {
		group, err := c.New()
		rig.Must(t, err)
		rig.Must(t, os.Remove(group.dir.Name()))
		p, err := Start(Spec{Argv: []string{"/bin/true"}, Dir: "/", Cgroup: group, Stage: stage})
		switch {
		case err == nil:
			t.Fatalf("process %d is started", p.PID())
		case strings.Contains(err.Error(), "starting the sandbox: "):
			fmt.Println("refused: starting the sandbox")
		default:
			fmt.Println("refused")
		}
	}
	rig.Must(t, c.Close())
}

// TestCgroupEnableAgain: with other processes in the group of the agent no controller is enabled, and the error
// says so. It is enabled when they are gone.
func TestCgroupEnableAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir() // in the form of a group that has init
	rig.Must(t, os.MkdirAll(dir+"/base/agent", 0o700))
	for file, text := range map[string]string{"controllers": "pids", "type": "domain", "procs": "1", "subtree_control": ""} {
		rig.Must(t, errors.Join(os.WriteFile(dir+"/cgroup."+file, []byte(text), 0o600), os.WriteFile(dir+"/base/cgroup."+file, nil, 0o600)))
	}
	c := &Cgroups{dir: dir, base: rig.Value(os.Open(dir + "/base")), enabled: map[string]bool{}}
	rig.Says(t, c.Enable("pids"), "other processes in the agent's group", "with a stranger")
	rig.Must(t, os.WriteFile(dir+"/cgroup.procs", nil, 0o600))
	rig.Check(t, c.Enable("pids"))
}

// TestCgroupClose: a group is removed when it is empty, and not before. Closing
// a nil Cgroup does nothing.
func TestCgroupClose(t *testing.T) {
	t.Parallel()
	var none *Cgroup
	rig.Check(t, errors.Join(none.kill(), none.Close()))
	out, _ := runInCgroup(t, "close-held")
	rig.Is(t, out, "closed\n", "out")
}

func cgroupClose(t rig.T) {
	c, group := newCgroup(t)
	cmd := commandIn(group, "sleep", "60")
	rig.Must(t, cmd.Start())
	rig.Is(t, os.Remove(group.dir.Name()), error(unix.EBUSY), "removing a group with members")
	rig.Must(t, errors.Join(group.Close(), group.Close(), c.Close()))
	rig.Is(t, cmd.Wait() == nil, false, "the member was not killed")
	fmt.Println("closed")
}

func TestOwnCgroup(t *testing.T) {
	t.Parallel()
	const (
		unified = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n"
		hybrid  = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		bound   = "35 24 0:30 /a\\040b /mnt/c\\134d rw - cgroup2 cgroup2 rw\n"
	)
	for _, tt := range []struct{ name, cgroup, mounts, want string }{
		{"unified", "0::/user.slice/x\n", unified, "/sys/fs/cgroup/user.slice/x"},
		{"namespace", "0::/\n", unified, "/sys/fs/cgroup"},
		{"hybrid", "8:pids:/x\n1:name=systemd:/y\n0::/z\n", hybrid, "/sys/fs/cgroup/unified/z"},
		{"part", "0::/a b/e\n", bound, "/mnt/c\\d/e"},
		{"another part", "0::/f\n", bound, ""},
		{"outside", "0::/../x\n", unified, ""},
		{"v1 only", "8:pids:/x\n", hybrid, ""},
		{"not mounted", "0::/\n", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n", ""},
		{"short line", "0::/\n", "31 23 - cgroup2 cgroup2 rw\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			rig.Must(t, os.WriteFile(dir+"/cgroup", []byte(tt.cgroup), 0o600))
			rig.Must(t, os.WriteFile(dir+"/mountinfo", []byte(tt.mounts), 0o600))
			got, err := ownCgroup(dir+"/cgroup", dir+"/mountinfo")
			rig.Is(t, got, tt.want, "the group")
			rig.Is(t, err, map[bool]error{true: ErrNotDelegated}[tt.want == ""], "the error")
		})
	}
}

func TestCgroupLimitFiles(t *testing.T) {
	t.Parallel()
	values, controllers := CgroupLimits{PIDs: 4096, MemoryMax: 1 << 30, MemoryHigh: 1 << 29, CPUMax: "50000 100000"}.files()
	rig.Is(t, fmt.Sprint(values, controllers), "map[cpu.max:50000 100000 memory.high:536870912 memory.max:1073741824 pids.max:4096] [pids memory cpu]", "the result")
	rig.Is(t, fmt.Sprint((CgroupLimits{}).files()), "map[] []", "without limits")
}

// TestCgroupEvents: waiting for a group that does not get empty has an end.
func TestCgroupEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	rig.Must(t, os.WriteFile(dir+"/cgroup.events", []byte("populated 1\nfrozen 0\n"), 0o600))
	if err := awaitEmpty(dir, 50*time.Millisecond); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v, want one that names %s", err, dir)
	}
	rig.Must(t, os.WriteFile(dir+"/pids.events", []byte("max 3\n"), 0o600))
	rig.Must(t, os.WriteFile(dir+"/memory.events", []byte("oom 5\noom_kill 4\n"), 0o600))
	g := &Cgroup{dir: rig.Value(os.Open(dir))}
	g.entered()
	pids, memory := g.Exceeded()
	rig.Is(t, fmt.Sprint(pids, memory), "3 4", "what exceeded limits")
}
