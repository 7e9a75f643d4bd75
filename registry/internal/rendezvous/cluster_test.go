package rendezvous

import (
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is how long a test waits for what must happen, on however busy a machine.
const soon = 3 * time.Minute

// unread is how long an end of a test lives that nobody reads: longer than a test.
const unread = time.Hour

// state is a store as a rendezvous and its tests use it.
type state interface {
	Store
	SharedKey(ctx context.Context) ([]byte, error)
	CreateKey(ctx context.Context, k store.Key) (text string, created store.Key, err error)
	RevokeKey(ctx context.Context, id string) (store.Key, error)
	AddIdentity(ctx context.Context, i store.Identity) error
	Register(ctx context.Context, environmentID string, key *wire.PublicKey, principal string, allowed func() bool, here func(registrationID string) bool) (reg store.Registration, conflict bool, err error)
}

// cluster is what servers on one store have in common.
type cluster struct {
	t    testing.TB
	fake *storetest.Fake // the store of a test in a bubble; nil with NATS
	open func() state    // another process's store
	st   state           // for the test itself

	environmentID string
	registration  store.Registration
	executorKey   string // principal ids
	harnessKey    string
	servers       []*relayServer
}

// bubble runs a test in a bubble of synctest, with a fake store and connections in memory. Time
// passes there only when nothing else can happen, and no goroutine may outlive the test.
func bubble(t *testing.T, test func(c *cluster)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fake := storetest.NewFake()
		c := newCluster(t, fake, func() state { return fake })
		c.fake = fake
		test(c)
	})
}

// oneAndTwo runs a test with a server that has both ends, and with a server for each.
func oneAndTwo(t *testing.T, test func(c *cluster, servers int)) {
	t.Parallel()
	for _, servers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d servers", servers), func(t *testing.T) {
			bubble(t, func(c *cluster) { test(c, servers) })
		})
	}
}

// atPlaces runs a test with three servers for each way in which something is at one of them, moves to
// another one, and has to do with a third.
func atPlaces(t *testing.T, test func(c *cluster, places [3]*relayServer)) {
	t.Parallel()
	for _, at := range [][3]int{{0, 0, 0}, {0, 1, 0}, {0, 1, 1}, {0, 0, 1}, {0, 1, 2}} {
		t.Run(fmt.Sprint("at ", at), func(t *testing.T) {
			bubble(t, func(c *cluster) {
				for range 3 {
					c.server(settings{})
				}
				test(c, [3]*relayServer{c.servers[at[0]], c.servers[at[1]], c.servers[at[2]]})
			})
		})
	}
}

// natsCluster is a cluster on a NATS server, with websockets over TCP.
func natsCluster(t testing.TB) (c *cluster, natsURL string) {
	ns := storetest.NATS(t, t.TempDir(), nil)
	t.Cleanup(func() { storetest.Stop(ns) })
	return newCluster(t, storetest.At(t, ns.ClientURL()), func() state { return storetest.At(t, ns.ClientURL()) }), ns.ClientURL()
}

// newCluster has one environment, env, with a registered executor. st is the test's own
// store, and open makes one for each server.
func newCluster(t testing.TB, st state, open func() state) *cluster {
	c := &cluster{t: t, st: st, open: open, environmentID: "env"}
	c.executorKey = c.principal(ticket.Executor, "*")
	c.harnessKey = c.principal(ticket.Harness, "*")
	c.registration = c.register("env")
	return c
}

func (c *cluster) principal(role ticket.Role, environments string) string {
	return c.principalOf(store.Key{Role: string(role), Environments: environments})
}

func (c *cluster) principalOf(k store.Key) string {
	c.t.Helper()
	err := store.Persist(c.t.Context(), func() (err error) {
		_, k, err = c.st.CreateKey(c.t.Context(), k)
		return err
	})
	rig.Must(c.t, err)
	return store.KeyPrefix + k.ID
}

// revoke takes a principal's key away.
func (c *cluster) revoke(principal string) {
	c.t.Helper()
	rig.Value(c.st.RevokeKey(c.t.Context(), principal[len(store.KeyPrefix):]))
}

func (c *cluster) register(environmentID string) store.Registration {
	c.t.Helper()
	var reg store.Registration
	var conflict bool
	key := storetest.Key(c.t)
	err := store.Persist(c.t.Context(), func() (err error) {
		reg, conflict, err = c.st.Register(c.t.Context(), environmentID, key, c.executorKey, always, func(string) bool { return false })
		return err
	})
	if err != nil || conflict {
		c.t.Fatal(conflict, err)
	}
	return reg
}

func always() bool { return true }

// presenceRevision is the revision of the executor's presence.
func (c *cluster) presenceRevision() uint64 {
	c.t.Helper()
	_, revision, _, err := c.st.Presence(c.t.Context(), c.environmentID)
	rig.Must(c.t, err)
	return revision
}

// dropped is how many frames all servers have dropped.
func (c *cluster) dropped() (n uint64) {
	for _, ts := range c.servers {
		n += ts.metrics.Dropped.Load()
	}
	return n
}

// settles fails unless condition is true once nothing happens any more. With NATS, where
// nobody knows when that is, it waits for the condition.
func (c *cluster) settles(what string, condition func() bool) {
	c.t.Helper()
	if c.fake != nil {
		synctest.Wait()
		if !condition() {
			c.t.Fatalf("it is not so: %s", what)
		}
		return
	}
	for deadline := time.Now().Add(soon); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within %v: %s", soon, what)
		}
	}
}

// waitOnline waits until the store has noted the executor at a server.
func (c *cluster) waitOnline(at *relayServer) {
	c.t.Helper()
	c.settles("the executor is online", func() bool {
		p, ok, err := c.st.Online(c.t.Context(), c.environmentID)
		return err == nil && ok && p.Node == at.node
	})
}

// pair starts n servers, one or two, and returns the first and the last.
func (c *cluster) pair(n int, cfg settings) (first, last *relayServer) {
	c.t.Helper()
	first = c.server(cfg)
	if n == 1 {
		return first, first
	}
	return first, c.server(cfg)
}

// relayServer stands for one registry process: a rendezvous with a store and an HTTP
// server of its own.
type relayServer struct {
	*Routes
	c    *cluster
	http *http.Server
	host string
	dial func(ctx context.Context, network, address string) (net.Conn, error) // nil: over TCP
}

// settings are what servers of a test differ in.
type settings struct {
	Logger *slog.Logger
	Limits store.Limits
	Memory int64         // that a server may take; zero: no limit
	Grace  time.Duration // zero: a minute
}

// server starts another server. Close may come before the end of the test. What a server has
// taken from what all share, it has given back at its end.
func (c *cluster) server(cfg settings) *relayServer {
	c.t.Helper()
	logger := cfg.Logger
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
		if testing.Verbose() {
			logger = slog.New(slog.NewTextHandler(c.t.Output(), nil)).With("server", len(c.servers))
		}
	}
	st := c.open()
	var key []byte
	err := store.Persist(c.t.Context(), func() (err error) {
		key, err = st.SharedKey(c.t.Context())
		return err
	})
	rig.Must(c.t, err)
	l := limits.New(cfg.Limits, cfg.Memory)
	s, err := New(c.t.Context(), Config{
		Store: st, Signer: ticket.NewSigner(key), Limits: l, Log: limits.NewLog(logger, l), Metrics: new(Metrics),
		Self: store.Server{Node: rand.Text()}, Grace: cmp.Or(cfg.Grace, time.Minute),
	})
	rig.Must(c.t, err)
	ts := &relayServer{Routes: s, c: c, http: &http.Server{Handler: s}}
	var listener net.Listener
	if c.fake != nil {
		listener, ts.dial = rig.Pipes(&net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(len(c.servers))), Port: 80})
	} else {
		s.opening = soon // whatever a test does first on a busy machine
		s.hop.mu.Lock()
		s.silence = soon // other servers may say nothing for a while
		s.hop.mu.Unlock()
		if listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			c.t.Fatal(err)
		}
	}
	ts.host = listener.Addr().String()
	served := make(chan error)
	go func() { served <- ts.http.Serve(listener) }()
	c.servers = append(c.servers, ts)
	c.t.Cleanup(func() {
		ts.http.Close()
		<-served
		rig.Check(c.t, s.Close())
		m := s.metrics
		if n := m.Streams.Load() + m.Executors.Load() + m.Harnesses.Load() + m.Waiting.Load(); n != 0 || len(s.meetings) != 0 || l.Usage("").Waiting != 0 {
			c.t.Errorf("%d things, %d meetings and %d bytes are left", n, len(s.meetings), l.Usage("").Waiting)
		}
	})
	return ts
}

// take registers another key for an environment at a server, as its API does, and
// reports whether the environment has an executor that is in the way.
func (ts *relayServer) take(environmentID string, key *wire.PublicKey) (reg store.Registration, conflict bool, err error) {
	return ts.c.st.Register(ts.c.t.Context(), environmentID, key, "key:another", always, ts.HasExecutor)
}

// wantOnline asks a server what its API asks before it gives a harness a URL.
func (ts *relayServer) wantOnline(want bool) {
	ts.c.t.Helper()
	online, err := ts.Online(ts.c.t.Context(), ts.c.environmentID, ts.c.registration.ID)
	rig.Is(ts.c.t, err != nil || online != want, false, "online is %v, %v, want %v", online, err, want)
}

// isThere reports whether the executor is at any server, as far as this one knows.
func (ts *relayServer) isThere() bool {
	m := ts.find(ts.c.registration.ID)
	if m == nil {
		return false
	}
	defer ts.leave(m)
	return m.online()
}

// isHeardBy reports whether another server knows that this one lives.
func (ts *relayServer) isHeardBy(other *relayServer) bool {
	other.hop.mu.Lock()
	defer other.hop.mu.Unlock()
	_, ok := other.hop.heard[ts.node]
	return ok
}

func (ts *relayServer) ticket(role ticket.Role) ticket.Ticket {
	t := ticket.Ticket{Role: role, EnvironmentID: ts.c.environmentID, RegistrationID: ts.c.registration.ID, Principal: ts.c.harnessKey, Expires: time.Now().Add(time.Hour)}
	if role == ticket.Executor {
		t.Principal = ts.c.executorKey
	}
	return t
}

func (ts *relayServer) url(t ticket.Ticket) string {
	return ts.signer.URL(&url.URL{Scheme: "ws", Host: ts.host}, t)
}
