package confine

import (
	"bufio"
	"errors"
	goflag "flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/view"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// starts is how many commands TestReplacedWhileStarting starts of each kind; 0 takes what is usual.
var starts = goflag.Int("starts", 0, "commands that TestReplacedWhileStarting starts of each kind")

// denyingEnv returns a policy that lets root be written and denies its files
// *.env.
func denyingEnv(t testing.TB, root string) *sandbox.Policy {
	t.Helper()
	return policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{
		{Place: sandbox.PlaceRoot, Access: sandbox.Read},
		{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		{Place: sandbox.PlaceGlob, Path: root + "/**/*.env", Access: sandbox.Denied},
	}})
}

const maskChild = "mask-child"

// TestMaskLostAtOnce: when the mount on a denied file is detached after the
// view was built and before record looks for it, record fails.
func TestMaskLostAtOnce(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"a mask", "no mask"} {
		root := t.TempDir()
		put(t, root+"/secret.env", "old")
		put(t, root+"/new", "new")
		policy := denyingEnv(t, root)
		holdMissing(t, policy)
		text := rig.Value(policy.MarshalText())
		c := Command{Policy: policy, Backend: full()}
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = []string{os.Args[0], maskChild, string(text), strconv.Itoa(os.Getuid()), strconv.Itoa(os.Getgid())}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: c.namespaces(), AmbientCaps: linux.UserNamespaceCaps()}
		in := rig.Value(cmd.StdinPipe())
		out, err := cmd.StdoutPipe()
		rig.Must(t, err, cmd.Start())
		lines := bufio.NewReader(out)
		rig.Is(t, rig.Value(lines.ReadString('\n')), "built\n", "the child said")
		want := "<nil>\n"
		if what == "a mask" {
			rig.Must(t, os.Rename(root+"/new", root+"/secret.env"))
			want = replaced(root+"/secret.env").Error() + "\n"
		}
		rig.Must(t, in.Close())
		said, _ := io.ReadAll(lines)
		rig.Check(t, cmd.Wait())
		rig.Is(t, string(said), want, "%s is lost", what)
	}
}

// maskChildMain builds a view, waits while the test does something, and records
// the mounts.
func maskChildMain() int {
	err := func() error {
		// The ids come as arguments: until they are mapped, os.Getuid returns
		// nobody's.
		uid, _ := strconv.Atoi(os.Args[3])
		gid, _ := strconv.Atoi(os.Args[4])
		cfg := &config{Command: Command{Policy: new(sandbox.Policy), Backend: full()}, UID: uid, GID: gid}
		if err := errors.Join(cfg.Policy.UnmarshalText([]byte(os.Args[2])), cfg.enter(roleCommand)); err != nil {
			return err
		}
		resolved := rig.Value(resolve.Policy(cfg.Policy))
		defer resolved.Close()
		watch := rig.Value(newMountWatch(cfg.Backend, resolved))
		made, err := cfg.enterView(resolved)
		fmt.Println("built")
		_, _ = io.Copy(io.Discard, os.Stdin)
		if err == nil {
			err = watch.record(made)
		}
		return err
	}()
	fmt.Println(err)
	return 0
}

// TestApartWaits: a second init executes its command only after the first one
// has found all mounts of the view.
func TestApartWaits(t *testing.T) {
	t.Parallel()
	root := rig.Value(mountAt("/"))
	for _, tt := range []struct {
		name string
		made []view.Mounted
		lost bool
	}{
		{"none", nil, false},
		{"one", []view.Mounted{{Path: "/", ID: root}}, false},
		{"one that is gone", []view.Mounted{{Path: "/", ID: root}, {Path: "/gone", ID: 1 << 40}}, true},
		{"one that is elsewhere", []view.Mounted{{Path: "/elsewhere", ID: root}}, true},
	} {
		pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))
		passed := make(chan error)
		go func() {
			err := passMade(pair[1], tt.made)
			unix.Close(pair[1])
			passed <- err
		}()
		watch := &mountWatch{self: rig.Value(unix.Open("/proc/self", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))}
		err := (&target{drop: func() error { return nil }}).awaitApart(pair[0], watch)
		unix.Close(pair[0])
		watch.list.Close()
		second := <-passed
		if !tt.lost && (err != nil || second != nil) {
			t.Errorf("%s: %v, %v", tt.name, err, second)
		}
		if tt.lost && (err == nil || !strings.Contains(err.Error(), "was replaced") || !errors.Is(second, errApartEnd)) {
			t.Errorf("%s: %v, %v", tt.name, err, second)
		}
	}
}

// TestReplacedWhileStarting: at whatever moment of a command's start somebody
// outside replaces a denied file, the command is ended if it can read the new
// one. The flag -starts sets how many moments are tried.
func TestReplacedWhileStarting(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		count, n := map[string]int{}, *starts
		switch {
		case n > 0:
		case rig.Runs(rig.Nightly):
			n = 300
		case rig.Runs(rig.Merge):
			n = 10
		default:
			n = 3
		}
		for range n {
			root := t.TempDir()
			put(t, root+"/secret.env", "old")
			put(t, root+"/new", "new")
			c := confined{policy: denyingEnv(t, root), backend: full(), limits: limits, Spec: procs.Spec{Dir: root}}
			c.Argv = []string{"sh", "-c", `
				for i in 1 2 3 4 5; do cat secret.env 2>/dev/null && echo leaked && exec sleep 1000; done
				echo up; read -r _; cat secret.env 2>/dev/null && echo leaked && exec sleep 1000; echo end`}
			c.Stdin = true
			replacing := make(chan error)
			after := time.Duration(random.Int64N(int64(time.Millisecond) << random.IntN(8))) // up to 128 ms: a start takes some milliseconds, or many
			go func() {
				time.Sleep(after)
				replacing <- os.Rename(filepath.Join(root, "new"), filepath.Join(root, "secret.env"))
			}()
			r := c.start(t)
			rig.Must(t, <-replacing)
			if r.says("up\n", "leaked\n") {
				_, _ = r.Write(t.Context(), "1", []byte("\n"))
			}
			// A command that has read the file is ended some milliseconds later.
			out, code := r.end()
			switch {
			case code == setupFailed:
				count["ended"]++
			case strings.Contains(out, "leaked"):
				t.Errorf("seed %d, %v after the start: %q, code %d", seed, after, out, code)
			default:
				count["denied"]++
			}
		}
		t.Logf("limits %v: %v", limits, count)
	}
}
