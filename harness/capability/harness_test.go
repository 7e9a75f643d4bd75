package capability_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/capability"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// TestMain also runs the helpers that the agents of the tests start.
func TestMain(m *testing.M) {
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// executor is what answers a connection until that ends.
type executor interface{ serve(conn rpc.Conn) }

// network has the executors that the environments of a test reach: "ws://ID" those of that id.
type network struct {
	t testing.TB

	mu        sync.Mutex
	executors map[string]executor
	refused   map[string]error // of dialling
	requests  map[string][]string
	serving   sync.WaitGroup
}

// newNetwork makes a set of environments, one for each executor, which are all connected.
func newNetwork(t testing.TB, executors map[string]executor) (*network, *environment.Set) {
	t.Helper()
	n := &network{t: t, executors: executors, refused: map[string]error{}, requests: map[string][]string{}}
	var plan environment.Plan
	for id := range executors {
		plan.Entries = append(plan.Entries, environment.Entry{ID: id, Transport: url(id)})
	}
	set := rig.Value(environment.New(environment.Config{Connect: n.connect}, plan))
	t.Cleanup(func() {
		rig.Check(t, set.Close())
		n.serving.Wait()
	})
	for id := range executors {
		e, _ := set.Get(id)
		rig.Must(t, rig.Err(e.Client(t.Context())))
	}
	return n, set
}

func url(id string) environment.URL { return environment.URL{URL: "ws://" + id} }

// connect is for environment.Config.
func (n *network) connect(t environment.Transport) (client.Config, error) {
	var id string
	switch t := t.(type) {
	case environment.URL:
		id = t.URL[len("ws://"):]
	case environment.Stdio:
		id = t.Program
	}
	return client.Config{Dial: func(context.Context) (rpc.Conn, error) { return n.dial(id) }}, nil
}

func (n *network) dial(id string) (rpc.Conn, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.refused[id]; err != nil {
		return nil, err
	}
	e, ok := n.executors[id]
	if !ok {
		return nil, errors.New("connection refused")
	}
	ours, theirs := rpc.Pipe()
	n.serving.Go(func() { e.serve(theirs) })
	return &listener{ours, n, id}, nil
}

// refuse makes dialling fail, or work again with nil.
func (n *network) refuse(id string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refused[id] = err
}

// take returns the methods that were called of an executor since the last take.
func (n *network) take(id string) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	methods := n.requests[id]
	delete(n.requests, id)
	return methods
}

// listener is a connection that hears which methods a client calls.
type listener struct {
	rpc.Conn
	network *network
	id      string
}

func (l *listener) Write(message []byte) error {
	var request struct{ Method string }
	if err := json.Unmarshal(message, &request); err != nil {
		l.network.t.Error(err)
	}
	switch request.Method {
	case protocol.MethodInitialize, protocol.MethodInitialized, "":
	default:
		l.network.mu.Lock()
		l.network.requests[l.id] = append(l.network.requests[l.id], request.Method)
		l.network.mu.Unlock()
	}
	return l.Conn.Write(message)
}

// realAgent is an agent whose user has home. Methods in without are unknown to it.
type realAgent struct {
	agent   *agent.Agent
	without []string
}

func newAgent(t testing.TB, home string, without ...string) *realAgent {
	a := &realAgent{agent.New(agent.Config{
		Version: "0.171.0", Confines: true, Environ: append(os.Environ(), "HOME="+home, "CODEX_HOME="+filepath.Join(home, "codex")),
	}), without}
	t.Cleanup(func() {
		rig.Check(t, a.agent.Close())
	})
	return a
}

func (a *realAgent) serve(conn rpc.Conn) {
	_ = a.agent.ServeConn(context.Background(), &older{conn, a.without})
}

// older is a connection to an agent that does not know some methods.
type older struct {
	rpc.Conn
	without []string
}

func (o *older) Read() ([]byte, error) {
	message, err := o.Conn.Read()
	for _, method := range o.without {
		message = bytes.Replace(message, []byte(`"`+method+`"`), []byte(`"`+method+`0"`), 1)
	}
	return message, err
}

// fake is an executor in memory that answers as the test says.
type fake struct {
	t testing.TB

	mu           sync.Mutex
	capabilities protocol.Capabilities
	sessions     int
	conns        []rpc.Conn
	answers      map[string]func(params json.RawMessage) any // a *protocol.Error refuses, nil is no answer
	seen         map[string][]json.RawMessage                // params, by method
}

func newFake(t testing.TB) *fake {
	f := &fake{t: t, answers: map[string]func(json.RawMessage) any{}, seen: map[string][]json.RawMessage{}}
	f.answer(protocol.MethodDiscoverRoots, f.discover)
	return f
}

func (f *fake) answer(method string, answer func(params json.RawMessage) any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[method] = answer
}

// takeSeen returns the params of the calls of a method since the last time.
func (f *fake) takeSeen(method string) []json.RawMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := f.seen[method]
	delete(f.seen, method)
	return all
}

// cut ends all connections.
func (f *fake) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, conn := range f.conns {
		_ = conn.Close()
	}
	f.conns = nil
}

// asked are the roots of a request.
func asked(t testing.TB, params json.RawMessage) []protocol.CapabilityRoot {
	var p protocol.DiscoverRootsParams
	rig.Check(t, json.Unmarshal(params, &p))
	return p.Roots
}

// discover answers with a skill in each root.
func (f *fake) discover(params json.RawMessage) any {
	var r protocol.DiscoverRootsResult
	for _, root := range asked(f.t, params) {
		at, err := protocol.ParsePathURI(root.Path + "/SKILL.md")
		rig.Check(f.t, err)
		r.Roots = append(r.Roots, protocol.DiscoveredRoot{
			ID: root.ID, Path: root.Path, Skills: []protocol.SkillFiles{{Instructions: protocol.DiscoveredFile{Path: at, Contents: root.ID}}},
		})
	}
	return &r
}

func (f *fake) serve(conn rpc.Conn) {
	defer conn.Close()
	f.mu.Lock()
	f.conns = append(f.conns, conn)
	f.mu.Unlock()
	for {
		message, err := conn.Read()
		if err != nil {
			return
		}
		var request struct {
			ID     *int64
			Method string
			Params json.RawMessage
		}
		if err := json.Unmarshal(message, &request); err != nil {
			f.t.Error(err)
			return
		}
		if request.ID == nil {
			continue
		}
		id := protocol.NumberID(*request.ID)
		var answer []byte
		switch result := f.result(request.Method, request.Params).(type) {
		case nil:
			continue
		case *protocol.Error:
			answer = protocol.AppendError(nil, id, result)
		default:
			if answer, err = protocol.AppendResult(nil, id, result); err != nil {
				f.t.Error(err)
			}
		}
		if conn.Write(answer) != nil {
			return
		}
	}
}

func (f *fake) result(method string, params json.RawMessage) any {
	f.mu.Lock()
	f.seen[method] = append(f.seen[method], slices.Clone(params))
	answer := f.answers[method]
	capabilities := f.capabilities
	session := fmt.Sprintf("session-%d", f.sessions)
	f.mu.Unlock()
	switch {
	case method == protocol.MethodInitialize:
		var p protocol.InitializeParams
		if err := json.Unmarshal(params, &p); err == nil && p.ResumeSessionID != nil {
			session = *p.ResumeSessionID
		} else {
			f.mu.Lock()
			f.sessions++
			f.mu.Unlock()
		}
		return &protocol.InitializeResult{SessionID: session, EnvironmentInfo: &protocol.EnvironmentInfo{
			TempDir: protocol.NewPathURI("/tmp"), Capabilities: capabilities,
		}}
	case answer != nil:
		return answer(params)
	}
	return protocol.Errorf(protocol.CodeMethodNotFound, "method not found: %s", method)
}

// write makes files below dir.
func write(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(t, os.WriteFile(path, []byte(text), 0o600))
	}
}

// patience is how long an executor may take on a machine that has much else to do.
const patience = 5 * time.Minute

func newThread(t testing.TB, roots ...capability.Root) *capability.Thread {
	t.Helper()
	return rig.Value(capability.New(capability.Config{Roots: roots, Timeout: patience}))
}

// turn selects environments.
func turn(ids ...string) (all []environment.Selection) {
	for _, id := range ids {
		all = append(all, environment.Selection{ID: id, Cwd: protocol.NewPathURI("/")})
	}
	return all
}

// discover makes a step with the environments of a turn and the thread's, and discovers in it.
func discover(t testing.TB, set *environment.Set, thread *capability.Thread, ids ...string) *capability.View {
	t.Helper()
	step := set.Step("s", turn(ids...), thread.Environments()...)
	defer step.Release()
	view, err := thread.Discover(t.Context(), step)
	rig.Must(t, err)
	return view
}

// wantAgain fails unless discovering once more gives the same of the first root, and tells nothing.
func wantAgain(t testing.TB, set *environment.Set, thread *capability.Thread, v *capability.View) {
	t.Helper()
	again := discover(t, set, thread, "a")
	rig.Is(t, again.Roots[0].Found, v.Roots[0].Found, "what was found again")
	rig.Is(t, again.Recovered, false, "recovered")
}

// wantFound fails unless the first root is found now, and that is told or not.
func wantFound(t testing.TB, set *environment.Set, thread *capability.Thread, told bool) {
	t.Helper()
	v := discover(t, set, thread, "a")
	rig.Is(t, v.Roots[0].Err, nil, "the first root")
	rig.Is(t, v.Recovered, told, "recovered")
}

// ids returns the ids of the roots of a view.
func ids(v *capability.View) (all []string) {
	for _, r := range v.Roots {
		all = append(all, r.ID)
	}
	return all
}

// text returns the text of an error.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
