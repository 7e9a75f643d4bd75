package check

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	corev1 "k8s.io/api/core/v1"
)

// TestNATS starts three servers with the configuration that is shipped, and a registry with the
// variables of its manifest: it becomes ready. Without the password nobody gets in.
func TestNATS(t *testing.T) {
	t.Parallel()
	const password = "p0123456789abcdef0123456789abcdef0123456789abcdef"
	documents, _, err := helm(loadChart(t), tools(nil))
	if err != nil {
		t.Fatal(err)
	}
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
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		options, err := server.ProcessConfigFile(file)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		options.NoSigs = true
		s, err := server.NewServer(options)
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
	}

	metrics := free(t)
	user := url.UserPassword("registry", password)
	start := func(user *url.Userinfo, listen string) *exec.Cmd {
		file, err := filepath.Abs(program("registry"))
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), file, "serve")
		cmd.Env = []string{"HOME=" + dir}
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
			cmd.Env = append(cmd.Env, e.Name+"="+value)
		}
		cmd.Stderr = t.Output()
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = time.Minute
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	// A server without the password is none of them.
	address, err := url.Parse("nats://" + routes[0])
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true,
		Cluster: server.ClusterOpts{Name: "registry", Host: "127.0.0.1", Port: -1}, Routes: []*url.URL{address},
	})
	if err != nil {
		t.Fatal(err)
	}
	stranger.Start()
	t.Cleanup(func() {
		stranger.Shutdown()
		stranger.WaitForShutdown()
	})

	serving := start(user, metrics)
	t.Cleanup(func() { _ = serving.Wait() }) // it is interrupted when the test ends
	answers(t, "http://"+metrics+"/readyz")
	if n := stranger.NumRoutes(); n != 0 {
		t.Errorf("a server without the password has %d routes", n)
	}
	if err := start(url.UserPassword("registry", "wrong"), free(t)).Wait(); err == nil {
		t.Error("a registry with a wrong password has served")
	}
}
