package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// curlCode prints the status of a request that a command makes by way of its proxy.
const curlCode = `curl -s -m 60 -o /dev/null -w '%%{http_code}' http://%s/`

// TestNetworkPolicy: the operator's file is the ceiling of every client; SIGHUP has it read again,
// and a file with a mistake changes nothing. Commands that are nobody's are refused.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	destination := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer destination.Close()
	place := strings.TrimPrefix(destination.URL, "http://")
	file := filepath.Join(t.TempDir(), "policy.toml")
	write := func(text string) {
		t.Helper()
		replace(t, file, []byte(text))
	}
	write(`allow = ["127.0.0.1"]`)
	cmd := exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--network-policy", file, "--require-network-enforcement")
	agent := rig.Start(t, cmd)
	c := dialed(t, agent.Line(t))
	script := func(text string) string {
		t.Helper()
		p, err := c.Spawn(rig.Context(t), client.Spec{
			Argv: []string{"/bin/sh", "-c", text}, Dir: "/", Env: []string{"PATH=/usr/bin:/bin"},
			Sandbox: readOnly(),
			NetworkProxy: &protocol.NetworkProxy{Proxy: protocol.ProxyParams{
				Enabled: true, EnableSocks5: true, Mode: protocol.ProxyFull, Domains: map[string]string{"127.0.0.1": protocol.DomainAllow}}},
		})
		rig.Must(t, err)
		if answer := p.Started(); answer.Network == protocol.NetworkAdvisory || !slices.ContainsFunc(answer.SandboxLayers, isProxyLayer) {
			t.Errorf("nothing enforces the network: %+v", answer)
		}
		var out strings.Builder
		rig.Must(t, rig.Err(p.CopyOutput(rig.Context(t), &out, &out)))
		return out.String()
	}
	run := func() string {
		t.Helper()
		return script(fmt.Sprintf(curlCode, place))
	}
	hangUp := func(text string, says string) {
		t.Helper()
		write(text)
		before := strings.Count(agent.Printed.String(), says)
		rig.Must(t, agent.Process.Signal(syscall.SIGHUP))
		agent.Says(t, says, before+1)
	}
	rig.Is(t, run(), "200", "allowed")
	hangUp(`deny = ["127.0.0.1"]`, `changes="allow -127.0.0.1; deny +127.0.0.1"`)
	rig.Is(t, run(), "403", "after SIGHUP")
	hangUp("allow = [\"127.0.0.1\"]\nalow = 1", file+":2: unknown key alow")
	rig.Is(t, run(), "403", "after a mistake")
	hangUp(`allow = ["127.0.0.1"]`, `changes="allow +127.0.0.1; deny -127.0.0.1"`)
	rig.Is(t, run(), "200", "allowed again")
	lacks(t, script("cat "+file), "allow")
	_, err := c.Start(rig.Context(t), protocol.StartParams{Argv: []string{"/bin/true"}, Cwd: protocol.NewPathURI("/")})
	has(t, fmt.Sprint(err), "--require-network-enforcement")
}

func isProxyLayer(layer string) bool { return strings.HasPrefix(layer, "proxy:") }

// TestNetworkPolicyMistake: an agent does not start with a policy that it cannot read.
func TestNetworkPolicyMistake(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "policy.toml")
	rig.Must(t, os.WriteFile(file, []byte("allow = [\n  \"a{b\"\n]\n"), 0o600))
	agent := rig.Start(t, exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0", "--network-policy", file))
	rig.Is(t, agent.Exit(t), 1, "exit code")
	has(t, agent.Printed.String(), "agent: --network-policy: "+file+":1: allow: unsupported domain pattern syntax: a{b")
}

// TestSandboxNetwork: a user's own command reaches what the flag names, and nothing else, with
// namespaces and without; what it has reached is told in the end.
func TestSandboxNetwork(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"curl", "bash"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skip(err)
		}
	}
	var other atomic.Int64
	destination := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/direct" {
			other.Add(1)
		}
		_, _ = io.WriteString(w, "here")
	}))
	t.Cleanup(destination.Close)
	place := strings.TrimPrefix(destination.URL, "http://")
	host, port, err := net.SplitHostPort(place)
	rig.Must(t, err)
	script := fmt.Sprintf(`
		curl -s -m 60 http://%[1]s/; echo
		curl -s -m 60 -o /dev/null -o /dev/null -w '%%{http_code}\n' http://other.invalid/ http://denied.invalid/
		curl -s -m 60 --noproxy '*' http://%[1]s/direct || echo shut
		(exec 3<>/dev/tcp/%[2]s/%[3]s) 2>/dev/null || echo shut`, place, host, port)
	eachMeans(t, func(t *testing.T, launch []string) {
		argv := append(launch, rig.Agent(t), "sandbox", "--network", "allow="+place, "--network", "deny=denied.invalid", "--", "bash", "-c", script)
		cmd := rig.Leash(rig.Command(t, argv[0], argv[1:]...))
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		cmd.SysProcAttr.Setsid = true // without a terminal
		want := "agent: network: reached " + place + "\n" +
			"agent: network: refused denied.invalid:80: denied\nagent: network: refused other.invalid:80: not allowed\n"
		rig.Is(t, finish(t, cmd), result{"here\n403\n403\nshut\nshut\n", want, 0}, "agent sandbox")
	})
	t.Cleanup(func() { rig.Is(t, other.Load(), 0, "how often the destination was reached past the proxy") })
}
