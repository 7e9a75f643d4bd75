package confine

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// full is the backend of a host that has everything.
func full() sandbox.Backend {
	return sandbox.Backend{Layers: sandbox.LayersOf(append(sandbox.Namespaces(), sandbox.Procfs, sandbox.Seccomp)...), Landlock: enforce.LandlockABI()}
}

// withoutPIDNS is the backend of a container that refuses a fresh procfs.
func withoutPIDNS() sandbox.Backend {
	l := full()
	l.Layers = l.Layers.Without(sandbox.PIDNS, sandbox.Procfs)
	return l
}

// withoutLandlock is the backend of such a container on a kernel without
// Landlock.
func withoutLandlock() sandbox.Backend {
	return sandbox.Backend{Layers: full().Layers.Without(sandbox.Procfs)}
}

// landlockOnly is the backend of a host without namespaces.
func landlockOnly() sandbox.Backend {
	return sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Seccomp), Landlock: enforce.LandlockABI()}
}

// workspaceWrite returns a policy that lets everything be read and root be
// written.
func workspaceWrite(t testing.TB, root string, network sandbox.Network) *sandbox.Policy {
	t.Helper()
	return policyOf(t, sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		},
		Network: network,
	})
}

// readOnly returns a policy that lets everything be read and nothing be written.
func readOnly(t testing.TB) *sandbox.Policy {
	t.Helper()
	return policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}})
}

// policyOf compiles a profile.
func policyOf(t testing.TB, profile sandbox.Profile) *sandbox.Policy {
	t.Helper()
	return rig.Value(profile.Compile())
}

// confined is a command under test.
type confined struct {
	procs.Spec
	policy  *sandbox.Policy
	backend sandbox.Backend
	limits  Limits
	ports   []uint16 // Command.AgentPorts
	granted []string // Command.Granted
	flags   uintptr  // more flags of clone(2) for the init
	held    bool     // the placeholders are there already
}

// start starts the command as the agent does, and keeps what it writes.
func (c confined) start(t testing.TB) *run {
	t.Helper()
	r := &run{t: t}
	if !c.held {
		holdMissing(t, c.policy)
	}
	if c.Dir == "" {
		c.Dir = "/"
	}
	if c.Env == nil {
		c.Env = []string{"PATH=/usr/bin:/bin"}
	}
	c.Sink = r.sink
	c.Stage = func(p procs.Program) (*procs.Stage, error) {
		stage, err := Command{
			Policy: c.policy, Backend: c.backend,
			Argv: p.Argv, Arg0: p.Arg0, Env: p.Env, Dir: p.Dir, TTY: p.TTY,
			NewSession: true, Limits: c.limits, AgentPorts: c.ports, Granted: c.granted, Argv0: os.Args[0],
		}.Prepare()
		if err != nil {
			return nil, err
		}
		// Without this the race detector makes init wait for a second at its
		// end.
		stage.Env = append(stage.Env, "GORACE=atexit_sleep_ms=0")
		stage.Cloneflags |= c.flags
		if stage.Grace > 0 { // a busy machine needs more, and nobody reaps here what is left then
			stage.Grace = sandboxtest.Enough
		}
		return stage, nil
	}
	p := rig.Value(procs.Start(c.Spec))
	t.Cleanup(func() { p.Close() })
	r.Process = p
	p.Begin()
	return r
}

// run is a command that has been started.
type run struct {
	*procs.Process
	t testing.TB

	mu     sync.Mutex // protects the fields below
	out    bytes.Buffer
	code   int
	output chan struct{} // closed at the next output; nil: nobody waits
}

// sink keeps the output and the exit code.
func (r *run) sink(ev procs.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Write(ev.Data)
	if ev.Kind == procs.Exited {
		r.code = ev.ExitCode
	}
	if r.output != nil {
		close(r.output)
		r.output = nil
	}
}

// until waits until the command has written text, and ends the test if the
// command ends before.
func (r *run) until(text string) {
	r.t.Helper()
	if !r.says(text) {
		r.t.Fatalf("it ended without %q: %q", text, r.text())
	}
}

// says waits until the command has written one of the texts. It returns false
// if the command ends before.
func (r *run) says(texts ...string) bool {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), sandboxtest.Enough)
	defer cancel()
	for {
		r.mu.Lock()
		out, next := r.out.String(), r.output
		if next == nil {
			next = make(chan struct{})
			r.output = next
		}
		r.mu.Unlock()
		for _, text := range texts {
			if strings.Contains(out, text) {
				return true
			}
		}
		select {
		case <-next:
		case <-r.Done():
			return false
		case <-ctx.Done():
			r.t.Fatalf("none of %q in %q", texts, out)
		}
	}
}

// text returns what the command has written so far.
func (r *run) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// end waits until the command has ended, and returns what it has written and
// its exit code.
func (r *run) end() (out string, code int) {
	r.t.Helper()
	select {
	case <-r.Done():
	case <-time.After(sandboxtest.Enough):
		r.t.Fatalf("it does not end: %q", r.text())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String(), r.code
}

// wantEnd waits until the command has ended, which has to write a text and to have an exit code.
func wantEnd(t testing.TB, what string, r *run, text string, code int) {
	t.Helper()
	gotText, gotCode := r.end()
	rig.Is(t, fmt.Sprintf("%q, code %d", gotText, gotCode), fmt.Sprintf("%q, code %d", text, code), "%s", what)
}

// holdMissing makes the placeholders that the view of policy needs, as the
// agent does.
func holdMissing(t testing.TB, policy *sandbox.Policy) {
	t.Helper()
	resolved := rig.Value(resolve.Policy(policy))
	defer resolved.Close()
	if len(resolved.Missing) == 0 {
		return
	}
	rig.Must(t, rig.Err(placeholders(t).Hold(resolved.Missing)))
}

// placeholders returns what holds names for the rest of the test.
func placeholders(t testing.TB) *placeholder.Placeholders {
	t.Helper()
	state := t.TempDir()
	rig.Must(t, os.Chmod(state, 0o700))
	made := rig.Value(placeholder.Open(state))
	t.Cleanup(func() { made.Close() })
	return made
}

// row is a kind of confinement that a command can be started with. Its policy
// lets everything be read.
type row struct {
	name    string
	backend sandbox.Backend
	writes  bool // the policy lets the root be written
	network sandbox.Network
	limits  Limits
}

// rows returns all kinds that differ in how init starts or watches a command.
func rows() []row {
	return []row{
		{"full", full(), true, sandbox.NetworkRestricted, Limits{}},
		{"network", full(), true, sandbox.NetworkEnabled, Limits{}},
		{"no pid namespace", withoutPIDNS(), true, sandbox.NetworkRestricted, Limits{}},
		{"shared pid view", withoutLandlock(), true, sandbox.NetworkRestricted, Limits{}},
		{"landlock only", landlockOnly(), false, sandbox.NetworkRestricted, Limits{}},
		{"limited", full(), true, sandbox.NetworkRestricted, Limits{CPUSeconds: 3600}},
		{"limited, shared pid view", withoutLandlock(), true, sandbox.NetworkRestricted, Limits{CPUSeconds: 3600}},
		{"limited network without a pid namespace", withoutPIDNS(), true, sandbox.NetworkEnabled, Limits{CPUSeconds: 3600}},
	}
}

// tried reports whether a test runs case i in row j, so that not every push starts every command in every
// kind of sandbox. Each case runs in the first row and in one that differs from case to case, each
// merge runs all.
func tried(j, i int) bool {
	return rig.Runs(rig.Merge) || j == 0 || j == 1+i%(len(rows())-1)
}

// someOf returns every second row, in which each push tests what does not depend on them much; each merge
// has them all.
func someOf(all []row) []row {
	if rig.Runs(rig.Merge) {
		return all
	}
	var some []row
	for i := 0; i < len(all); i += 2 {
		some = append(some, all[i])
	}
	return some
}

// command returns a command with argv that is confined as the row says; it
// begins in root.
func (r row) command(t testing.TB, root string, argv ...string) confined {
	t.Helper()
	c := confined{policy: readOnly(t), backend: r.backend, limits: r.limits, Spec: procs.Spec{Argv: argv, Dir: root}}
	if r.writes {
		c.policy = workspaceWrite(t, root, r.network)
	}
	return c
}

// networkOnly returns a command that is restricted in its network alone.
func networkOnly(argv ...string) confined {
	return confined{policy: &sandbox.Policy{}, backend: sandbox.Backend{Layers: sandbox.LayersOf(sandbox.Seccomp), Landlock: enforce.LandlockABI()}, Spec: procs.Spec{Argv: argv}}
}

// agentCommand returns a process that plays the agent: it runs script in a
// shell that is confined as the row of that name says, prints what the shell
// wrote, and ends with its exit code.
func agentCommand(row, root, script string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{os.Args[0], agentChild, row, root, script}
	return cmd
}

const agentChild = "agent-child"

// agentChildMain is the main of the process of agentCommand.
func agentChildMain() int {
	t := &sandboxtest.TB{}
	defer t.End()
	for _, row := range rows() {
		if row.name == os.Args[2] {
			r := row.command(t, os.Args[3], "sh", "-c", os.Args[4]).start(t)
			<-r.Done()
			_, code, _, _ := r.State()
			fmt.Print(r.text())
			return code
		}
	}
	return 99
}
