package agent

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestOpenListener: a listener without authentication that is not on a loopback
// address may be reached in ways that the agent cannot know of. Beside such a
// listener a confined command with the network is refused, and no other command.
func TestOpenListener(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	network := func(kind string) object { return managed(kind, special("root", "read")) }
	for _, tt := range []struct {
		listening []string // "open" at an address, or not
		refused   bool
	}{
		{nil, false},
		{[]string{"127.0.0.1:7000 open"}, false},
		{[]string{"[::1]:7000 open", "[::ffff:127.0.0.1]:7000 open"}, false},
		{[]string{"0.0.0.0:7000"}, false},
		{[]string{"0.0.0.0:7000 open"}, true},
		{[]string{"[::]:7000 open"}, true},
		{[]string{"127.0.0.1:7001 open", "192.0.2.1:7000 open"}, true},
	} {
		var cfg Config
		cfg.StateDir = t.TempDir() + "/state"
		for _, l := range tt.listening {
			address, open := strings.CutSuffix(l, " open")
			cfg.Listening = append(cfg.Listening, Listening{Addr: netip.MustParseAddrPort(address), Authenticated: !open})
		}
		c := newHarness(t, cfg).attach("")
		o := c.runIn("network", "echo ran", b.repo, network("enabled"))
		refused := o.exit == 101 && strings.Contains(o.output, "--ws-auth") && !strings.Contains(o.output, "ran")
		rig.Is(t, refused, tt.refused, "%v: refused, with exit %d, %q", tt.listening, o.exit, o.output)
		c.runIn("offline", "echo ran", b.repo, network("restricted")).wants(t, "without the network", 0, "ran")
		var started protocol.StartResult
		c.must("process/start", object{"processId": "free", "argv": []string{"true"}, "cwd": uri("/"), "env": object{}, "tty": false, "arg0": nil}, &started)
		rig.Is(t, c.awaitNote("process/exited", "free").exit, 0, "%v, without a sandbox: exit", tt.listening)
	}
}

// TestOpenPorts: no process reaches the port of a listener that is open to everybody, at whatever
// address it may be published.
func TestOpenPorts(t *testing.T) {
	t.Parallel()
	a := New(Config{Listening: []Listening{
		{Addr: netip.MustParseAddrPort("0.0.0.0:7000")}, {Addr: netip.MustParseAddrPort("0.0.0.0:7001"), Authenticated: true},
		{Addr: netip.MustParseAddrPort("127.0.0.1:7002")}, {Path: "/run/agent.sock"},
	}})
	defer a.Close()
	ports, paths := portsAndPaths(a.cfg.Listening)
	rig.Same(t, "ports", []uint16{7000, 7001, 7002}, ports)
	rig.Same(t, "paths", []string{"/run/agent.sock"}, paths)
	rig.Same(t, "open ports", []uint16{7000}, a.networks.OpenPorts)
}
