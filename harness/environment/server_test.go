package environment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

var errRefused = errors.New("connection refused")

// network is what the transports of a test reach: servers in memory, which open and end
// connections as the test says.
type network struct {
	t testing.TB

	mu        sync.Mutex
	err       error         // of dialling; nil: a server answers
	gate      chan struct{} // dialling waits for it; nil: it does not
	same      func(context.Context) (bool, error)
	noise     bool // is reached, too
	dials     int
	aborted   int                   // dials whose context ended
	transport environment.Transport // of the last dial
	conns     []rpc.Conn            // the servers' ends
	statuses  int                   // how often servers were asked for theirs
	status    string                // that they answer; "": none
	serving   sync.WaitGroup
}

func newNetwork(t testing.TB) *network {
	n := &network{t: t, status: protocol.StatusReady}
	t.Cleanup(func() {
		n.cut()
		n.serving.Wait()
	})
	return n
}

// set makes a set whose transports go through the network, and closes it with the test.
func (n *network) set(plan environment.Plan) *environment.Set {
	n.t.Helper()
	s := rig.Value(environment.New(environment.Config{Connect: n.connect, Local: n.dial}, plan))
	n.t.Cleanup(func() {
		rig.Check(n.t, s.Close())
	})
	return s
}

func (n *network) connect(t environment.Transport) (client.Config, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.transport = t
	if _, ok := t.(environment.Noise); ok && !n.noise {
		return client.Config{}, errors.New("no noise here")
	}
	return client.Config{Dial: n.dial, Single: true, Same: n.same}, nil
}

func (n *network) dial(ctx context.Context) (rpc.Conn, error) {
	n.mu.Lock()
	n.dials++
	gate := n.gate
	n.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			n.mu.Lock()
			n.aborted++
			n.mu.Unlock()
			return nil, context.Cause(ctx)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.err != nil {
		return nil, n.err
	}
	ours, theirs := rpc.Pipe()
	n.conns = append(n.conns, theirs)
	session := fmt.Sprintf("session-%d", len(n.conns))
	n.serving.Go(func() { n.serve(theirs, session) })
	return ours, nil
}

// serve answers until the connection ends.
func (n *network) serve(conn rpc.Conn, session string) {
	defer conn.Close()
	for {
		message, err := conn.Read()
		if err != nil {
			return
		}
		var request struct {
			ID     *int64
			Method string
		}
		if err := json.Unmarshal(message, &request); err != nil {
			n.t.Error(err)
			return
		}
		if request.ID == nil {
			continue
		}
		result := "{}"
		switch request.Method {
		case protocol.MethodInitialize:
			result = fmt.Sprintf(`{"sessionId":%q}`, session)
		case protocol.MethodEnvironmentStatus:
			n.mu.Lock()
			n.statuses++
			status := n.status
			n.mu.Unlock()
			if status == "" {
				continue
			}
			result = fmt.Sprintf(`{"status":%q}`, status)
		}
		if conn.Write(fmt.Appendf(nil, `{"id":%d,"result":%s}`, *request.ID, result)) != nil {
			return
		}
	}
}

// refuse makes dialling fail, or work again with nil.
func (n *network) refuse(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.err = err
}

// hold makes dialling wait for the function that it returns.
func (n *network) hold() (open func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	gate := make(chan struct{})
	n.gate = gate
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.gate = nil
		close(gate)
	}
}

// cut ends all connections.
func (n *network) cut() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, conn := range n.conns {
		_ = conn.Close()
	}
}

func (n *network) count() (dials, aborted, statuses int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials, n.aborted, n.statuses
}

// dialled checks how often the network was dialled.
func (n *network) dialled(want int) {
	n.t.Helper()
	got, _, _ := n.count()
	rig.Is(n.t, got, want, "times dialled")
}

// aborts checks of how many dials the context has ended.
func (n *network) aborts(want int) {
	n.t.Helper()
	_, got, _ := n.count()
	rig.Is(n.t, got, want, "attempts that were aborted")
}

// connected returns the client of an environment.
func connected(t testing.TB, e *environment.Environment) *client.Client {
	t.Helper()
	c, err := e.Client(t.Context())
	rig.Must(t, err)
	return c
}

// fails checks why there is no client of an environment.
func fails(t testing.TB, e *environment.Environment, want string) {
	t.Helper()
	rig.Is(t, text(rig.Err(e.Client(t.Context()))), want, "Client gives")
}

// shared checks that everybody gets one client.
func shared(t *testing.T, e *environment.Environment) {
	t.Helper()
	clients, errs := everybody(t, e)
	rig.Is(t, len(clients), 1, "clients")
	rig.Is(t, len(errs), 0, "errors")
}

var (
	server  = environment.URL{URL: "ws://h"}
	program = environment.Stdio{Program: "p"}
)

// one is a plan with one environment, "a".
func one(t environment.Transport) environment.Plan {
	return environment.Plan{Entries: []environment.Entry{{ID: "a", Transport: t}}, Default: "a"}
}

func get(t testing.TB, s *environment.Set, id string) *environment.Environment {
	t.Helper()
	e, ok := s.Get(id)
	if !ok {
		t.Fatalf("the set has no %s", id)
	}
	return e
}

// state checks the state of an environment, and the text of its error.
func state(t testing.TB, e *environment.Environment, want environment.State, wantErr string) {
	t.Helper()
	got, err := e.State()
	rig.Is(t, string(got)+" "+text(err), string(want)+" "+wantErr, "State")
}

// status checks the status of an environment, and the text of its error.
func status(t testing.TB, s *environment.Set, id, want, wantErr string) {
	t.Helper()
	got := s.Status(t.Context(), id)
	rig.Is(t, got.Value+" "+text(got.Err), want+" "+wantErr, "Status of %s", id)
}
