package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

const (
	// faultBound is how late output may come because of a fault. Streams wait that long for a
	// websocket (remote.md 8.1).
	faultBound = 30 * time.Second
	// faultQuiet is how long output must come in time before a fault counts as over.
	faultQuiet = time.Second
)

// A fault is something that fails between an agent and a harness.
type fault struct {
	name   string
	strike func(t *testing.T, f *fabric, c *crew)
	repair func(f *fabric, t *testing.T) // starts again what has ended
}

// TestFaults: whatever fails between an agent and a harness, with three NATS servers and two
// registries, only delays them. One connection of one client lives through a group of faults,
// with a command that writes a line now and then and one that writes all the time.
//
// It does not run beside other tests, since it measures how long faults last.
func TestFaults(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	existing := goleak.IgnoreCurrent()
	t.Cleanup(func() { // after all others
		http.DefaultClient.CloseIdleConnections() // of those that ask whether a registry is ready
		goleak.VerifyNone(t, existing)
	})
	f := newFabric(t)
	restartNATS, restartRegistries := (*fabric).restartNATS, (*fabric).startRegistries
	// Each group has an agent of its own: a link that loses websocket after websocket comes back
	// more slowly each time (remote.md 3.5).
	for _, group := range []struct {
		name   string
		faults []fault
	}{
		{"NATS", []fault{
			{"a server is killed", func(t *testing.T, f *fabric, _ *crew) { f.nats[0].Kill(t) }, restartNATS},
			{"the leader is killed", func(t *testing.T, f *fabric, _ *crew) { f.nats[f.leader(t)].Kill(t) }, restartNATS},
			{"the leader is killed and the executor is cut", func(t *testing.T, f *fabric, c *crew) {
				f.nats[f.leader(t)].Kill(t)
				c.executors.Cut()
			}, restartNATS},
		}},
		{"registry", []fault{
			{"that of the executor is killed", func(t *testing.T, f *fabric, c *crew) { f.registries[c.executors.At()].Registry.Kill(t) }, restartRegistries},
			{"that of the harness is killed", func(t *testing.T, f *fabric, c *crew) { f.registries[c.harnesses.At()].Registry.Kill(t) }, restartRegistries},
			{"that of the executor drains", func(t *testing.T, f *fabric, c *crew) { f.registries[c.executors.At()].Registry.Terminate(t) }, restartRegistries},
			{"that of the harness drains", func(t *testing.T, f *fabric, c *crew) { f.registries[c.harnesses.At()].Registry.Terminate(t) }, restartRegistries},
		}},
		{"network", []fault{
			{"the executor is cut", func(_ *testing.T, _ *fabric, c *crew) { c.executors.Cut() }, nil},
			{"the harness is cut", func(_ *testing.T, _ *fabric, c *crew) { c.harnesses.Cut() }, nil},
			{"both are cut", func(_ *testing.T, _ *fabric, c *crew) {
				c.executors.Cut()
				c.harnesses.Cut()
			}, nil},
		}},
	} {
		t.Run(group.name, func(outer *testing.T) {
			c := f.newCrew(outer, "ci-"+group.name)
			for _, tt := range group.faults {
				if !outer.Run(tt.name, func(t *testing.T) { c.suffer(t, f, tt) }) {
					outer.Fatal("what comes next depends on it")
				}
				if tt.repair != nil {
					tt.repair(f, t) // with the test that outlives the group
				}
			}
			outer.Run("the agent is killed", c.replaceAgent)
		})
	}
}

// suffer lets a fault strike and looks at what it does to the output.
func (c *crew) suffer(t *testing.T, f *fabric, tt fault) {
	c.place(t)
	c.lines.settle(t, 0)
	c.lines.worst()
	before := c.flood.count()
	began := time.Now()
	tt.strike(t, f, c)
	took := time.Since(began).Round(time.Millisecond)
	c.lines.settle(t, faultQuiet)
	worst := c.lines.worst().Round(time.Millisecond)
	t.Logf("recovered in %v; the fault itself took %v; the flood brought %d lines", worst, took, c.flood.count()-before)
	rig.Is(t, worst > faultBound, false, "a line was %v late", worst)
	ctx, cancel := context.WithTimeout(t.Context(), faultBound)
	defer cancel()
	rig.Check(t, rig.Err(c.client.Status(ctx)))
	c.flood.check(t)
}

// replaceAgent: when an agent is killed, its commands end with it, and the agent that is started
// in its place is reached.
func (c *crew) replaceAgent(t *testing.T) {
	c.agent.Kill(t)
	noneLeft(t, c.mark())
	again := c.Serve(t, c.environment)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), faultBound)
	defer cancel()
	p, err := c.connect(t).Start(ctx, protocol.StartParams{Argv: []string{"/bin/echo", "again"}, Cwd: protocol.NewPathURI("/")})
	rig.Must(t, err)
	var out bytes.Buffer
	if code, err := p.CopyOutput(ctx, &out, &out); code != 0 || err != nil || out.String() != "again\n" {
		t.Errorf("exit code %d, output %q, %v", code, &out, err)
	}
	t.Logf("works %v after the agent is connected", time.Since(began).Round(time.Millisecond))
	again.Terminate(t)
}

// A crew is an agent and a client of it, each behind a proxy of its own of the registries.
type crew struct {
	*rig.Site
	environment string
	executors   *rig.Proxy
	harnesses   *rig.Proxy
	agent       *rig.Program
	client      *client.Client
	lines       *flow
	flood       *flow
}

// newCrew starts an agent and two commands on it.
func (f *fabric) newCrew(t *testing.T, environment string) *crew {
	t.Helper()
	c := &crew{environment: environment, executors: rig.NewProxy(t, f.addresses()...), harnesses: rig.NewProxy(t, f.addresses()...)}
	c.Site = f.registries[0].At(c.executors.Address())
	c.agent = c.Serve(t, environment)
	c.client = c.connect(t)
	c.lines = c.startFlow(t, "line", `exec 3<> <(:); for ((i = 1; ; i++)); do echo "$i $EPOCHREALTIME"; read -t 0.02 -u 3; done`)
	c.flood = c.startFlow(t, "flood", "exec seq 1 1000000000000")
	return c
}

// mark is in the environment of the commands.
func (c *crew) mark() string { return fmt.Sprintf("%s-%d", c.environment, os.Getpid()) }

// connect opens a session that ends with the test.
func (c *crew) connect(t *testing.T) *client.Client {
	t.Helper()
	dial := harness(t, c.At(c.harnesses.Address()), c.environment, remote.Logger(slog.New(slog.NewTextHandler(c.Log, nil)))).Dial
	connected, err := client.Connect(rig.Context(t), client.Config{Dial: dial, Single: true, ConnectTimeout: faultBound})
	rig.Must(t, err)
	t.Cleanup(func() { _ = connected.Close() }) // its executor may be gone
	return connected
}

// place brings the executor's websocket to one registry and the harness's to the other.
func (c *crew) place(t *testing.T) {
	t.Helper()
	if at := c.executors.At(); at < 0 || at == c.harnesses.At() {
		c.executors.Move(t, 1-c.harnesses.At())
	}
}

// A flow is the output of a command whose lines are numbered and may have a time behind the number.
type flow struct {
	process *client.Process

	mu      sync.Mutex
	last    int       // line
	written time.Time // the last line, by the clock of the command
	late    time.Duration
	err     error // what is wrong with it
}

// startFlow starts a command and looks at its output until the end of the test.
func (c *crew) startFlow(t *testing.T, name, script string) *flow {
	t.Helper()
	p, err := c.client.Start(rig.Context(t), protocol.StartParams{
		Argv: []string{"/bin/bash", "-c", script}, Cwd: protocol.NewPathURI("/"),
		Env: map[string]string{"PATH": os.Getenv("PATH"), "LC_ALL": "C", "E2E_MARK": c.mark()},
	})
	rig.Must(t, err)
	f := &flow{process: p}
	ctx, cancel := context.WithCancel(context.Background())
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := f.watch(ctx); err != nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.err = fmt.Errorf("%s: %w", name, err)
		}
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	return f
}

var errFlowEnded = errors.New("the command has ended")

// watch takes the output until ctx ends.
func (f *flow) watch(ctx context.Context) error {
	var rest []byte
	for event, err := range f.process.Events(ctx) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case event.Kind != client.Output:
			return errFlowEnded
		}
		rest = append(rest, event.Data...)
		if rest, err = f.take(rest, time.Now()); err != nil {
			return err
		}
	}
	return nil
}

// take counts the whole lines of text and returns what is left of it.
func (f *flow) take(text []byte, now time.Time) (rest []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for {
		line, after, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return text, nil
		}
		number, clock, timed := bytes.Cut(line, []byte(" "))
		n, err := strconv.Atoi(string(number))
		if err != nil || n != f.last+1 {
			return nil, fmt.Errorf("line %q after %d", line, f.last)
		}
		f.last = n
		if timed {
			seconds, err := strconv.ParseFloat(string(clock), 64)
			if err != nil {
				return nil, fmt.Errorf("the time of line %q: %w", line, err)
			}
			f.written = time.UnixMicro(int64(seconds * 1e6))
			f.late = max(f.late, now.Sub(f.written))
		}
		text = after
	}
}

// check tells what is wrong with the output so far.
func (f *flow) check(t *testing.T) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	rig.Must(t, f.err)
}

func (f *flow) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// worst returns the longest delay of a line since the last call.
func (f *flow) worst() (late time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	late, f.late = f.late, 0
	return late
}

// settle waits until there is a line that was written that long from now.
func (f *flow) settle(t *testing.T, quiet time.Duration) {
	t.Helper()
	want := time.Now().Add(quiet)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for {
		f.check(t)
		f.mu.Lock()
		reached := f.written.After(want)
		f.mu.Unlock()
		if reached {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("no more output comes")
		}
	}
}
