package confine

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

// TestBridged: a client's own proxies on this host are reached by way of the gate, and
// nothing else is (network.md 9; L18).
func TestBridged(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, layer string, door *Door) {
		root := t.TempDir()
		first, second, other := port(greeter(t, "tcp4", "127.0.0.1:0")), port(greeter(t, "tcp6", "[::1]:0")), port(greeter(t, "tcp4", "127.0.0.1:0"))
		environ := []string{
			"A=b", fmt.Sprintf("HTTP_PROXY=http://127.0.0.1:%d", first), fmt.Sprintf("http_proxy=http://localhost:%d/x", first),
			fmt.Sprintf("all_proxy=socks5h://[::1]:%d", second), "NO_PROXY=x",
		}
		held, rewritten, err := door.EnterBridged(managedProfile(root), environ)
		rig.Must(t, err)
		t.Cleanup(held.Release)
		rig.Is(t, held.Layers[len(held.Layers)-1], layer, "the last layer")
		ports := held.Gate().Ports()
		want := []string{
			"A=b", fmt.Sprintf("HTTP_PROXY=http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http_proxy=http://127.0.0.1:%d/x", ports[0]),
			fmt.Sprintf("all_proxy=socks5h://127.0.0.1:%d", ports[1]), "NO_PROXY=x",
		}
		rig.Same(t, "rewritten", want, rewritten)
		a := puppetIn(t, held, root)
		for port, want := range map[int]string{int(ports[0]): "ok hello", int(ports[1]): "ok hello", first: "ECONNREFUSED", other: "ECONNREFUSED"} {
			a.want(want, "tcp", port)
		}
	})
}

// TestBridgedRefused: without proxies of this host nothing is run, and none of them is the
// agent.
func TestBridgedRefused(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		door.AgentPorts = []uint16{4711}
		const begins = "failed to prepare host proxy routing bridge: "
		for variable, want := range map[string]string{
			"NO_PROXY=x":                             begins + "managed proxy mode requires proxy environment variables",
			"HTTP_PROXY=http://example.org:3128":     begins + "managed proxy mode requires parseable loopback proxy endpoints",
			"HTTP_PROXY=garbage":                     begins + "managed proxy mode requires parseable loopback proxy endpoints",
			"HTTP_PROXY=http://127.0.0.1:4711":       begins + "127.0.0.1:4711 is a listener of this agent",
			"https_proxy=socks5://user@[::1]:4711/x": begins + "[::1]:4711 is a listener of this agent",
		} {
			_, _, err := door.EnterBridged(managedProfile(t.TempDir()), []string{variable})
			rig.Is(t, fmt.Sprint(err), want, "%s", variable)
		}
	})
}

// TestGateOnce: a gate is for one command, and for no connection of the agent's own.
func TestGateOnce(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		root := t.TempDir()
		held := enterManaged(t, door, managedProfile(root), Managed{})
		rig.Is(t, rig.Err(held.Connect(Endpoint{Network: "tcp", Target: "127.0.0.1:1"})) != nil, true, "no connection from inside")
		puppetIn(t, held, root)
		second := startHeld(t, held, procs.Spec{Argv: []string{"true"}, Dir: root, Env: []string{"PATH=/usr/bin:/bin"}})
		out, code := second.end()
		rig.Is(t, code == setupFailed && strings.Contains(out, "sandbox: "), true, "a second command: code %d, %q", code, out)
		held.Release()
		held.Release()
		rig.Is(t, rig.Err(held.Gate().HTTP().Accept()) != nil, true, "no connection after the release")
		unused := enterManaged(t, door, managedProfile(root), Managed{SOCKS5: true})
		unused.Release()
	})
}
