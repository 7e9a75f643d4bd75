package registry

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/store/storetest"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// startCluster starts NATS servers with JetStream that know each other.
func startCluster(t *testing.T, n int) (servers []*server.Server, urls string) {
	t.Helper()
	var routes []*url.URL
	ports := make([]int, n)
	// Each server has to be told the ports of the others before those are started.
	for i := range n {
		address := rig.FreeAddress(t)
		_, port, _ := net.SplitHostPort(address)
		ports[i], _ = strconv.Atoi(port)
		routes = append(routes, &url.URL{Scheme: "nats", Host: address})
	}
	var list []string
	for i := range n {
		s := rig.Value(server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("n%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true,
			JetStream: true, StoreDir: t.TempDir(),
			Cluster: server.ClusterOpts{Name: "test", Host: "127.0.0.1", Port: ports[i]}, Routes: routes,
		}))
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

// TestCluster: when one of three NATS servers goes, the store works again after a while,
// with all that was in it.
func TestCluster(t *testing.T) {
	rig.Tier(t, rig.Merge) // an election takes seconds
	t.Parallel()
	servers, urls := startCluster(t, 3)
	ctx := t.Context()
	st := rig.Value(store.Open(ctx, store.Config{URL: urls, Replicas: 3}))
	defer st.Close()
	nc := storetest.Connect(t, urls)
	for _, name := range []string{"keys", "identities", "registrations", "presence", "nodes", "secrets", "replay", "health"} {
		kv := storetest.Bucket(t, nc, name)
		status := rig.Value(kv.Status(ctx))
		rig.Is(t, status.Config().Replicas, 3, "replicas of %s", kv.Bucket())
	}
	nc.Close()
	s := startServer(t, Config{Store: st})
	executor, _ := createKey(t, st, ticket.Executor, "*", store.Limits{})
	harness, _ := createKey(t, st, ticket.Harness, "*", store.Limits{})
	id, _ := s.mustRegister(t, executor, "env", storetest.Key(t))
	s.goOnline(t, "env", id)

	for _, server := range servers {
		if server.NumClients() > 0 { // only the store is connected
			server.Shutdown()
			server.WaitForShutdown()
			break
		}
	}
	for _, tt := range []struct {
		key, path string
		body      any
		wantCode  string // while the cluster does not answer
	}{
		{harness, "env/connect", wire.ConnectRequest{HarnessPublicKey: storetest.Key(t)}, codeUnavailable},
		{executor, "env-2/register", registerBody(storetest.Key(t)), wire.CodeAuthUnavailable},
	} {
		for started := time.Now(); ; {
			status, code, answer := s.post(t, "Bearer "+tt.key, wire.PathPrefix+tt.path, tt.body)
			if status == http.StatusOK {
				t.Logf("%s works again after %v", tt.path, time.Since(started))
				break
			}
			if code != tt.wantCode || time.Since(started) > soon {
				t.Fatalf("%s after %v: %d %s", tt.path, time.Since(started), status, answer)
			}
		}
	}
}
