package procs

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// ErrNotDelegated reports that this process may not divide its control group;
// the text around it says why.
var ErrNotDelegated = errors.New("cgroup v2 is not delegated")

// CgroupLimits bound the processes of one group together; sandbox.md 16.
type CgroupLimits struct {
	PIDs       uint64 // pids.max, processes and threads; 0: no limit
	MemoryMax  uint64 // memory.max, in bytes; 0: no limit
	MemoryHigh uint64 // memory.high, in bytes; 0: no limit
	CPUMax     string // cpu.max, "QUOTA PERIOD" in microseconds; "": no limit
}

// files returns the values to write, by file name, and the controllers that
// these files need.
func (l CgroupLimits) files() (values map[string]string, controllers []string) {
	values = map[string]string{}
	add := func(controller, file, value string) {
		if value == "" || value == "0" {
			return
		}
		values[file] = value
		if !slices.Contains(controllers, controller) {
			controllers = append(controllers, controller)
		}
	}
	add("pids", "pids.max", strconv.FormatUint(l.PIDs, 10))
	add("memory", "memory.max", strconv.FormatUint(l.MemoryMax, 10))
	add("memory", "memory.high", strconv.FormatUint(l.MemoryHigh, 10))
	add("cpu", "cpu.max", l.CPUMax)
	return values, controllers
}

// Under returns the stricter of each of two limits.
func (l CgroupLimits) Under(m CgroupLimits) CgroupLimits {
	least := func(a, b uint64) uint64 {
		if a == 0 || b == 0 {
			return max(a, b)
		}
		return min(a, b)
	}
	cpu := l.CPUMax
	if mine, theirs := cpuShare(l.CPUMax), cpuShare(m.CPUMax); cpu == "" || theirs > 0 && (mine == 0 || theirs < mine) {
		cpu = m.CPUMax
	}
	return CgroupLimits{
		PIDs: least(l.PIDs, m.PIDs), MemoryMax: least(l.MemoryMax, m.MemoryMax), MemoryHigh: least(l.MemoryHigh, m.MemoryHigh), CPUMax: cpu,
	}
}

// cpuShare returns how many processors a value of cpu.max stands for; 0: no limit.
func cpuShare(text string) float64 {
	quota, period, _ := strings.Cut(text, " ")
	n, _ := strconv.ParseFloat(quota, 64) // "max" is no limit
	of, err := strconv.ParseFloat(strings.TrimSpace(period), 64)
	if err != nil || of <= 0 {
		of = 100_000 // the kernel's default
	}
	return n / of
}

// Cgroups makes a control group for each process. They lie in a group of this
// agent, which lies in the group that this process was started in:
//
//	execagent-RANDOM     locked (flock(2)) as long as its agent lives
//	├ agent              this process, if a limit needs a controller
//	└ p-1, p-2, ...      one for each process
//
// Methods may be called concurrently.
type Cgroups struct {
	dir    string   // that this process was started in
	base   *os.File // the directory in it
	limits CgroupLimits
	last   atomic.Uint64

	mu      sync.Mutex
	enabled map[string]bool // by controller
}

// cgroupPrefix begins the name of the group of an agent, processPrefix that of
// the group of a process in it.
const (
	cgroupPrefix  = "execagent-"
	processPrefix = "p-"
)

// How long killed processes may take to disappear: those of one process, and
// those that a dead agent left, for which the start of a new agent waits.
const (
	maxCgroupWait  = 10 * time.Second
	maxCgroupSweep = time.Second
)

// NewCgroups finds out, by making one, whether control groups with these limits
// can be made here. If there are limits, this process moves into a group of its
// own, so the caller must not have started other processes yet. NewCgroups kills
// and removes groups that dead agents left, which may take a second for each.
// The caller must Close the result.
//
// The error wraps ErrNotDelegated, or names a limit and its controller, which
// is missing or refused the value.
func NewCgroups(l CgroupLimits) (*Cgroups, error) {
	dir, err := ownCgroup("/proc/self/cgroup", "/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	if err := checkClone3(); err != nil {
		return nil, err
	}
	sweepCgroups(dir)
	base, err := makeBase(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	c := &Cgroups{dir: dir, base: base, limits: l, enabled: map[string]bool{}}
	if err := c.prepare(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// makeBase makes and locks the group of this agent.
func makeBase(dir string) (*os.File, error) {
	for {
		path := filepath.Join(dir, cgroupPrefix+rand.Text())
		if err := os.Mkdir(path, 0o755); err != nil {
			return nil, err
		}
		base, err := os.Open(path)
		if err == nil {
			if err = unix.Flock(int(base.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
				_, err = os.Lstat(path)
			}
			if err == nil {
				return base, nil
			}
			_ = base.Close() // nothing is written to it
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), os.Remove(path))
		}
		// Another starting agent took this group for the group of a dead agent.
	}
}

// prepare enables the controllers that the limits need, and tries the limits on a
// group. Without limits it only checks the permission.
func (c *Cgroups) prepare() error {
	if _, controllers := c.limits.files(); len(controllers) == 0 {
		return c.checkPermission(c.dir)
	}
	trial, err := c.New()
	if err != nil {
		return err
	}
	return trial.Close()
}

// checkPermission finds out whether processes can be born into groups of c. For
// that this process must be allowed to move them there, which needs the right
// to write to cgroup.procs of the group above both.
//
// Opening the file checks that right. Writing would check it too, but waits some 10
// ms for all processors, at every start of an agent. A write would also fail if the
// group is threaded, below which no process can be born; cgroup.type says this too.
// Any other reason against a write shows later, when the clone of a process fails,
// and so its start.
func (c *Cgroups) checkPermission(dir string) error {
	members, err := os.OpenFile(filepath.Join(dir, "cgroup.procs"), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	_ = members.Close() // nothing is written to it
	kind, err := os.ReadFile(filepath.Join(c.base.Name(), "cgroup.type"))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	if kind := strings.TrimSpace(string(kind)); kind != "domain" {
		return fmt.Errorf("%w: groups in %s are of type %q", ErrNotDelegated, dir, kind)
	}
	return nil
}

// enable gives the controllers to the groups of processes. The kernel allows
// that only for a group without processes of its own, except the root of all
// groups.
//
// A controller may be needed for the first time when other processes of this agent run already. They move
// into the group of the agent with it. Only a success is remembered: strangers may leave the group of the
// agent, and somebody may give it a controller.
func (c *Cgroups) enable(controllers []string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range controllers {
		if c.enabled[name] {
			continue
		}
		if err := c.tryToEnable(name); err != nil {
			return err
		}
		c.enabled[name] = true
	}
	return nil
}

// Enable makes sure that groups with limits of a controller can be made: cpu, memory or pids. On nil it fails
// with ErrNotDelegated.
func (c *Cgroups) Enable(controller string) error {
	if c == nil {
		return ErrNotDelegated
	}
	return c.enable([]string{controller})
}

func (c *Cgroups) tryToEnable(name string) error {
	dir := c.dir
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	if !slices.Contains(strings.Fields(string(have)), name) {
		return fmt.Errorf("limits of the controller %q are asked for, but %s has only %q", name, dir, strings.TrimSpace(string(have)))
	}
	if err := checkAlone(dir); err != nil {
		return fmt.Errorf("%w: enabling the controller %q: %w", ErrNotDelegated, name, err)
	}
	leaf := filepath.Join(c.base.Name(), "agent")
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	if err := moveOwn(dir, leaf); err != nil {
		return fmt.Errorf("%w: moving the agent: %w", ErrNotDelegated, err)
	}
	for _, group := range []string{dir, c.base.Name()} {
		err := writeCgroup(group, "cgroup.subtree_control", "+"+name)
		if errors.Is(err, unix.EBUSY) {
			err = errStrangers
		}
		if err != nil {
			// Move back to the earlier group, so that Close can remove the
			// groups that were made here.
			back := moveOwn(leaf, dir)
			return errors.Join(fmt.Errorf("%w: enabling the controller %q: %w", ErrNotDelegated, name, err), back)
		}
	}
	return nil
}

// errStrangers says why the kernel does not let the group of the agent be divided.
var errStrangers = fmt.Errorf("there are other processes in the agent's group: %w", unix.EBUSY)

// checkAlone returns errStrangers if a group has processes that do not descend from this one. Then the agent
// need not move, only to move back. The root of all groups may have them; it has no type.
func checkAlone(dir string) error {
	if _, err := os.Lstat(filepath.Join(dir, "cgroup.type")); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	list, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(list)) {
		pid, err := strconv.Atoi(strings.TrimSpace(line))
		if err == nil && unix.Kill(pid, 0) != unix.ESRCH && !isOwn(pid) {
			return errStrangers
		}
	}
	return nil
}

// moveOwn moves this process and its descendants from one group to another.
func moveOwn(from, to string) error {
	for range sweepRounds {
		moved := false
		list, err := os.ReadFile(filepath.Join(from, "cgroup.procs"))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(list)) {
			pid, _ := strconv.Atoi(strings.TrimSpace(line))
			if !isOwn(pid) {
				continue
			}
			err := writeCgroup(to, "cgroup.procs", strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			moved = true
		}
		if !moved {
			break
		}
	}
	return nil
}

// isOwn reports whether a process is this one or descends from it.
func isOwn(pid int) bool {
	const deep = 1000
	self := os.Getpid()
	for range deep {
		if pid == self {
			return true
		}
		stat, err := linux.StatOf(pid)
		if pid <= 1 || err != nil {
			return false
		}
		pid = stat.Number(linux.StatParent)
	}
	return false
}

// New makes a group with the limits of all groups. The caller must Close it.
func (c *Cgroups) New() (*Cgroup, error) { return c.limited(c.limits, false) }

// NewLimited makes a group with limits of its own. With confined, those of all groups hold too. An error
// says which controller is missing.
func (c *Cgroups) NewLimited(l CgroupLimits, confined bool) (*Cgroup, error) {
	if confined {
		l = l.Under(c.limits)
	}
	return c.limited(l, true)
}

func (c *Cgroups) limited(l CgroupLimits, own bool) (*Cgroup, error) {
	values, controllers := l.files()
	if err := c.enable(controllers); err != nil {
		return nil, err
	}
	path := filepath.Join(c.base.Name(), processPrefix+strconv.FormatUint(c.last.Add(1), 10))
	if err := os.Mkdir(path, 0o755); err != nil {
		return nil, err
	}
	if own && l.MemoryMax > 0 {
		values["memory.swap.max"] = "0" // or the limit would be one of memory without what is swapped out
	}
	for file, value := range values {
		err := writeCgroup(path, file, value)
		if file == "memory.swap.max" && errors.Is(err, fs.ErrNotExist) {
			continue // this kernel has no swap, or does not count it
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("setting a limit: %w", err), os.Remove(path))
		}
	}
	dir, err := os.Open(path)
	if err != nil {
		return nil, errors.Join(err, os.Remove(path))
	}
	return &Cgroup{dir: dir, tells: own && l.MemoryMax > 0}, nil
}

// Close removes the group of the agent; every Cgroup must be closed before. If
// this process moved into a group, that group cannot be removed as long as the
// process lives: Close leaves both groups, and the next agent removes them.
func (c *Cgroups) Close() error {
	defer c.base.Close() // only then: another agent removes a group that nobody has locked
	path := c.base.Name()
	leaf := filepath.Join(path, "agent")
	members, err := os.ReadFile(filepath.Join(leaf, "cgroup.procs"))
	switch {
	case err != nil: // there is none
		err = nil
	case len(members) > 0:
		return nil
	default:
		err = os.Remove(leaf)
	}
	return errors.Join(err, os.Remove(path))
}

// Cgroup is a control group that a process is born into. All methods may be
// called concurrently, and on a nil Cgroup, which has no members.
type Cgroup struct {
	tells bool // whether its limit of memory has ended a process

	mu     sync.Mutex
	dir    *os.File
	closed bool
}

// fd returns the descriptor of the directory of the group, for
// syscall.SysProcAttr. It belongs to the Cgroup.
func (g *Cgroup) fd() int { return int(g.dir.Fd()) }

// entered closes that descriptor, because the process is in the group: an ended process may be kept
// for long. The group is found by its path from now on.
func (g *Cgroup) entered() {
	if g != nil {
		_ = g.dir.Close() // nothing is written to it
	}
}

// kill kills every process in the group, whatever session it is in. It does not
// wait for their end.
func (g *Cgroup) kill() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	return killCgroup(g.dir.Name())
}

// Exceeded returns how often the limit of processes has refused a new one, and how many processes the limit
// of memory has ended, until Close.
func (g *Cgroup) Exceeded() (pids, memory int) {
	if g == nil {
		return 0, 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, 0
	}
	return countIn(g.dir.Name(), "pids.events", "max"), countIn(g.dir.Name(), "memory.events", "oom_kill")
}

// ranOut reports whether a limit of memory that is the group's own has ended a process.
func (g *Cgroup) ranOut() bool {
	if g == nil || !g.tells {
		return false
	}
	_, memory := g.Exceeded()
	return memory > 0
}

// countIn returns a number of a file of a group, whose lines are NAME NUMBER; 0 if there is none.
func countIn(dir, file, name string) int {
	text, _ := os.ReadFile(filepath.Join(dir, file)) // there is none without the controller
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, _ := strconv.Atoi(number)
			return n
		}
	}
	return 0
}

// Close kills every process in the group, waits for their end, at most ten
// seconds, and removes the group. If some processes remain, the error names the
// group, and another Close tries again.
func (g *Cgroup) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return nil
	}
	path := g.dir.Name()
	err := killCgroup(path)
	if err == nil {
		err = awaitEmpty(path, maxCgroupWait)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return err
	}
	g.closed = true
	_ = g.dir.Close() // it fails if the process has entered the group
	return nil
}

// killCgroup kills the members of a group.
func killCgroup(path string) error {
	err := writeCgroup(path, "cgroup.kill", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return killMembers(path) // before Linux 5.14
	}
	return err
}

// killMembers kills the members one by one, while the group is frozen, so that
// none can fork.
func killMembers(path string) error {
	if err := writeCgroup(path, "cgroup.freeze", "1"); err != nil {
		return err
	}
	for range sweepRounds {
		list, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return err
		}
		killed := false
		for line := range strings.Lines(string(list)) {
			pid, err := strconv.Atoi(strings.TrimSpace(line))
			if err != nil || pid <= 0 {
				continue // a member in another pid namespace is listed as 0
			}
			killed = unix.Kill(pid, unix.SIGKILL) == nil || killed
		}
		if !killed {
			break
		}
	}
	return writeCgroup(path, "cgroup.freeze", "0")
}

// awaitEmpty waits until cgroup.events says that the group has no members.
func awaitEmpty(path string, limit time.Duration) error {
	events, err := os.Open(filepath.Join(path, "cgroup.events"))
	if err != nil {
		return err
	}
	defer events.Close()
	buf := make([]byte, 256)
	for deadline := time.Now().Add(limit); ; {
		n, err := events.ReadAt(buf, 0)
		if n == 0 {
			return err
		}
		if bytes.Contains(buf[:n], []byte("populated 0\n")) {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("%s has processes that do not end", path)
		}
		poll := []unix.PollFd{{Fd: int32(events.Fd()), Events: unix.POLLPRI}}
		if _, err := unix.Poll(poll, int(left.Milliseconds())+1); err != nil && err != unix.EINTR {
			return os.NewSyscallError("poll", err)
		}
	}
}

// writeCgroup writes to a file of a group.
func writeCgroup(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// sweepCgroups kills and removes groups that dead agents left in dir. Groups
// that cannot be removed stay, for example a group in which unconfined children
// of a dead agent still run.
func sweepCgroups(dir string) {
	agents, _ := filepath.Glob(filepath.Join(dir, cgroupPrefix+"*"))
	for _, agent := range agents {
		base, err := os.Open(agent)
		if err != nil {
			continue
		}
		if unix.Flock(int(base.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			groups, _ := filepath.Glob(filepath.Join(agent, processPrefix+"*"))
			for _, group := range groups {
				if killCgroup(group) == nil && awaitEmpty(group, maxCgroupSweep) == nil {
					_ = os.Remove(group)
				}
			}
			_ = os.Remove(filepath.Join(agent, "agent"))
			_ = os.Remove(agent)
		}
		_ = base.Close() // nothing is written to it
	}
}

// checkClone3 returns an error if the kernel lacks clone3(2), without which no
// process can be born into a group. It calls clone3 with a size of zero, which a
// kernel that knows the call refuses with EINVAL.
func checkClone3() error {
	if _, _, errno := unix.RawSyscall(unix.SYS_CLONE3, 0, 0, 0); errno != unix.EINVAL {
		return fmt.Errorf("%w: clone3: %w", ErrNotDelegated, errno)
	}
	return nil
}

// ownCgroup finds the directory of the group of this process in the v2
// hierarchy, which may be mounted below those of v1. The files are those of
// cgroups(7) and proc_pid_mountinfo(5).
func ownCgroup(cgroupFile, mountinfoFile string) (string, error) {
	_, dir, err := linux.FindCgroup(cgroupFile, mountinfoFile, "")
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrNotDelegated, err)
	}
	return dir, nil
}
