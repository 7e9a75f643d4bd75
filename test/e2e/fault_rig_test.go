package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const faultReplicas = 3

// A fabric is a cluster of NATS servers and two registries on it.
type fabric struct {
	*site
	nats       [faultReplicas]*natsServer
	registries [2]*registryServer
}

// newFabric starts all of it; it ends with the test.
func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{site: &site{printed: &transcript{}}}
	f.startNATS(t)
	f.executor, f.harness = f.createClusterKey(t, "executor"), f.createClusterKey(t, "harness")
	for i := range f.registries {
		f.registries[i] = &registryServer{address: freeAddress(t)}
	}
	f.startRegistries(t)
	return f
}

// backends are the addresses of the registries.
func (f *fabric) backends() []string {
	var addresses []string
	for _, r := range f.registries {
		addresses = append(addresses, r.address)
	}
	return addresses
}

// natsServer is one of the cluster: this test's binary once more, so that it can be killed.
type natsServer struct {
	*program
	args []string
	url  string
}

func (f *fabric) startNATS(t *testing.T) {
	t.Helper()
	var routes []string
	for range f.nats {
		routes = append(routes, "nats://"+freeAddress(t))
	}
	for i := range f.nats {
		address := freeAddress(t)
		f.nats[i] = &natsServer{url: "nats://" + address}
		// Read by TestNATSServer.
		f.nats[i].args = []string{fmt.Sprintf("n%d", i), address, routes[i], strings.Join(routes, ","), t.TempDir()}
		f.runNATS(t, i)
	}
	for i := range f.nats {
		f.nats[i].says(t, natsReady, 1)
	}
}

// natsReady is what a server prints when it has caught up with the cluster.
const natsReady = "this server is current"

// runNATS starts a server, or again.
func (f *fabric) runNATS(t *testing.T, i int) {
	t.Helper()
	f.nats[i].program = f.start(t, os.Args[0], []string{"E2E_NATS_SERVER=" + strings.Join(f.nats[i].args, " ")}, nil, "-test.run=^TestNATSServer$")
}

// restartNATS starts the servers that were killed, and waits until another one may be.
func (f *fabric) restartNATS(t *testing.T) {
	t.Helper()
	for i, n := range f.nats {
		if n.gone() {
			f.runNATS(t, i)
			n.says(t, natsReady, 1)
		}
	}
}

// TestNATSServer is no test but one server of a fabric's cluster.
func TestNATSServer(t *testing.T) {
	args := strings.Fields(os.Getenv("E2E_NATS_SERVER"))
	if len(args) == 0 {
		t.Skip("this is a program of TestFaults")
	}
	host, port, err := splitAddress(args[1])
	if err != nil {
		t.Fatal(err)
	}
	own, err := url.Parse(args[2])
	if err != nil {
		t.Fatal(err)
	}
	_, clusterPort, err := splitAddress(own.Host)
	if err != nil {
		t.Fatal(err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: args[0], Host: host, Port: port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: args[4],
		Cluster: server.ClusterOpts{Name: "faults", Host: host, Port: clusterPort}, Routes: server.RoutesFromStr(args[3]),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !s.ReadyForConnections(time.Second) || !s.JetStreamIsCurrent() || s.Healthz(nil).StatusCode != http.StatusOK {
		<-tick.C
	}
	fmt.Println(natsReady)
	s.WaitForShutdown() // until it is killed
}

func splitAddress(address string) (host string, port int, err error) {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return "", 0, err
	}
	return a.IP.String(), a.Port, nil
}

func (f *fabric) natsURLs() string {
	var urls []string
	for _, n := range f.nats {
		urls = append(urls, n.url)
	}
	return strings.Join(urls, ",")
}

// leader is the server that leads where it is kept who is online.
func (f *fabric) leader(t *testing.T) int {
	t.Helper()
	conn, err := nats.Connect(f.natsURLs(), nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for time.Since(began) < faultBound { // there may be an election
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		stream, err := js.Stream(ctx, "KV_execagent_presence")
		cancel()
		if err != nil {
			t.Logf("looking for the leader after %v: %v", time.Since(began).Round(time.Millisecond), err)
			continue
		}
		leader := stream.CachedInfo().Cluster.Leader
		i := slices.IndexFunc(f.nats[:], func(n *natsServer) bool { return n.args[0] == leader })
		if i >= 0 {
			return i
		}
		t.Logf("the leader after %v is %q", time.Since(began).Round(time.Millisecond), leader)
	}
	t.Fatal("the cluster has no leader")
	return -1
}

// registryEnviron says where the state is.
func (f *fabric) registryEnviron() []string {
	return []string{"REGISTRY_NATS_URL=" + f.natsURLs(), fmt.Sprintf("REGISTRY_NATS_REPLICAS=%d", faultReplicas)}
}

func (f *fabric) createClusterKey(t *testing.T, role string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), registryBinary(t), "keys", "create", "--role", role, "--environment", "ci-*")
	cmd.Env = append(os.Environ(), f.registryEnviron()...)
	cmd.Stderr = f.printed
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("creating a key: %v\n%s", err, f.printed)
	}
	return strings.TrimSpace(string(out))
}

// registryServer is one of the processes that share the cluster.
type registryServer struct {
	*program
	address string
}

// startRegistries starts those that do not run and waits until they are ready.
func (f *fabric) startRegistries(t *testing.T) {
	t.Helper()
	for _, r := range f.registries {
		if r.program == nil || r.gone() {
			r.program = f.start(t, registryBinary(t), f.registryEnviron(), nil, "serve", "--listen", r.address)
		}
	}
	for _, r := range f.registries {
		r.until(t, "the registry is ready", func() bool { return status("http://"+r.address+"/readyz") == http.StatusOK })
	}
}

// gone tells whether the program has ended.
func (p *program) gone() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill kills a program and waits for its end.
func (p *program) kill(t *testing.T) {
	t.Helper()
	if err := p.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.exit(t)
}

// balancer passes TCP connections on to one of its backends, to each in turn, and past those that do not listen.
type balancer struct {
	listener net.Listener
	backends []string
	wg       sync.WaitGroup

	mu    sync.Mutex
	turn  int
	aimed bool // the next websocket goes to the backend whose turn it is, whatever comes before it
	conns map[*balanced]struct{}
}

// balanced is one connection.
type balanced struct {
	from, to  net.Conn
	backend   int
	websocket bool
}

func newBalancer(t *testing.T, backends []string) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: l, backends: backends, conns: make(map[*balanced]struct{})}
	b.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			b.wg.Go(func() { b.serve(from) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.cut()
		b.wg.Wait()
	})
	return b
}

func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) serve(from net.Conn) {
	defer from.Close()
	reader := bufio.NewReader(from)
	method, err := reader.Peek(3)
	if err != nil {
		return
	}
	c := &balanced{from: from, websocket: string(method) == http.MethodGet}
	first := b.next(c.websocket)
	for i := range b.backends {
		c.backend = (first + i) % len(b.backends)
		if c.to, err = net.Dial("tcp", b.backends[c.backend]); err == nil {
			break
		}
	}
	if err != nil {
		return
	}
	defer c.to.Close()
	b.mu.Lock()
	b.conns[c] = struct{}{}
	b.mu.Unlock()
	b.wg.Go(func() {
		_, _ = io.Copy(from, c.to) // ends with the connection
		_ = from.Close()
	})
	_, _ = io.Copy(c.to, reader)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns, c)
}

// next is whose turn it is.
func (b *balancer) next(websocket bool) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	turn := b.turn
	if !b.aimed || websocket {
		b.aimed = false
		b.turn = (b.turn + 1) % len(b.backends)
	}
	return turn
}

// at is where the websocket is, -1 when there is none.
func (b *balancer) at() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		if c.websocket {
			return c.backend
		}
	}
	return -1
}

// move has the websocket at that backend.
func (b *balancer) move(t *testing.T, backend int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for b.at() != backend {
		if b.at() >= 0 {
			b.mu.Lock()
			b.turn, b.aimed = backend, true
			b.mu.Unlock()
			b.cut()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the websocket does not come to %s", b.backends[backend])
		}
	}
}

// cut ends every connection.
func (b *balancer) cut() {
	b.mu.Lock()
	conns := b.conns
	b.conns = make(map[*balanced]struct{})
	b.mu.Unlock()
	for c := range conns {
		_ = c.from.Close() // it may have ended
		_ = c.to.Close()
	}
}
