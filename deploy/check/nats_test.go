package check

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	corev1 "k8s.io/api/core/v1"
)

// TestNATS starts three servers with the configuration that is shipped, and a registry with the
// variables of its manifest: it becomes ready. Without the password nobody gets in.
func TestNATS(t *testing.T) {
	t.Parallel()
	const password = "p0123456789abcdef0123456789abcdef0123456789abcdef"
	documents, _, err := helm(loadChart(t), tools(nil))
	must(t, err)
	r := decode(t, "chart", plain(documents))
	conf := all[*corev1.ConfigMap](r)["nats"].Data["nats.conf"]
	dir := t.TempDir()
	var clients, routes [3]string
	for i := range clients {
		clients[i], routes[i] = free(t), free(t)
	}
	var routed []string // what the variables of the manifest put in for the routes
	for _, e := range workloads(r)["nats"].pod.Spec.Containers[0].Env {
		if strings.HasPrefix(e.Name, "NATS_ROUTE_") {
			value := strings.ReplaceAll(e.Value, "$(NATS_PASSWORD)", password)
			for i, route := range routes {
				value = strings.ReplaceAll(value, fmt.Sprintf("nats-%d.nats:6222", i), route)
			}
			routed = append(routed, "$"+e.Name, `"`+value+`"`)
		}
	}
	for i := range clients {
		file := filepath.Join(dir, fmt.Sprintf("nats-%d.conf", i))
		text := strings.NewReplacer(append(routed,
			"$POD_NAME", fmt.Sprintf("nats-%d", i), "$NATS_PASSWORD", password,
			"0.0.0.0:4222", clients[i], "0.0.0.0:6222", routes[i], "0.0.0.0:8222", free(t), `"/data"`, `"`+filepath.Join(dir, fmt.Sprint(i))+`"`,
		)...).Replace(conf)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		options, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		options.NoSigs = true
		startNATS(t, options)
	}

	metrics := free(t)
	user := url.UserPassword("registry", password)
	start := func(user *url.Userinfo, listen string) (ended <-chan error) {
		environ := []string{"HOME=" + dir}
		for _, e := range workloads(r)["registry"].pod.Spec.Containers[0].Env {
			value := e.Value
			switch e.Name {
			case "REGISTRY_LISTEN":
				value = "127.0.0.1:0"
			case "REGISTRY_METRICS_LISTEN":
				value = listen
			case "REGISTRY_NATS_URL":
				value = (&url.URL{Scheme: "nats", User: user, Host: clients[0]}).String()
			}
			environ = append(environ, e.Name+"="+value)
		}
		return launch(t, dir, environ, "registry", "serve")
	}
	// A server without the password is none of them.
	address := value(url.Parse("nats://" + routes[0]))
	stranger := startNATS(t, &server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "registry", Host: "127.0.0.1", Port: -1}, Routes: []*url.URL{address},
	})

	start(user, metrics)
	answers(t, "http://"+metrics+"/readyz")
	not(t, stranger.NumRoutes() != 0, "a server without the password has %d routes", stranger.NumRoutes())
	not(t, <-start(url.UserPassword("registry", "wrong"), free(t)) == nil, "a registry with a wrong password has served")
}

// startNATS starts a server until the test ends.
func startNATS(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	s := value(server.NewServer(options))
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	return s
}
