package environment_test

import (
	"context"
	"errors"
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

const refused = "exec-server connection attempt failed: connecting to exec-server: connection refused"

// inBubble runs a test in a bubble of synctest, where time passes when all wait.
func inBubble(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, test)
}

// everybody calls Client from many goroutines at once, and returns what they got.
func everybody(t *testing.T, e *environment.Environment) (map[*client.Client]int, map[error]int) {
	t.Helper()
	var mu sync.Mutex
	clients, errs := map[*client.Client]int{}, map[error]int{}
	var callers sync.WaitGroup
	for range 100 {
		callers.Go(func() {
			c, err := e.Client(t.Context())
			mu.Lock()
			defer mu.Unlock()
			if clients[c]++; err != nil {
				errs[err]++
			}
		})
	}
	callers.Wait()
	return clients, errs
}

// TestOneStartup: a URL begins to connect when it is registered, and everybody shares
// that attempt and its client.
func TestOneStartup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		open := n.hold()
		s := n.set(one(server))
		e := get(t, s, "a")
		synctest.Wait()
		n.dialled(1)
		state(t, e, environment.Starting, "")
		status(t, s, "a", environment.StatusPending, "")
		time.AfterFunc(time.Second, open)
		shared(t, e)
		n.dialled(1)
		state(t, e, environment.Ready, "")
		status(t, s, "a", environment.StatusReady, "")
	})
}

// TestFailedStartup: who has waited for the startup gets its error, and who comes later
// shares one more attempt, each time anew.
func TestFailedStartup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.refuse(errRefused)
		open := n.hold()
		e := get(t, n.set(one(server)), "a")
		time.AfterFunc(time.Second, open)
		for attempts := 1; attempts <= 3; attempts++ {
			_, errs := everybody(t, e)
			rig.Is(t, len(errs), 1, "errors")
			for err, callers := range errs {
				_, ok := errors.AsType[*environment.AttemptError](err)
				rig.Is(t, ok && errors.Is(err, errRefused) && text(err) == refused, true, "the error is %v", err)
				rig.Is(t, callers, 100, "callers have the error")
			}
			n.dialled(attempts)
			state(t, e, environment.Failed, refused)
			time.AfterFunc(time.Second, n.hold())
			synctest.Wait()
		}
		n.refuse(nil)
		shared(t, e)
		n.dialled(4)
		state(t, e, environment.Ready, "")
	})
}

// TestFinalStartup: an error for which no attempt is worth while is kept, and so is that of a program
// that does not start.
func TestFinalStartup(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		for dials, transport := range []environment.Transport{environment.Noise{RegistryURL: "https://r", EnvironmentID: "e", AuthToken: "t"}, program} {
			n := newNetwork(t)
			n.refuse(errRefused)
			s := n.set(one(transport))
			e := get(t, s, "a")
			want := []string{"exec-server connection attempt failed: no noise here", refused}[dials]
			_, first := e.Client(t.Context())
			_, second := e.Client(t.Context())
			rig.Is(t, text(first) == want && first == second, true, "Client gives %v, then %v", first, second)
			n.dialled(dials)
			status(t, s, "a", environment.StatusDisconnected, want)
		}
	})
}

// TestNewSession: after its client has failed, the next call connects again.
func TestNewSession(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		e := get(t, n.set(one(server)), "a")
		first := connected(t, e)
		changed := e.Changed()
		n.cut()
		<-changed
		state(t, e, environment.Failed, "exec-server transport disconnected")
		n.dialled(1)
		clients, errs := everybody(t, e)
		rig.Is(t, len(clients) == 1 && clients[first] == 0 && len(errs) == 0, true, "clients %v, errors %v", clients, errs)
		n.dialled(2)
		second, err := e.Client(t.Context())
		if err != nil || second.SessionID() == first.SessionID() {
			t.Errorf("the session is still %s, %v", first.SessionID(), err)
		}
		state(t, e, environment.Ready, "")
	})
}

// TestNewSessionFails: while there is no new session, the last error is told.
func TestNewSessionFails(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(server))
		e := get(t, s, "a")
		connected(t, e)
		n.refuse(errRefused)
		n.cut()
		synctest.Wait()
		status(t, s, "a", environment.StatusDisconnected, "exec-server transport disconnected")
		for range 3 {
			fails(t, e, refused)
		}
		n.dialled(4)
		status(t, s, "a", environment.StatusDisconnected, refused)
		n.refuse(nil)
		connected(t, e)
		status(t, s, "a", environment.StatusReady, "")
	})
}

// TestProgram: a program is started when it is needed, which asking is not, and once.
func TestProgram(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(program))
		e := get(t, s, "a")
		for range 3 {
			status(t, s, "a", environment.StatusPending, "")
			state(t, e, environment.Starting, "")
			synctest.Wait()
		}
		n.dialled(0)
		shared(t, e)
		n.dialled(1)
		n.cut()
		synctest.Wait()
		const want = "exec-server transport disconnected"
		fails(t, e, want)
		status(t, s, "a", environment.StatusDisconnected, want)
		n.dialled(1)
	})
}

// TestCallerGivesUp: the context of a caller ends the wait, and not the attempt.
func TestCallerGivesUp(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		open := n.hold()
		e := get(t, n.set(one(program)), "a")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		rig.Is(t, rig.Err(e.Client(ctx)), context.DeadlineExceeded, "Client")
		open()
		connected(t, e)
		n.dialled(1)
		n.aborts(0)
	})
}

// TestTimeouts: those of the transport bound the attempt, where the connector has none.
func TestTimeouts(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.hold()
		start := time.Now()
		e := get(t, n.set(one(environment.URL{URL: "ws://h", ConnectTimeout: 250 * time.Millisecond})), "a")
		rig.Is(t, rig.Err(e.Client(t.Context())), context.DeadlineExceeded, "Client")
		rig.Is(t, time.Since(start), 250*time.Millisecond, "the attempt took")

		silent := func(environment.Transport) (client.Config, error) {
			return client.Config{Dial: func(context.Context) (rpc.Conn, error) {
				ours, theirs := rpc.Pipe()
				n.serving.Go(func() {
					for {
						if _, err := theirs.Read(); err != nil {
							return
						}
					}
				})
				return ours, nil
			}}, nil
		}
		s := rig.Value(environment.New(environment.Config{Connect: silent}, one(environment.Stdio{Program: "p", InitializeTimeout: 3 * time.Second})))
		defer s.Close()
		_, err := get(t, s, "a").Client(t.Context())
		want := "exec-server connection attempt failed: timed out waiting for exec-server initialize handshake after 3s"
		rig.Is(t, text(err), want, "Client of a silent program gives")
	})
}

// TestStatus: asking has no side effects, also while an endpoint is back that was away.
func TestStatus(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.refuse(errRefused)
		plan := one(server)
		plan.IncludeLocal = true
		s := n.set(plan)
		synctest.Wait()
		n.refuse(nil)
		for range 3 {
			status(t, s, "a", environment.StatusDisconnected, refused)
			status(t, s, "local", environment.StatusReady, "")
			status(t, s, "b", environment.StatusUnknown, "unknown environment id `b`")
			synctest.Wait()
		}
		n.dialled(1)
		rig.Must(t, rig.Err(get(t, s, "a").Client(t.Context())))
		status(t, s, "a", environment.StatusReady, "")
		_, _, asked := n.count()
		rig.Is(t, asked, 1, "times the server was asked")
		n.mu.Lock()
		n.status = "odd"
		n.mu.Unlock()
		status(t, s, "a", environment.StatusDisconnected, `exec-server has the status "odd"`)
		n.dialled(2)
	})
}

// TestStatusOfSilentServer: a server that does not answer is waited for, but not for long.
func TestStatusOfSilentServer(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		n.status = ""
		s := n.set(one(server))
		synctest.Wait()
		start := time.Now()
		got := s.Status(t.Context(), "a")
		if took := time.Since(start); got.Value != environment.StatusDisconnected || !errors.Is(got.Err, context.DeadlineExceeded) || took != 10*time.Second {
			t.Errorf("Status is %+v after %v", got, took)
		}
		state(t, get(t, s, "a"), environment.Ready, "")
		n.dialled(1)
	})
}

// TestLocal: the local environment has no transport and goes through the same client,
// which connects when it is needed.
func TestLocal(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(environment.FromURL(""))
		e, ok := s.Default()
		if !ok || e.ID() != "local" || e.IsRemote() {
			t.Fatalf("the default is %+v", e)
		}
		synctest.Wait()
		n.dialled(0)
		state(t, e, environment.Ready, "")
		c := connected(t, e)
		rig.Is(t, rig.Value(c.Status(t.Context())), protocol.StatusReady, "Status")
		n.cut()
		synctest.Wait()
		rig.Is(t, connected(t, e) != c, true, "after the client has failed there is another one")
	})
}

// TestClose: it ends attempts, clients and waits.
func TestClose(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		s := n.set(one(server))
		e := get(t, s, "a")
		c := connected(t, e)
		n.hold()
		b := rig.Value(s.Upsert(environment.Entry{ID: "b", Transport: server}))
		pending := rig.Value(s.Provision("p", environment.Skills{}))
		var waiting sync.WaitGroup
		for _, e := range []*environment.Environment{b, pending} {
			waiting.Go(func() {
				rig.Is(t, rig.Err(e.Client(t.Context())), environment.ErrClosed, "%s: a call that waits", e.ID())
			})
		}
		synctest.Wait()
		rig.Must(t, s.Close())
		waiting.Wait()
		<-c.Done()
		n.aborts(1)
		rig.Is(t, rig.Err(e.Client(t.Context())), environment.ErrClosed, "after Close Client")
		state(t, e, environment.Failed, "environment closed")
		rig.Is(t, rig.Err(s.Upsert(environment.Entry{ID: "c", Transport: server})), environment.ErrClosed, "after Close Upsert")
		rig.Is(t, pending.Ready(server), environment.ErrClosed, "after Close Ready")
		rig.Check(t, s.Close())
	})
}

// TestCloseWhileConnecting closes at every moment of an attempt: whatever has come of it
// is closed, too.
func TestCloseWhileConnecting(t *testing.T) {
	t.Parallel()
	for range 200 {
		n := newNetwork(t)
		s := n.set(one(server))
		e := get(t, s, "a")
		var calling sync.WaitGroup
		calling.Go(func() {
			c, err := e.Client(t.Context())
			if err == nil {
				<-c.Done()
			}
		})
		rig.Must(t, s.Close())
		calling.Wait()
	}
}

// TestRecovering: a client that recovers its connection is still the one, and ready for a
// step. Its status says what it is doing, and nothing waits for it.
func TestRecovering(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		n := newNetwork(t)
		connect := func(environment.Transport) (client.Config, error) { return client.Config{Dial: n.dial}, nil }
		s := rig.Value(environment.New(environment.Config{Connect: connect}, one(server)))
		defer s.Close()
		e := get(t, s, "a")
		c := connected(t, e)
		n.refuse(errRefused)
		n.cut()
		synctest.Wait()
		start := time.Now()
		status(t, s, "a", environment.StatusDisconnected, "exec-server environment is recovering")
		state(t, e, environment.Ready, "")
		rig.Is(t, connected(t, e), c, "the client")
		rig.Is(t, time.Since(start), 0, "asking took")
		changed := e.Changed()
		<-changed // the client gives up
		rig.Is(t, time.Since(start), client.DefaultRecoveryTimeout, "recovery took")
		n.refuse(nil)
		rig.Is(t, connected(t, e) != c, true, "after the recovery has failed there is another client")
	})
}
