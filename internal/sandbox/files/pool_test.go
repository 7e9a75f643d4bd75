package files

import (
	"context"
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

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// workspace is a policy that reads all but dir/vault, and writes dir.
func workspace(tb testing.TB, dir string) *sandbox.Policy {
	tb.Helper()
	return compile(tb,
		sandbox.Entry{Place: sandbox.PlaceRoot, Access: sandbox.Read},
		sandbox.Entry{Place: sandbox.PlacePath, Path: dir, Access: sandbox.Write},
		sandbox.Entry{Place: sandbox.PlacePath, Path: dir + "/vault", Access: sandbox.Denied},
	)
}

func compile(tb testing.TB, entries ...sandbox.Entry) *sandbox.Policy {
	tb.Helper()
	return rig.Value(sandbox.Profile{Entries: entries}.Compile())
}

// children counts the processes of a pool.
type children struct {
	mu             sync.Mutex
	pids           []int
	forked, reaped int
}

func (c *children) config(config Config) Config {
	config.Fork = func(start func() (int, error)) (int, error) {
		pid, err := start()
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil {
			c.forked++
			c.pids = append(c.pids, pid)
		}
		return pid, err
	}
	config.Reaped = func(int) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.reaped++
	}
	return config
}

// check makes sure that so many were started and none is left.
func (c *children) check(t *testing.T, want int) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	rig.Is(t, [2]int{c.forked, c.reaped}, [2]int{want, want}, "helpers started, and reaped")
}

func (c *children) last() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids[len(c.pids)-1]
}

// stop stops the last process.
func (c *children) stop(t *testing.T) {
	t.Helper()
	pid := c.last()
	rig.Must(t, unix.Kill(pid, unix.SIGSTOP))
	sandboxtest.Eventually(t, "the helper stops", func() bool {
		tasks := rig.Value(filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid)))
		rig.Is(t, len(tasks) > 0, true, "%d has threads", pid)
		return !slices.ContainsFunc(tasks, func(task string) bool {
			stat, err := os.ReadFile(task)
			_, after, _ := strings.Cut(string(stat), ") ")
			return err == nil && !strings.HasPrefix(after, "T")
		})
	})
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	return len(rig.Value(os.ReadDir("/proc/self/fd")))
}

// testPool is a pool that counts its helpers; the test ends with none left.
func testPool(t *testing.T, config Config) (*Pool, *children) {
	t.Helper()
	c := &children{}
	pool := NewPool(c.config(config))
	t.Cleanup(func() {
		pool.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		rig.Is(t, c.reaped, c.forked, "of the helpers started, how many were reaped")
	})
	return pool, c
}

// write is a request that takes a helper.
func write(t *testing.T, pool *Pool, policy *sandbox.Policy, path string) error {
	t.Helper()
	f := rig.Value(pool.Files(t.Context(), policy))
	fd, err := f.OpenWrite(t.Context(), path, fsops.Writing{})
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// wantHelperError fails a test if an error is not that of a helper, with a text in it.
func wantHelperError(t *testing.T, err error, text string) {
	t.Helper()
	_, ok := errors.AsType[*HelperError](err)
	ok = ok && strings.HasPrefix(err.Error(), "fs sandbox helper failed: ") && strings.Contains(err.Error(), text)
	rig.Is(t, ok, true, "%v is the error of a helper, with %q", err, text)
}

func TestOneHelperForAPolicy(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dirs := []string{t.TempDir(), t.TempDir()}
	var running sync.WaitGroup
	for i := range 100 {
		running.Go(func() { rig.Check(t, write(t, pool, workspace(t, dirs[i%2]), fmt.Sprint(dirs[i%2], "/", i))) })
	}
	running.Wait()
	// Neither serves what only the other may do.
	for i, dir := range dirs {
		err := write(t, pool, workspace(t, dir), dirs[1-i]+"/x")
		rig.Is[error](t, err, syscall.EROFS, "writing the other workspace")
	}
	pool.Close()
	children.check(t, 2)
}

// TestSharesOfHelpers: an owner has half of the helpers, which serve nobody else, and its next request
// waits for one of them.
func TestSharesOfHelpers(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Max: 1, Hang: time.Hour})
	stat := func(owner, dir string) error {
		f := rig.Value(pool.FilesOf(t.Context(), WithKey(workspace(t, dir), owner)))
		return f.CreateDirectory(t.Context(), dir+"/"+owner, false, fsops.FollowLinks)
	}
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	var helpers []int
	for _, dir := range dirs[:2] {
		f := rig.Value(pool.FilesOf(t.Context(), WithKey(workspace(t, dir), "a")))
		helper, _ := slowCopy(t.Context(), t, f, children, dir)
		helpers = append(helpers, helper)
	}
	waits := make(chan error)
	go func() { waits <- stat("a", dirs[2]) }()
	rig.Check(t, stat("b", dirs[0]))
	children.mu.Lock()
	rig.Is(t, children.forked, 3, "helpers")
	children.mu.Unlock()
	rig.Must(t, unix.Kill(helpers[0], unix.SIGKILL))
	rig.Check(t, <-waits)
}

func TestLeastRecentlyUsedHelperGoes(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Max: 2})
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	steps := []struct{ dir, helpers int }{{0, 1}, {1, 2}, {0, 2}, {2, 3}, {0, 3}, {2, 3}, {1, 4}}
	for i, step := range steps {
		rig.Must(t, write(t, pool, workspace(t, dirs[step.dir]), dirs[step.dir]+"/x"))
		children.mu.Lock()
		rig.Is(t, children.forked, step.helpers, "step %d: helpers were started", i)
		children.mu.Unlock()
	}
	sandboxtest.Eventually(t, "two helpers are left", func() bool {
		children.mu.Lock()
		defer children.mu.Unlock()
		return children.forked-children.reaped == 2
	})
}

func TestHelpersAreReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tests := []struct {
		name   string
		config Config
		// between two requests
		between           func(*children)
		requests, helpers int
	}{
		{"requests", Config{Requests: 3}, func(*children) {}, 7, 3},
		{"age", Config{Age: time.Nanosecond}, func(*children) {}, 3, 3},
		{"idle", Config{Idle: time.Millisecond}, func(c *children) {
			sandboxtest.Eventually(t, "an idle helper ends", func() bool {
				c.mu.Lock()
				defer c.mu.Unlock()
				return c.reaped == c.forked
			})
		}, 2, 2},
		{"killed", Config{}, func(c *children) {
			rig.Check(t, unix.Kill(c.last(), unix.SIGKILL))
		}, 3, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			pool, children := testPool(t, tt.config)
			for i := range tt.requests {
				if i > 0 {
					tt.between(children)
				}
				err := write(t, pool, workspace(t, dir), dir+"/x")
				if _, ok := errors.AsType[*HelperError](err); ok && tt.name == "killed" {
					// The end was not noticed before it was sent; then nobody
					// knows what became of it. The next one is served.
					err = write(t, pool, workspace(t, dir), dir+"/x")
				}
				if err != nil {
					t.Fatalf("request %d: %v", i, err)
				}
			}
			pool.Close()
			children.check(t, tt.helpers)
		})
	}
}

// TestReplacedPlace: a root that is another directory now gets another helper,
// and the ceiling of the old one does not matter.
func TestReplacedPlace(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := filepath.Join(t.TempDir(), "w")
	for range 3 {
		rig.Must(t, os.Mkdir(dir, 0o777))
		for range 2 {
			rig.Must(t, write(t, pool, workspace(t, dir), dir+"/x"))
		}
		rig.Must(t, os.RemoveAll(dir))
	}
	pool.Close()
	children.check(t, 3)
}

// TestStoppedHelper: one that hangs is found out, fails what it had, and is
// replaced.
func TestStoppedHelper(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Quiet: 50 * time.Millisecond, Hang: 500 * time.Millisecond, start: sandboxtest.Enough})
	dir := t.TempDir()
	// On a busy machine a helper may seem to hang that only has to wait for its turn.
	serves := func() bool { return write(t, pool, workspace(t, dir), dir+"/x") == nil }
	sandboxtest.Eventually(t, "a helper serves", serves)
	children.stop(t)
	wantHelperError(t, write(t, pool, workspace(t, dir), dir+"/x"), "ping")
	sandboxtest.Eventually(t, "another helper serves", serves)
}

// TestStartFails: what cannot confine itself serves nothing and says why.
func TestStartFails(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for path, want := range map[string]string{
		"/bin/true":           "the helper has ended: exit status 0",
		"/nonexistent/helper": "no such file or directory",
	} {
		pool := NewPool(Config{Path: path})
		wantHelperError(t, write(t, pool, workspace(t, dir), dir+"/x"), want)
		pool.Close()
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{})
	dir := t.TempDir()
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	rig.Must(t, write(t, pool, workspace(t, dir), dir+"/x"))
	children.stop(t)
	failed := make(chan error)
	go func() {
		failed <- rig.Err(f.Stat(context.Background(), dir, fsops.FollowLinks))
	}()
	sandboxtest.Eventually(t, "the request is under way", func() bool { return f.entry.requests.Load() == 2 })
	pool.Close()
	rig.Is(t, <-failed != nil, true, "a request of a closed pool fails")
	rig.Is(t, rig.Err(f.Stat(t.Context(), dir, fsops.FollowLinks)) != nil, true, "a closed pool does not serve")
	rig.Is(t, rig.Err(pool.Files(t.Context(), workspace(t, dir))) != nil, true, "a closed pool gives no files")
	pool.Close()
	children.check(t, 1)
}

// slowCopy has f copy a file, and returns once that is under way. It takes until its helper, which is
// stopped, gets SIGCONT.
func slowCopy(ctx context.Context, t *testing.T, f *FS, c *children, dir string) (helper int, failed <-chan error) {
	t.Helper()
	rig.Must(t, os.WriteFile(dir+"/from", []byte("x"), 0o666), rig.Err(f.Stat(ctx, dir, fsops.FollowLinks))) // it begins the helper
	helper = c.last()
	rig.Must(t, unix.Kill(helper, unix.SIGSTOP))
	sandboxtest.Eventually(t, "the helper is stopped", func() bool {
		return strings.Contains(string(rig.Value(os.ReadFile(fmt.Sprintf("/proc/%d/stat", helper)))), ") T ")
	})
	t.Cleanup(func() { _ = unix.Kill(helper, unix.SIGCONT) }) // it may have ended
	ended := make(chan error, 1)
	go func() { ended <- f.Copy(ctx, dir+"/from", dir+"/to", false) }()
	sandboxtest.Eventually(t, "the helper has a request", func() bool { return len(f.entry.worker.slots) == 1 })
	return helper, ended
}

// TestRecycledHelperFinishes: what a helper has when it gets nothing new any
// more is not disturbed.
func TestRecycledHelperFinishes(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Requests: 2, Hang: time.Hour})
	dir := t.TempDir()
	f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
	ctx, cancel := context.WithCancel(t.Context())
	old, failed := slowCopy(ctx, t, f, children, dir)
	rig.Must(t, write(t, pool, workspace(t, dir), dir+"/x"))
	rig.Is(t, children.last() == old, false, "it is the old one")
	select {
	case err := <-failed:
		t.Errorf("the copy ended: %v", err)
	default:
	}
	cancel()
	rig.Is(t, <-failed, context.Canceled, "the error")
	rig.Must(t, unix.Kill(old, unix.SIGCONT))
	sandboxtest.Eventually(t, "the old helper ends", func() bool {
		children.mu.Lock()
		defer children.mu.Unlock()
		return children.reaped >= 1
	})
}

// TestKilledHelperFailsItsOwn: nobody else's requests notice.
func TestKilledHelperFailsItsOwn(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Hang: time.Hour})
	dirs := []string{t.TempDir(), t.TempDir()}
	var failed []<-chan error
	var pids []int
	for _, dir := range dirs {
		f := rig.Value(pool.Files(t.Context(), workspace(t, dir)))
		pid, copied := slowCopy(t.Context(), t, f, children, dir)
		failed, pids = append(failed, copied), append(pids, pid)
	}
	rig.Must(t, unix.Kill(pids[0], unix.SIGKILL))
	wantHelperError(t, <-failed[0], "")
	rig.Must(t, unix.Kill(pids[1], unix.SIGCONT))
	rig.Is(t, <-failed[1], nil, "the other's request")
	for _, dir := range dirs {
		rig.Check(t, write(t, pool, workspace(t, dir), dir+"/x"))
	}
	pool.Close()
	children.check(t, 3)
}

// mortalArg makes the test binary an agent that is killed: it has a helper
// write the file of the second argument, prints the helper's pid, and waits.
const mortalArg = "mortal-agent"

func mortalMain() int {
	dir := filepath.Dir(os.Args[2])
	policy := workspace(&sandboxtest.TB{}, dir)
	c := &children{}
	f := rig.Value(NewPool(c.config(Config{})).Files(context.Background(), policy))
	_ = rig.Value(f.OpenWrite(context.Background(), os.Args[2], fsops.Writing{}))
	fmt.Println(c.last())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// TestHelperDiesWithTheAgent, whatever that dies of.
func TestHelperDiesWithTheAgent(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	agent := exec.CommandContext(t.Context(), "/proc/self/exe", mortalArg, path)
	stdin := rig.Value(agent.StdinPipe())
	defer stdin.Close()
	stdout := rig.Value(agent.StdoutPipe())
	rig.Must(t, agent.Start())
	var pid int
	rig.Must(t, rig.Err(fmt.Fscan(stdout, &pid)), agent.Process.Kill())
	_ = agent.Wait() // it was killed
	sandboxtest.Eventually(t, "the helper ends", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err != nil || state[0] == 'Z' // whoever inherits it may not reap
	})
}

func TestUnconfinedPolicyIsRefused(t *testing.T) {
	t.Parallel()
	pool, _ := testPool(t, Config{})
	rig.Is(t, rig.Err(pool.Files(t.Context(), &sandbox.Policy{})), ErrUnconfined, "the error")
}
