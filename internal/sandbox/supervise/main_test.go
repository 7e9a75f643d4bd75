package supervise

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestMain is also the main of the children that tests start.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == supervisedChild {
		os.Exit(supervisedChildMain(os.Args[2], os.Args[3:]))
	}
	if len(os.Args) > 1 && os.Args[1] == routesChild {
		os.Exit(routesChildMain())
	}
	sandboxtest.Main(m)
}

const supervisedChild = "supervised-child"

// children are what runs in a process of its own, by name. Each runs on a thread
// under the filter of a level, or without one, and prints what it has found.
var children = map[string]func(t rig.T, args []string){}

// child registers what runs in a process of its own.
func child(name string, run func(t rig.T, args []string)) struct{} {
	children[name] = run
	return struct{}{}
}

// supervised runs a child under the filter of a level, and the notifier of the
// config answers its calls in this process. It returns what the child has
// printed. With NoLevel the child runs without a filter.
func supervised(t testing.TB, c Config, level sandbox.Level, name string, args ...string) string {
	t.Helper()
	return supervisedUnder(t, 6, c, level, name, args...)
}

// supervisedUnder does so under the filter for an ABI of Landlock.
func supervisedUnder(t testing.TB, abi int, c Config, level sandbox.Level, name string, args ...string) string {
	t.Helper()
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))
	ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	defer ours.Close()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", append([]string{supervisedChild, name}, args...)...)
	cmd.Env = append(os.Environ(), "LEVEL="+level.String(), "ABI="+strconv.Itoa(abi), fmt.Sprint("ONLINE=", c.Policy.Network == sandbox.NetworkEnabled), "GORACE=atexit_sleep_ms=0", "GODEBUG=containermaxprocs=0")
	cmd.ExtraFiles = []*os.File{theirs}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	rig.Must(t, cmd.Start())
	theirs.Close()
	served := make(chan struct{})
	if level == sandbox.NoLevel {
		close(served)
	} else {
		c.Level = level
		n := rig.Value(New(c))
		listener := receive(t, pair[0])
		go func() {
			defer close(served)
			n.Serve(listener)
			unix.Close(listener)
		}()
	}
	rig.Is(t, cmd.Wait(), nil, "child %s %s", name, args)
	<-served
	return out.String()
}

// receive takes the descriptor that a child has sent.
func receive(t testing.TB, socket int) int {
	t.Helper()
	control := make([]byte, unix.CmsgSpace(4))
	_, size, _, _, err := unix.Recvmsg(socket, make([]byte, 1), control, unix.MSG_CMSG_CLOEXEC)
	rig.Must(t, err)
	messages := rig.Value(unix.ParseSocketControlMessage(control[:size]))
	rig.Is(t, len(messages), 1, "messages")
	fds := rig.Value(unix.ParseUnixRights(&messages[0]))
	rig.Is(t, len(fds), 1, "descriptors")
	return fds[0]
}

// supervisedChildMain runs a child. Another thread, without the filter, sends the
// listener: the calls that send could be left to it.
func supervisedChildMain(name string, args []string) int {
	run, ok := children[name]
	if !ok {
		fmt.Println("no child is called", name)
		return 2
	}
	level := map[string]sandbox.Level{"W": sandbox.LevelWrites, "R": sandbox.LevelReads, "S": sandbox.LevelMetadata}[os.Getenv("LEVEL")]
	failed := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this func
		start := func() { failed <- rig.Outside(context.Background(), func(t rig.T) { run(t, args) }) }
		if level == sandbox.NoLevel {
			start()
			return
		}
		network := map[string]sandbox.Network{"true": sandbox.NetworkEnabled, "false": sandbox.NetworkRestricted}[os.Getenv("ONLINE")]
		abi, err := strconv.Atoi(os.Getenv("ABI"))
		if err != nil {
			failed <- err
			return
		}
		b := sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Supervised), Level: level, Landlock: abi}
		filters, asked := enforce.FiltersFor(b, &sandbox.Policy{Confined: true, Network: network}, false)
		listener, err := filters[0].Load(asked)
		if err != nil {
			failed <- err
			return
		}
		sent := make(chan error)
		go func() { sent <- unix.Sendmsg(3, []byte{0}, unix.UnixRights(listener), nil, 0) }()
		if err := <-sent; err != nil {
			failed <- err
			return
		}
		unix.Close(listener)
		start()
	}()
	if err := <-failed; err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// workspace returns a policy that lets everything be read and dir be written.
func workspace(t testing.TB, dir string) *sandbox.Policy {
	t.Helper()
	dir = rig.Value(filepath.EvalSymlinks(dir))
	return &sandbox.Policy{Confined: true, FullRead: true, Rules: []sandbox.Rule{
		{Path: "/", Access: sandbox.Read}, {Path: dir, Access: sandbox.Write},
	}}
}
