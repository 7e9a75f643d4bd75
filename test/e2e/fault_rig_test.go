package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/test/rig"
)

const faultReplicas = 3

// A fabric is a cluster of NATS servers and two registries on it.
type fabric struct {
	nats       [faultReplicas]*natsServer
	registries [2]*rig.Site // with the same keys and the same log
}

// newFabric starts all of it; it ends with the test.
func newFabric(t *testing.T) *fabric {
	t.Helper()
	f := &fabric{}
	site := &rig.Site{Pattern: "ci-*", Log: &rig.Transcript{}}
	f.startNATS(t, site)
	site.Environ = []string{"REGISTRY_NATS_URL=" + f.natsURLs(), fmt.Sprintf("REGISTRY_NATS_REPLICAS=%d", faultReplicas)}
	site.CreateKeys(t)
	for i := range f.registries {
		f.registries[i] = site.At(rig.FreeAddress(t))
	}
	f.startRegistries(t)
	return f
}

// addresses are those of the registries.
func (f *fabric) addresses() []string {
	var addresses []string
	for _, r := range f.registries {
		addresses = append(addresses, r.Address)
	}
	return addresses
}

// natsServer is one server of the cluster. It runs in a process of its own, this test's binary
// once more, so that it can be killed.
type natsServer struct {
	*rig.Program
	site *rig.Site // whose log has what it prints
	args []string
	url  string
}

func (f *fabric) startNATS(t *testing.T, site *rig.Site) {
	t.Helper()
	var routes []string
	for range f.nats {
		routes = append(routes, "nats://"+rig.FreeAddress(t))
	}
	for i := range f.nats {
		address := rig.FreeAddress(t)
		f.nats[i] = &natsServer{site: site, url: "nats://" + address}
		// Read by TestNATSServer.
		f.nats[i].args = []string{fmt.Sprintf("n%d", i), address, routes[i], strings.Join(routes, ","), t.TempDir()}
		f.nats[i].run(t)
	}
	for i := range f.nats {
		f.nats[i].Says(t, natsReady, 1)
	}
}

// natsReady is what a server prints when it has caught up with the cluster.
const natsReady = "this server is current"

// run starts the server, or starts it again.
func (n *natsServer) run(t *testing.T) {
	t.Helper()
	n.Program = n.site.Start(t, os.Args[0], []string{"E2E_NATS_SERVER=" + strings.Join(n.args, " ")}, nil, "-test.run=^TestNATSServer$")
}

// restartNATS starts the servers that were killed. When it returns, the cluster can bear the loss
// of another one.
func (f *fabric) restartNATS(t *testing.T) {
	t.Helper()
	for _, n := range f.nats {
		if n.Gone() {
			n.run(t)
			n.Says(t, natsReady, 1)
		}
	}
}

// TestNATSServer is not a test: it runs one server of a fabric's cluster.
func TestNATSServer(t *testing.T) {
	args := strings.Fields(os.Getenv("E2E_NATS_SERVER"))
	if len(args) == 0 {
		t.Skip("this is a program of TestFaults")
	}
	at := rig.Value(net.ResolveTCPAddr("tcp", args[1]))
	cluster := rig.Value(net.ResolveTCPAddr("tcp", strings.TrimPrefix(args[2], "nats://")))
	s, err := server.NewServer(&server.Options{
		ServerName: args[0], Host: at.IP.String(), Port: at.Port, NoSigs: true, NoLog: true, JetStream: true, StoreDir: args[4],
		Cluster: server.ClusterOpts{Name: "faults", Host: at.IP.String(), Port: cluster.Port}, Routes: server.RoutesFromStr(args[3]),
	})
	rig.Must(t, err)
	s.Start()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !s.ReadyForConnections(time.Second) || !s.JetStreamIsCurrent() || s.Healthz(nil).StatusCode != http.StatusOK {
		<-tick.C
	}
	fmt.Println(natsReady)
	s.WaitForShutdown() // until it is killed
}

func (f *fabric) natsURLs() string {
	var urls []string
	for _, n := range f.nats {
		urls = append(urls, n.url)
	}
	return strings.Join(urls, ",")
}

// leader returns the server that leads the part of the cluster that knows who is online.
func (f *fabric) leader(t *testing.T) int {
	t.Helper()
	conn, err := nats.Connect(f.natsURLs(), nats.MaxReconnects(-1))
	rig.Must(t, err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	rig.Must(t, err)
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

// startRegistries starts those that do not run and waits until they are ready.
func (f *fabric) startRegistries(t *testing.T) {
	t.Helper()
	for _, r := range f.registries {
		if r.Registry == nil || r.Registry.Gone() {
			r.StartRegistry(t)
		}
	}
}

// harness returns how to connect to an environment of a site.
func harness(t *testing.T, s *rig.Site, environment string, settings ...remote.Option) client.Config {
	t.Helper()
	cfg, err := remote.Registry(s.URL(), environment, s.Harness, settings...)
	rig.Must(t, err)
	t.Cleanup(cfg.Release)
	return cfg
}
