package confine

import (
	"fmt"
	"slices"

	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/sandbox"
)

// EnterBridged is EnterManaged for a command whose own variables name its proxies, on
// loopback addresses of this host: each of these addresses gets a listener, which passes
// connections on to it. It returns the environment for starting the command. A listener
// of the agent cannot be such a proxy.
func (d *Door) EnterBridged(profile sandbox.Profile, environ []string) (h *Held, rewritten []string, err error) {
	proxies, err := gate.ProxiesOf(environ)
	for _, at := range proxies.Addrs() {
		if err == nil && slices.Contains(d.AgentPorts, at.Port()) {
			err = fmt.Errorf("%v is a listener of this agent", at) // its clients may run anything
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("failed to prepare host proxy routing bridge: %w", err)
	}
	if h, err = d.enterGate(profile, Managed{}, len(proxies.Addrs())); err != nil {
		return nil, nil, err
	}
	h.gate.Bridge(proxies.Addrs())
	return h, proxies.Rewrite(h.gate.Ports()), nil
}
