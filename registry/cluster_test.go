package registry

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/execagent/execagent/registry/ticket"
	"github.com/execagent/execagent/registry/wire"
)

// startCluster starts NATS servers with JetStream that know each other.
func startCluster(t *testing.T, n int) (servers []*server.Server, urls string) {
	t.Helper()
	var routes []*url.URL
	ports := make([]int, n)
	for i := range n { // each has to be told of the others before they have ports
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
		routes = append(routes, &url.URL{Scheme: "nats", Host: l.Addr().String()})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	var list []string
	for i := range n {
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(soon) {
			t.Fatal("a NATS server is not ready")
		}
		servers = append(servers, s)
		list = append(list, s.ClientURL())
	}
	return servers, strings.Join(list, ",")
}

// TestCluster: one of three NATS servers may go, and the store is as it was.
func TestCluster(t *testing.T) {
	t.Parallel()
	servers, urls := startCluster(t, 3)
	ctx := t.Context()
	st, err := OpenStore(ctx, StoreConfig{URL: urls, Replicas: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	for _, kv := range []jetstream.KeyValue{st.keys, st.identities, st.registrations, st.presence, st.nodes, st.secrets, st.replay, st.health} {
		status, err := kv.Status(ctx)
		if err != nil || status.Config().Replicas != 3 {
			t.Errorf("%s: %v, %v", kv.Bucket(), status, err)
		}
	}
	s := startServer(t, Config{Store: st})
	executor, _ := createKey(t, st, ticket.Executor, "*", Limits{})
	harness, _ := createKey(t, st, ticket.Harness, "*", Limits{})
	id, _ := s.mustRegister(t, executor, "env", testKey(t))
	s.goOnline(t, "env", id)

	connected := st.conn().ConnectedServerName()
	for _, server := range servers {
		if server.Name() == connected {
			server.Shutdown()
			server.WaitForShutdown()
		}
	}
	for _, tt := range []struct {
		key, path string
		body      any
		wantCode  string // while it is away
	}{
		{harness, "env/connect", wire.ConnectRequest{HarnessPublicKey: testKey(t)}, codeUnavailable},
		{executor, "env-2/register", registerBody(testKey(t)), wire.CodeAuthUnavailable},
	} {
		for started := time.Now(); ; {
			status, code, answer := s.post(t, "Bearer "+tt.key, wire.PathPrefix+tt.path, tt.body)
			if status == http.StatusOK {
				t.Logf("%s works again after %v", tt.path, time.Since(started))
				break
			}
			if code != tt.wantCode || time.Since(started) > 30*time.Second {
				t.Fatalf("%s after %v: %d %s", tt.path, time.Since(started), status, answer)
			}
		}
	}
}
