package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// roots makes n directories that a policy lets be written.
func roots(tb testing.TB, n int) *sandbox.Policy {
	tb.Helper()
	var entries []sandbox.Entry
	dir := tb.TempDir()
	for i := range n {
		root := fmt.Sprint(dir, "/", i)
		rig.Must(tb, os.Mkdir(root, 0o777))
		entries = append(entries, sandbox.Entry{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write})
	}
	return compile(tb, entries...)
}

// TestDescriptorsAreBounded over all policies of a pool, whatever they are doing.
func TestDescriptorsAreBounded(t *testing.T) {
	pool, _ := testPool(t, Config{Descriptors: 8})
	before := openDescriptors(t)
	busy := rig.Value(pool.Files(t.Context(), roots(t, 4)))
	rig.Is(t, busy.entry.hold(), true, "held")
	for range 10 {
		rig.Must(t, rig.Err(pool.Files(t.Context(), roots(t, 3))))
	}
	sandboxtest.Eventually(t, "the least recently used let go", func() bool { return openDescriptors(t) <= before+8 })
	busy.entry.release()
	err := rig.Err(pool.Files(t.Context(), roots(t, 5)))
	rig.Is(t, strings.Contains(fmt.Sprint(err), "more than 4 paths"), true, "one that needs too many: %v", err)
}

// TestFewStartAtOnce: others wait for their turn.
func TestFewStartAtOnce(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var alive, most, forked int
	pool := NewPool(Config{
		Argv0: garbageArgv0 + "silent", start: 300 * time.Millisecond,
		Fork: func(start func() (int, error)) (int, error) {
			mu.Lock()
			defer mu.Unlock()
			alive++
			forked++
			most = max(most, alive)
			return start()
		},
		Reaped: func(int) {
			mu.Lock()
			defer mu.Unlock()
			alive--
		},
	})
	defer pool.Close()
	var asking sync.WaitGroup
	for range 3 * maxStarts {
		policy := roots(t, 1)
		asking.Go(func() {
			f, err := pool.Files(t.Context(), policy)
			if err == nil {
				_, err = f.Stat(t.Context(), "/", fsops.FollowLinks)
			}
			wantHelperError(t, err, "")
		})
	}
	asking.Wait()
	rig.Is(t, [2]int{most, forked}, [2]int{maxStarts, 3 * maxStarts}, "helpers started at once, and in all")
}

// TestNewPoliciesReplaceEachOther, and not the helper of who comes again.
func TestNewPoliciesReplaceEachOther(t *testing.T) {
	t.Parallel()
	pool, children := testPool(t, Config{Max: 2})
	pool.head = time.Hour // as long as a busy machine needs for the helpers in between
	dir := t.TempDir()
	regular := workspace(t, dir)
	for i := range 5 {
		for range 2 {
			rig.Must(t, write(t, pool, regular, dir+"/x"))
		}
		for range i {
			other := t.TempDir()
			rig.Must(t, write(t, pool, workspace(t, other), other+"/x"))
		}
	}
	pool.Close()
	children.check(t, 1+0+1+2+3+4)
}

// exhaustChild makes the test binary do what needs a process of its own; the
// name and arguments follow.
const exhaustChild = "exhaust-child"

var exhaustChildren = map[string]func(t *sandboxtest.TB){
	"descriptors": fewDescriptors,
	"dead mount":  deadMount,
	"tracefs":     tracePipe,
}

func exhaustChildMain() int {
	t := &sandboxtest.TB{}
	defer t.End()
	exhaustChildren[os.Args[2]](t)
	return 0
}

func runExhaustChild(t *testing.T, name string, attr *syscall.SysProcAttr) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", exhaustChild, name)
	cmd.SysProcAttr = attr
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	rig.Check(t, cmd.Run())
}

// TestNoDescriptorsLeft: policies that do nothing make room for those that are
// needed, before and after they have a helper.
func TestNoDescriptorsLeft(t *testing.T) {
	t.Parallel()
	runExhaustChild(t, "descriptors", nil)
}

func fewDescriptors(t *sandboxtest.TB) {
	ctx := context.Background()
	var limit unix.Rlimit
	rig.Must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	limit.Cur = 100
	rig.Must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	pool := NewPool(Config{Descriptors: 64})
	defer pool.Close()
	// What the runtime and a helper need once.
	rig.Must(t, statRoot(ctx, pool, roots(t, 1)))
	dir := t.TempDir()
	policy := compile(t, sandbox.Entry{Place: sandbox.PlacePath, Path: dir, Access: sandbox.Write})
	idle := []*sandbox.Policy{roots(t, 15), roots(t, 15)}
	fill := func() (release func()) {
		for _, p := range idle {
			rig.Must(t, rig.Err(pool.Files(ctx, p)))
		}
		var fds []int
		for {
			fd, err := unix.Open("/dev/null", unix.O_CLOEXEC, 0)
			if err == unix.EMFILE {
				break
			}
			fds = append(fds, fd)
		}
		return func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	release := fill()
	f, err := pool.Files(ctx, policy)
	release()
	rig.Must(t, err)
	defer fill()()
	rig.Must(t, rig.Err(f.Stat(ctx, dir, fsops.FollowLinks))) // it starts a helper
}

func statRoot(ctx context.Context, pool *Pool, p *sandbox.Policy) error {
	f, err := pool.Files(ctx, p)
	if err == nil {
		_, err = f.Stat(ctx, p.WritableRoots()[0], fsops.FollowLinks)
	}
	return err
}

// TestDeadMount: a file system that does not answer holds up only the requests for
// it, and not the end of the pool.
func TestDeadMount(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE: ", err)
	}
	runExhaustChild(t, "dead mount", &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	})
}

func deadMount(t *sandboxtest.TB) {
	dir := t.TempDir()
	fuse := rig.Value(unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0))
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fuse)
	rig.Must(t, unix.Mount("dead", dir, "fuse", 0, options))
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	pool := NewPool(Config{})
	const own = (maxLookups + maxStuck) / 2 // look-ups of one owner
	ask := func(what string, i int, wait time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		_, err := pool.Files(ctx, compile(t, sandbox.Entry{Place: sandbox.PlacePath, Path: fmt.Sprint(dir, "/", i), Access: sandbox.Write}))
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for i := range own - 1 {
		ask("a dead mount", i, 10*time.Millisecond)
	}
	for range 20 { // which takes no place
		ask("the same again", 0, time.Millisecond)
	}
	// All turns of the owner are taken, by what does nothing.
	ctx, cancel := context.WithTimeout(context.Background(), sandboxtest.Enough)
	defer cancel()
	rig.Must(t, statRoot(ctx, pool, roots(t, 1)))
	// Those that are given up before their turn leave nothing behind.
	for i := range 100 {
		ask("a dead mount again", own+i, time.Millisecond)
	}
	rig.Must(t, rig.Err(pool.FilesOf(ctx, WithKey(roots(t, 1), "another owner"))))
	pool.Close() // it does not wait for the file system, which does not answer
	pool.mu.Lock()
	left := len(pool.live)
	pool.mu.Unlock()
	if left == 0 || left > own {
		t.Fatalf("%d are left behind", left)
	}
	unix.Close(fuse) // now it answers
	pool.running.Wait()
}

// TestTracePipe: a regular file on which a read waits for good.
func TestTracePipe(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root mounts tracefs")
	}
	runExhaustChild(t, "tracefs", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS})
}

func tracePipe(t *sandboxtest.TB) {
	dir := t.TempDir()
	rig.Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("tracefs", dir, "tracefs", 0, ""))
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	fd := rig.Value(unix.Open(filepath.Join(dir, "trace_pipe"), unix.O_RDONLY|unix.O_NONBLOCK, 0))
	if fd, err := own(fd, opOpenRead); err != unix.EACCES {
		t.Fatalf("descriptor %d, %v", fd, err)
	}
}

// TestOwn: what the helper does with its descriptor later does not reach the
// agent's.
func TestOwn(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x")
	rig.Must(t, os.WriteFile(path, []byte("contents"), 0o666))
	for o, mode := range map[op]int{opOpenRead: unix.O_RDONLY, opOpenWrite: unix.O_WRONLY} {
		fd := open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC)
		helpers := rig.Value(unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0))
		defer unix.Close(helpers)
		fd = rig.Value(own(fd, o))
		defer unix.Close(fd)
		rig.Must(t, rig.Err(unix.Seek(helpers, 5, 0)), rig.Err(unix.FcntlInt(uintptr(helpers), unix.F_SETFL, unix.O_APPEND)))
		rig.Is(t, rig.Value(unix.Seek(fd, 0, 1)), 0, "the offset")
		flags := rig.Value(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))
		rig.Is(t, flags&(unix.O_ACCMODE|unix.O_NONBLOCK|unix.O_APPEND), mode|unix.O_NONBLOCK, "flags")
	}
}
