package environment_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// TestNew has what every plan is checked for.
func TestNew(t *testing.T) {
	t.Parallel()
	entry := func(id string) environment.Entry { return environment.Entry{ID: id, Transport: program} }
	entries := func(ids ...string) (p environment.Plan) {
		for _, id := range ids {
			p.Entries = append(p.Entries, entry(id))
		}
		return p
	}
	for _, tt := range []struct {
		name string
		plan environment.Plan
		want string
	}{
		{"nothing", environment.Plan{}, ""},
		{"odd ids", entries("LOCAL", "bad id!", " "), ""},
		{"empty id", entries(""), "environment id cannot be empty"},
		{"local", entries("local"), "environment id `local` is reserved for EnvironmentManager"},
		{"twice", entries("a", "b", "a"), "environment id `a` is duplicated"},
		{"unknown default", environment.Plan{Default: "a"}, "default environment `a` is not configured"},
		{"local default", environment.Plan{Default: "local"}, "default environment `local` is not configured"},
		{"no transport", environment.Plan{Entries: []environment.Entry{{ID: "a"}}}, "environment `a` has no transport"},
	} {
		s, err := environment.New(environment.Config{Connect: newNetwork(t).connect}, tt.plan)
		rig.Is(t, text(err), withPrefix(tt.want), "%s: New gives", tt.name)
		if err == nil {
			_ = s.Close()
		}
	}
	for name, plan := range map[string]environment.Plan{
		"local environment has no executor":              {IncludeLocal: true},
		"environments with a transport need a connector": one(program),
	} {
		rig.Is(t, text(rig.Err(environment.New(environment.Config{}, plan))), withPrefix(name), "New gives")
	}
}

func withPrefix(s string) string {
	if s == "" {
		return ""
	}
	return protocolError + s
}

// TestUpsert has the texts of client.md 4.4.
func TestUpsert(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	n.refuse(errRefused)
	s := n.set(environment.Plan{})
	header := func(name, value string) environment.URL {
		return environment.URL{URL: "wss://h", Header: http.Header{name: {value}}}
	}
	const plain = "exec-server WebSocket headers require wss:// or a loopback destination"
	for _, tt := range []struct {
		name, id  string
		transport environment.Transport
		want      string
	}{
		{"any id", "bad id!", server, ""},
		{"blank id", " ", server, ""},
		{"empty id", "", server, "environment id cannot be empty"},
		{"local", "local", server, "environment id `local` is reserved for EnvironmentManager"},
		{"any URL", "a", environment.URL{URL: "no URL"}, ""},
		{"empty URL", "a", environment.URL{URL: " "}, "remote environment requires an exec-server url"},
		{"none", "a", environment.URL{URL: "None"}, "remote environment cannot use disabled exec-server url"},
		{"token in plain", "a", environment.URL{URL: "ws://h", BearerToken: "t"}, plain},
		{"header in plain", "a", environment.URL{URL: "ws://h", Header: http.Header{"X-Request-ID": {"1"}}}, plain},
		{"header and another scheme", "a", environment.URL{URL: "http://localhost", BearerToken: "t"}, plain},
		{"header and no URL", "a", environment.URL{URL: "no URL", BearerToken: "t"}, "invalid exec-server WebSocket URL: want ws://HOST, wss://HOST or unix:///PATH"},
		{"header here", "a", environment.URL{URL: "ws://localhost:1", BearerToken: "t", Header: http.Header{"X-Request-ID": {"1"}}}, ""},
		{"line break", "a", environment.URL{URL: "wss://h", BearerToken: "t\n"}, "invalid value for exec-server WebSocket header `authorization`"},
		{"header of the websocket", "a", header("sec-websocket-key", "1"), "exec-server WebSocket header `sec-websocket-key` belongs to the WebSocket"},
		{"host", "a", header("HOST", "h"), "exec-server WebSocket header `host` belongs to the WebSocket"},
		{"name", "a", header("a b", "1"), "invalid name of exec-server WebSocket header \"a b\""},
		{"program", "a", program, ""},
		{"no program", "a", environment.Stdio{Program: " "}, "environment program cannot be empty"},
		{"noise", "a", environment.Noise{RegistryURL: "https://r"}, "noise environment requires a registry url, an environment id and a token"},
		{"no transport", "a", nil, "environment `a` has no transport"},
	} {
		err := rig.Err(s.Upsert(environment.Entry{ID: tt.id, Transport: tt.transport}))
		rig.Is(t, text(err), withPrefix(tt.want), "%s: Upsert gives", tt.name)
	}
}

// TestStringsHoldNoSecrets: transports are printed without what may be secret.
func TestStringsHoldNoSecrets(t *testing.T) {
	t.Parallel()
	for want, got := range map[string]string{
		"ws://h/p":      environment.URL{URL: "ws://user:secret@h/p?secret#secret", BearerToken: "secret"}.String(),
		"malformed URL": environment.URL{URL: "ws://a b"}.String(),
		"p":             environment.Stdio{Program: "p", Args: []string{"secret"}}.String(),
		"e at https://r": environment.Noise{
			RegistryURL: "https://r?secret", EnvironmentID: "e", AuthToken: "secret",
		}.String(),
	} {
		rig.Is(t, got, want, "String")
	}
}

func TestDefaultIDs(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	plan := environment.Plan{
		Entries: []environment.Entry{{ID: "a", Transport: program}, {ID: "b", Transport: program}},
		Default: "b", IncludeLocal: true,
	}
	s := n.set(plan)
	rig.Is(t, s.DefaultID(), "b", "DefaultID")
	rig.Same(t, "DefaultIDs", []string{"b", "local", "a"}, s.DefaultIDs())
	for _, id := range []string{"c", "b"} {
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: id, Transport: program})))
	}
	rig.Same(t, "DefaultIDs after Upsert", []string{"b", "local", "a", "c"}, s.DefaultIDs())
	plan.Default = ""
	s = n.set(plan)
	rig.Is(t, len(s.DefaultIDs()), 0, "DefaultIDs without a default")
	rig.Is(t, s.DefaultID(), "", "DefaultID without a default")
	if e, ok := s.Default(); ok {
		t.Errorf("without a default Default is %s", e.ID())
	}
}

// TestReplace: another handle under the same id; the old one is closed, and its
// unfinished startup aborted.
func TestReplace(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		open := n.hold()
		s := n.set(one(server))
		old := get(t, s, "a")
		waits := make(chan error, 1)
		go func() {
			_, err := old.Client(t.Context())
			waits <- err
		}()
		synctest.Wait()
		e := rig.Value(s.Upsert(environment.Entry{ID: "a", Transport: environment.URL{URL: "ws://other"}, Skills: environment.Skills{Required: []string{"x"}}}))
		rig.Is(t, <-waits, environment.ErrClosed, "who waits for the old one")
		synctest.Wait() // the attempt may still be about to end
		n.aborts(1)
		if got := get(t, s, "a"); got != e || got == old || !slices.Equal(got.Skills().Required, []string{"x"}) {
			t.Errorf("Get returns %p with %+v", got, got.Skills())
		}
		open()
		c := connected(t, e)
		n.mu.Lock()
		rig.Is(t, n.transport.(environment.URL).URL, "ws://other", "dialled")
		n.mu.Unlock()
		// A replaced environment closes its client, too.
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: "a", Transport: program})))
		<-c.Done()
	})
}

// TestHold: a replaced environment lives, and connects, as long as it is held.
func TestHold(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(program))
		old := get(t, s, "a")
		first, second := old.Hold(), old.Hold()
		rig.Must(t, rig.Err(s.Upsert(environment.Entry{ID: "a", Transport: program})))
		first()
		first() // more than once is once
		c := connected(t, old)
		second()
		<-c.Done()
		synctest.Wait()
		rig.Is(t, rig.Err(old.Client(t.Context())), environment.ErrClosed, "after the last release Client")
		old.Hold()() // too late, and harmless
	})
}

// TestProvision has the rules of pending environments.
func TestProvision(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(server))
		e := rig.Value(s.Provision("p", environment.Skills{}))
		synctest.Wait()
		n.dialled(1)
		rig.Is(t, rig.Value(s.Provision("p", environment.Skills{})), e, "Provision again")
		rig.Is(t, e.IsRemote(), true, "a pending environment is remote")
		status(t, s, "p", environment.StatusPending, "")

		const unavailable = "environment unavailable: no machine"
		var waiting sync.WaitGroup
		waiting.Go(func() {
			_, err := e.Client(t.Context())
			_, ok := errors.AsType[*environment.UnavailableError](err)
			rig.Is(t, ok && text(err) == unavailable, true, "who waits gets %v", err)
		})
		synctest.Wait()
		rig.Must(t, e.Fail(errors.New("no machine")))
		waiting.Wait()
		status(t, s, "p", environment.StatusDisconnected, unavailable)
		fails(t, e, unavailable)

		rig.Is(t, text(e.Ready(environment.URL{})), withPrefix("remote environment requires an exec-server url"), "Ready gives")
		rig.Must(t, e.Ready(server))
		status(t, s, "p", environment.StatusPending, "")
		synctest.Wait()
		n.dialled(1) // nobody has selected it
		rig.Is(t, get(t, s, "p"), e, "the handle is another")
		rig.Check(t, e.Ready(server))
		rig.Is(t, text(e.Ready(program)), withPrefix("environment `p` is already ready with another transport"), "Ready gives")
		const late = "environment `p` is already ready, but a later provisioning report failed: late"
		rig.Is(t, text(e.Fail(errors.New("late"))), withPrefix(late), "Fail gives")
		connected(t, e)
		n.dialled(2)
		status(t, s, "p", environment.StatusReady, "")
	})
}

// TestReportedRoots: roots come with the report that an environment is there.
func TestReportedRoots(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	e := rig.Value(n.set(environment.Plan{}).Provision("p", environment.Skills{}))
	root := func(id string) environment.CapabilityRoot {
		return environment.CapabilityRoot{ID: id, Path: protocol.NewPathURI("/" + id)}
	}
	var many []environment.CapabilityRoot
	for i := range environment.MaxCapabilityRoots + 1 {
		many = append(many, root(strconv.Itoa(i)))
	}
	for want, roots := range map[string][]environment.CapabilityRoot{
		"a capability root with a blank id":     {root(" ")},
		"two capability roots with the id `a`":  {root("a"), root("b"), root("a")},
		"a capability root without a path: `a`": {{ID: "a"}},
		"257 capability roots, 256 are allowed": many,
	} {
		rig.Is(t, text(e.Ready(server, roots...)), withPrefix("environment `p` reports "+want), "Ready gives")
	}
	rig.Is(t, len(e.CapabilityRoots()), 0, "roots after refusals")
	want := []environment.CapabilityRoot{root("b"), root("a")}
	for range 2 {
		rig.Must(t, e.Ready(server, want...))
	}
	const other = "environment `p` is already ready with other capability roots"
	rig.Is(t, text(e.Ready(server, root("a"))), withPrefix(other), "Ready gives")
	rig.Is(t, slices.Equal(e.CapabilityRoots(), want), true, "%v are the roots", e.CapabilityRoots())
}

// TestSelectedBeforeReady: who waits for a pending environment makes it connect.
func TestSelectedBeforeReady(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(environment.Plan{})
		var all []*environment.Environment
		var waiting sync.WaitGroup
		for id, wait := range map[string]func(*environment.Environment){
			"started": func(e *environment.Environment) { e.Start() },
			"awaited": func(e *environment.Environment) {
				waiting.Go(func() {
					connected(t, e)
				})
			},
		} {
			e := rig.Value(s.Provision(id, environment.Skills{}))
			wait(e)
			all = append(all, e)
		}
		synctest.Wait()
		n.dialled(0)
		for _, e := range all {
			rig.Must(t, e.Ready(server))
		}
		waiting.Wait()
		synctest.Wait()
		n.dialled(2)
		for _, e := range all {
			state(t, e, environment.Ready, "")
		}
	})
}

// TestConflict: an id keeps the way in which it was registered.
func TestConflict(t *testing.T) {
	t.Parallel()
	n := newNetwork(t)
	s := n.set(one(program))
	pending := rig.Value(s.Provision("p", environment.Skills{}))
	_, upsert := s.Upsert(environment.Entry{ID: "p", Transport: program})
	_, provision := s.Provision("a", environment.Skills{})
	for id, err := range map[string]error{
		"p": upsert, "a": errors.Join(provision, get(t, s, "a").Ready(program), get(t, s, "a").Fail(errors.New("x"))),
	} {
		want := "environment `" + id + "` is already registered with a different provisioning mode"
		if id == "a" {
			want += "\n" + want + "\n" + want
		}
		_, ok := errors.AsType[*environment.ConflictError](err)
		rig.Is(t, ok && text(err) == want, true, "%s: the error is %v", id, err)
	}
	rig.Is(t, get(t, s, "p"), pending, "a conflict has replaced the environment")
	local := rig.Err(s.Provision("local", environment.Skills{}))
	rig.Is(t, text(local), withPrefix("environment id `local` is reserved for EnvironmentManager"), "Provision gives")
}

// TestConnectorOnce: every attempt asks the connector anew, and nothing else does.
func TestConnectorOnce(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		names := make(chan string, 10)
		connect := func(environment.Transport) (client.Config, error) {
			return client.Config{Dial: func(context.Context) (rpc.Conn, error) {
				ours, theirs := rpc.Pipe()
				go func() {
					defer theirs.Close()
					message, err := theirs.Read()
					if err == nil {
						names <- string(message)
					}
				}()
				return ours, nil
			}}, nil
		}
		s := rig.Value(environment.New(environment.Config{Connect: connect}, one(server)))
		defer s.Close()
		time.Sleep(time.Minute)
		_, _ = get(t, s, "a").Client(t.Context())
		synctest.Wait()
		if len(names) != 2 {
			t.Fatalf("connected %d times, want 2", len(names))
		}
		want := `{"id":1,"method":"initialize","params":{"clientName":"codex-environment","resumeSessionId":null,"errorData":true}}`
		rig.Is(t, <-names, want, "the handshake")
	})
}
