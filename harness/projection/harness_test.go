package projection_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/harness/projection"
	"github.com/execagent/execagent/harness/projection/internal/fakemcp"
	"github.com/execagent/execagent/harness/projection/internal/mcpserver"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) {
	if fakemcp.Main() {
		return
	}
	goleak.VerifyTestMain(m)
}

// world has agents, each in an environment, and one thread of a harness.
type world struct {
	t     testing.TB
	dir   string // of the roots, by their names
	set   *environment.Set
	roots *capability.Thread
	*projection.Thread

	mu       sync.Mutex
	agents   map[string]*agent.Agent
	refused  map[string]bool // nothing is reached there
	conns    map[string][]rpc.Conn
	statuses []string
	together *sync.WaitGroup // requests for configurations pass when there are so many; nil: each
	serving  sync.WaitGroup
}

func (w *world) transport(id string) environment.URL { return environment.URL{URL: "ws://" + id} }

// newWorld makes environments. The thread selects the roots, which are written by
// ENVIRONMENT/NAME; each is a plugin with its files.
func newWorld(t testing.TB, cfg projection.Config, ids []string, roots map[string]map[string]string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), agents: map[string]*agent.Agent{}, refused: map[string]bool{}, conns: map[string][]rpc.Conn{}}
	t.Cleanup(func() {
		for _, a := range w.agents {
			rig.Check(t, a.Close())
		}
		w.serving.Wait()
	})
	var plan environment.Plan
	for _, id := range ids {
		w.boot(id)
		plan.Entries = append(plan.Entries, environment.Entry{ID: id, Transport: w.transport(id)})
	}
	var err error
	w.set, err = environment.New(environment.Config{Connect: w.connect}, plan)
	rig.Must(t, err)
	t.Cleanup(func() { _ = w.set.Close() })
	var selected []capability.Root
	for name, files := range roots {
		for file, text := range files {
			w.write(filepath.Join(name, file), text)
		}
		environmentID, id, _ := strings.Cut(name, "/")
		selected = append(selected, capability.Root{ID: id, EnvironmentID: environmentID, Path: protocol.NewPathURI(filepath.Join(w.dir, name))})
	}
	slices.SortFunc(selected, func(a, b capability.Root) int { return strings.Compare(a.ID, b.ID) })
	w.roots, err = capability.New(capability.Config{Roots: selected, Timeout: rig.Patience})
	rig.Must(t, err)
	w.Thread = w.thread(cfg)
	return w
}

// withOne makes a world of one agent, ready, with a root whose server "one" is in a mode.
func withOne(t testing.TB, mode string) *world {
	t.Helper()
	w := newWorld(t, projection.Config{}, []string{"a"}, map[string]map[string]string{"a/one": w2("one")})
	w.write("a/one/.mcp.json", declare(t, w.dir, mode, "one"))
	w.ready("a")
	return w
}

// thread makes one more thread. It is closed before the environments are.
func (w *world) thread(cfg projection.Config) *projection.Thread {
	told := cfg.Notify
	cfg.Notify = func(s projection.Status) {
		w.mu.Lock()
		w.statuses = append(w.statuses, fmt.Sprintf("%s %s", s.Name, s.State))
		w.mu.Unlock()
		if told != nil {
			told(s)
		}
	}
	cfg.StartTimeout = rig.Patience
	thread := projection.New(cfg)
	w.t.Cleanup(thread.Close)
	return thread
}

func (w *world) write(name, text string) {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	rig.Must(w.t, os.MkdirAll(filepath.Dir(path), 0o700))
	rig.Must(w.t, os.WriteFile(path, []byte(text), 0o600))
}

// boot starts an agent. Its home is DIR/ID.home.
func (w *world) boot(id string) {
	home := filepath.Join(w.dir, id+".home")
	rig.Must(w.t, os.MkdirAll(filepath.Join(home, ".codex"), 0o700))
	environ := append(slices.DeleteFunc(os.Environ(), func(e string) bool {
		return strings.HasPrefix(e, "HOME=") || strings.HasPrefix(e, "CODEX_HOME=")
	}), "HOME="+home, "EXEC_TOKEN=of-"+id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.agents[id] = agent.New(agent.Config{Environ: environ})
}

// die ends an agent with all its processes, and what it had to know.
func (w *world) die(id string) {
	w.mu.Lock()
	a := w.agents[id]
	w.refused[id] = true
	w.mu.Unlock()
	w.cut(id)
	rig.Check(w.t, a.Close())
}

// come lets an agent be reached again.
func (w *world) come(id string) {
	w.boot(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused[id] = false
}

func (w *world) connect(t environment.Transport) (client.Config, error) {
	id := strings.TrimPrefix(t.(environment.URL).URL, "ws://")
	return client.Config{RecoveryTimeout: time.Second, Dial: func(context.Context) (rpc.Conn, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused[id] {
			return nil, errors.New("connection refused")
		}
		a := w.agents[id]
		ours, theirs := rpc.Pipe()
		w.serving.Go(func() { _ = a.ServeConn(context.Background(), theirs) })
		w.conns[id] = append(w.conns[id], ours)
		return &gate{ours, w}, nil
	}}, nil
}

// gate is a connection whose requests for a configuration may have to wait for others.
type gate struct {
	rpc.Conn
	w *world
}

func (g *gate) Write(message []byte) error {
	g.w.mu.Lock()
	together := g.w.together
	g.w.mu.Unlock()
	if together != nil && bytes.Contains(message, []byte(`"`+protocol.MethodConfigRead+`"`)) {
		together.Done()
		together.Wait()
	}
	return g.Conn.Write(message)
}

// cut ends the connections to an agent, which can be made again.
func (w *world) cut(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.conns[id] {
		_ = conn.Close()
	}
	w.conns[id] = nil
}

// ready waits until an environment is.
func (w *world) ready(id string) *client.Client {
	w.t.Helper()
	e, ok := w.set.Get(id)
	if !ok {
		w.t.Fatalf("there is no environment %s", id)
	}
	c, err := e.Client(rig.Context(w.t))
	rig.Must(w.t, err)
	return c
}

// capture captures a step with environments, and what is in them.
func (w *world) capture(ids ...string) (*environment.Step, *capability.View) {
	w.t.Helper()
	var selection []environment.Selection
	for _, id := range ids {
		selection = append(selection, environment.Selection{ID: id, Cwd: protocol.NewPathURI(w.dir)})
	}
	step := w.set.Step("step", selection)
	view := rig.Value(w.roots.Discover(rig.Context(w.t), step))
	return step, view
}

// step projects a step with environments, all of whose servers have settled.
func (w *world) step(ids ...string) *projection.Step {
	w.t.Helper()
	captured, view := w.capture(ids...)
	defer captured.Release()
	s, err := w.Step(rig.Context(w.t), captured, view)
	rig.Must(w.t, err)
	w.t.Cleanup(s.Release)
	rig.Must(w.t, s.Wait(rig.Context(w.t)))
	return s
}

// told returns what was told of servers since the last call, sorted.
func (w *world) told() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.statuses)
	text := strings.Join(w.statuses, ", ")
	w.statuses = nil
	return text
}

func (w *world) wantTold(want string) {
	w.t.Helper()
	rig.Is(w.t, w.told(), want, "told")
}

// pids is the file of a server that counts its starts.
func (w *world) pids(name string) string { return filepath.Join(w.dir, name+".pids") }

// starts returns the processes of a server so far.
func (w *world) starts(name string) []int { return fakemcp.Started(w.t, w.pids(name)) }

// declare is the text of a file of servers.
func declare(t testing.TB, dir, mode string, servers ...string) string {
	self := rig.Value(os.Executable())
	var all []string
	for _, name := range servers {
		all = append(all, fmt.Sprintf(`%q:{"command":%q,"env":{%q:%q,%q:%q}}`,
			name, self, fakemcp.Mode, mode, fakemcp.PIDs, filepath.Join(dir, name+".pids")))
	}
	return `{"mcpServers":{` + strings.Join(all, ",") + `}}`
}

// tools are the names of the tools of a step.
func tools(s *projection.Step) (names []string) {
	for _, tool := range s.Tools() {
		names = append(names, tool.Namespace+"."+tool.Name)
	}
	return names
}

// say calls the tool of a fake server.
func say(t testing.TB, s *projection.Step, server string) (string, error) {
	t.Helper()
	r, err := s.Call(rig.Context(t), server, "echo", map[string]any{"text": "hello"})
	if err != nil {
		return "", err
	}
	return r.Content[0].(*mcp.TextContent).Text, nil
}

// wantSay calls the tool, whose answer begins with a text.
func wantSay(t testing.TB, s *projection.Step, server, want string) {
	t.Helper()
	text, err := say(t, s, server)
	rig.Is(t, err == nil && strings.HasPrefix(text, want), true, "%s says %q, %v, want %q", server, text, err, want)
}

func wantStates(t testing.TB, s *projection.Step, state mcpserver.State) {
	t.Helper()
	for _, status := range s.Statuses() {
		rig.Is(t, status.State, state, "server %s, %v", status.Name, status.Err)
	}
}
