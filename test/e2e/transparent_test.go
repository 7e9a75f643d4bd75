package e2e

import (
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestTransparent: programs that know of no proxy reach the names that are allowed, with namespaces and
// without, get the errors of their destinations, and no other name leaves the host.
func TestTransparent(t *testing.T) {
	t.Parallel()
	if launcher, inside := os.LookupEnv("E2E_TRANSPARENT"); inside {
		connectAnywhere(t, launcher)
		return
	}
	need(t, missing, "unshare", "mount", "ip", "bash", "python3")
	if _, err := os.Stat("/etc/resolv.conf"); err != nil {
		missing(t, err)
	}
	tools := t.TempDir()
	conf := filepath.Join(tools, "resolv.conf")
	rig.Must(t, os.WriteFile(conf, []byte("search pod.svc.cluster.test cluster.test\noptions ndots:5 timeout:20\nnameserver "+rig.PublicAddress+"\n"), 0o644))
	for enforcement, launch := range map[string]string{"namespaces": "", "supervised": rig.Launcher(t, tools)} {
		t.Run(enforcement, func(t *testing.T) {
			t.Parallel()
			rig.InNetwork(t, "TestTransparent", "E2E_TRANSPARENT="+launch, conf, "/etc/resolv.conf")
		})
	}
}

// connectAnywhere runs the script in namespaces that have the servers.
func connectAnywhere(t *testing.T, launcher string) {
	names := rig.ServeNames(t, map[string][4]byte{"allowed.test": {20, 0, 0, 1}, "other.test": {20, 0, 0, 1}, "api.example.com": {20, 0, 0, 1}})
	echo := rig.Listen(t, "tcp", rig.PublicAddress+":0", func(conn net.Conn) {
		b := make([]byte, 100)
		n, err := conn.Read(b)
		if err == nil {
			_, _ = conn.Write(b[:n])
		}
	})
	listener := rig.Value(net.Listen("tcp", rig.PublicAddress+":0"))
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "page\n")
	})}}
	server.Start()
	t.Cleanup(server.Close)
	api := &httptest.Server{Listener: rig.Value(net.Listen("tcp", rig.PublicAddress+":443")), Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Method+" "+r.URL.Path) })}}
	api.StartTLS()
	t.Cleanup(api.Close)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	rig.Must(t, os.WriteFile(roots, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: api.Certificate().Raw}), 0o644))
	const closed = "9" // nobody listens there in this network, and the kernel gives it to nobody
	port := func(addr net.Addr) string { return fmt.Sprint(addr.(*net.TCPAddr).Port) }
	parts := rig.Sections(t, "testdata/programs/transparent")
	script := strings.NewReplacer("ECHO", port(echo), "CLOSED", closed, "PAGE", port(listener.Addr())).Replace(parts[0].Text)

	argv := []string{rig.Agent(t), "sandbox", "--network", "allow=allowed.test,*.allowed.test,GET api.example.com/open/**", "--", "bash", "-c", script}
	if launcher != "" {
		argv = append([]string{launcher, "--"}, argv...)
	}
	cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH"), "HOME=/var/empty", "SSL_CERT_FILE=" + roots}
	cmd.SysProcAttr.Setsid = true // without a terminal
	r := finish(t, cmd)
	rig.Is(t, r.stdout, parts[1].Text, "what programs print; standard error is\n%s", r.stderr)
	has(t, r.stderr, "agent: network: reached allowed.test:"+port(echo), "agent: network: refused other.test:"+port(echo)+": not allowed",
		"agent: network: refused 20.0.0.1:"+port(echo)+": not allowed", "agent: network: no connection to allowed.test:"+closed+": connection refused",
		"agent: network: reached api.example.com:443", "agent: network: refused POST https://api.example.com/open/x (2 times): request not allowed")
	for name := range names() {
		if strings.Contains(name, "other") || strings.Contains(name, "secret") || strings.Contains(name, "cluster.test") && !strings.Contains(name, "allowed.test") && !strings.Contains(name, "api.example.com") {
			t.Errorf("the name server was asked for %q", name)
		}
	}
}
