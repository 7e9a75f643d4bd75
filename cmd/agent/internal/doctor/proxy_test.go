package doctor

import (
	"net"
	"testing"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestProxiesMissing: what a way to confine a command to its proxy lacks is told, with the
// remedy. That both ways work where they can is a test of the program (doctor.txtar).
func TestProxiesMissing(t *testing.T) {
	t.Parallel()
	host := sandbox.Host{Reasons: map[sandbox.Layer]sandbox.Reason{sandbox.UserNS: {Error: "no", Remedy: "ask for it"}}}
	for i, p := range proxies(t.Context(), host, Config{}) {
		name := []string{"proxy:netns", "proxy:supervised", "transparent:netns", "transparent:supervised"}[i]
		rig.Is(t, p.Name == name && !p.OK && p.Error == "userns is missing: no" && p.Remedy == "ask for it", true, "%+v", p)
	}
}

// TestElsewhere: what arrives where nothing should is noticed.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp4", "udp4"} {
		e := rig.Value(listenElsewhere())
		rig.Is(t, e.reached(), false, "%s: something has arrived", network)
		addr := e.tcp.Addr().String()
		if network == "udp4" {
			addr = e.udp.LocalAddr().String()
		}
		conn := rig.Value(net.Dial(network, addr))
		rig.Must(t, rig.Err(conn.Write([]byte("x"))))
		if network == "tcp4" {
			_, _ = conn.Read(make([]byte, 1)) // it was accepted and closed
		}
		rig.Is(t, e.reached(), true, "%s: something has arrived", network)
		_ = conn.Close()
		e.close()
	}
}
