package confine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// dial connects from inside the sandbox of c. The result is that of a puppet: "ok",
// or the name of the errno, after "socket " if there was no socket.
func dial(t *testing.T, c confined, e Endpoint) string {
	t.Helper()
	h := &Held{command: Command{
		Policy: c.policy, Backend: c.backend, Limits: c.limits, AgentPorts: c.ports, Argv0: os.Args[0],
	}}
	connecting := rig.Value(h.Connect(e))
	defer connecting.Close()
	r := &run{t: t}
	p, err := procs.Start(procs.Spec{Argv: []string{"connect"}, Dir: "/", Sink: r.sink, Stage: func(p procs.Program) (*procs.Stage, error) {
		stage, err := connecting.Stage(p)
		if err == nil {
			stage.Env = append(stage.Env, "GORACE=atexit_sleep_ms=0")
		}
		return stage, err
	}})
	rig.Must(t, err)
	defer p.Close()
	r.Process = p
	p.Begin()
	ctx, cancel := context.WithTimeout(t.Context(), sandboxtest.Enough)
	defer cancel()
	conn, err := connecting.Await(ctx)
	if said, code := r.end(); said != "" || code != 0 {
		return fmt.Sprintf("code %d: %s", code, said)
	}
	if err != nil {
		if call, ok := err.(*os.SyscallError); ok && call.Syscall == "socket" {
			return "socket " + outcome(err)
		}
		return outcome(err)
	}
	defer conn.Close()
	rig.Is(t, string(rig.Value(io.ReadAll(conn))), "hello", "%v: the greeting", e)
	return "ok"
}

// TestDial: an endpoint is connected to exactly if a command in the same sandbox
// can connect to it, and fails in the same way, in every kind of sandbox.
func TestDial(t *testing.T) {
	t.Parallel()
	kinds := append(rows(), row{"limited network", full(), true, sandbox.NetworkEnabled, Limits{CPUSeconds: 3600}})
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelReads, sandbox.LevelMetadata} {
		backend := sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Supervised, sandbox.Seccomp), Landlock: enforce.LandlockABI(), Level: level}
		for _, network := range []sandbox.Network{sandbox.NetworkEnabled, sandbox.NetworkRestricted} {
			kinds = append(kinds, row{fmt.Sprintf("supervised %d, network %d", level, network), backend, true, network, Limits{}})
		}
	}
	for j, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			testDial(t, kind.command(t, root), root, j)
		})
	}
	t.Run("network alone", func(t *testing.T) {
		t.Parallel()
		testDial(t, networkOnly(), t.TempDir(), len(kinds))
	})
}

// testDial asks for endpoints in the sandbox of c, of which each push tries every third.
func testDial(t *testing.T, c confined, root string, turn int) {
	outside := t.TempDir()
	agent := port(greeter(t, "tcp4", "127.0.0.1:0"))
	tcp := port(greeter(t, "tcp4", "127.0.0.1:0"))
	tcp6 := port(greeter(t, "tcp6", "[::1]:0"))
	greeter(t, "unix", filepath.Join(root, "sock"))
	greeter(t, "unix", filepath.Join(outside, "sock"))
	closed := unheard(t)
	rig.Must(t, os.Symlink(filepath.Join(outside, "sock"), filepath.Join(root, "out")))
	rig.Must(t, os.WriteFile(filepath.Join(root, "plain"), nil, 0o644))
	c.ports = []uint16{uint16(agent)}
	a := startPuppetAs(t, c, c.ports...)
	inet := func(port int) Endpoint { return Endpoint{"tcp", fmt.Sprintf("127.0.0.1:%d", port)} }
	path := func(name string) (Endpoint, []any) { return Endpoint{"unix", name}, []any{"unix", name} }
	reached := 0
	check := func(e Endpoint, what []any) {
		t.Helper()
		if turn++; turn%3 != 0 && !rig.Runs(rig.Merge) && e != inet(tcp) {
			return
		}
		want := a.ask(what...)
		if want == "ok hello" {
			want = "ok"
		}
		rig.Is(t, dial(t, c, e), want, "%v, as for a command", e)
		if want == "ok" {
			reached++
		}
	}
	check(inet(tcp), []any{"tcp", tcp})
	check(inet(agent), []any{"tcp", agent})
	check(inet(closed), []any{"tcp", closed})
	check(Endpoint{"tcp", fmt.Sprintf("[::1]:%d", tcp6)}, []any{"tcp6", tcp6})
	check(Endpoint{"tcp", fmt.Sprintf("[::ffff:127.0.0.1]:%d", agent)}, []any{"dial", fmt.Sprintf("127.0.0.1:%d", agent), unix.SOCK_STREAM})
	for _, name := range []string{root + "/sock", outside + "/sock", root + "/out", root + "/none", root + "/plain", "/etc/passwd", "/proc/self/root" + root + "/sock"} {
		check(path(name))
	}
	rig.Is(t, reached > 0, c.policy.Network == sandbox.NetworkEnabled, "%d endpoints were reached", reached)
	// A name is looked up where there is a network, and nobody is asked where there is none.
	if c.policy.Network == sandbox.NetworkEnabled {
		rig.Is(t, dial(t, c, Endpoint{"tcp", fmt.Sprintf("localhost:%d", tcp)}), "ok", "localhost")
		return
	}
	want := dial(t, c, inet(tcp))
	rig.Is(t, dial(t, c, Endpoint{"tcp", "name.invalid:80"}), want, "a name")
}
