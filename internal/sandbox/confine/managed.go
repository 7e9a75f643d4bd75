package confine

import (
	"errors"
	"os"

	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/sandbox"
)

// A command with a managed network has no way out except the listeners of its gate,
// behind which the agent runs a proxy (network.md 9). In namespaces it has a network
// namespace where only the loopback interface is up; init makes the listeners there
// before anything is confined, and passes them on. A supervisor connects to the
// listeners, which the agent has on this host, and announces each connection to the
// gate. Either way, one more descriptor of init leads to the gate.

// gateFD leads to the gate, if there is one.
const gateFD = leashFD + 1

// Managed says what the command gets instead of a network.
type Managed struct {
	// SOCKS5 gives the gate two listeners, the second one for SOCKS5.
	SOCKS5 bool
	// AllUnixSockets is as in [sandbox.Policy].
	AllUnixSockets bool
	// Transparent lets the command connect to any address. The caller serves what the gate holds.
	Transparent bool
}

// EnterManaged is Enter for a command whose only network is its proxy, whatever the
// profile says about the network. The proxy serves the listeners of [Held.Gate]. If the
// host cannot enforce that in any way, the error is a *[sandbox.UnenforceableError].
func (d *Door) EnterManaged(profile sandbox.Profile, m Managed) (*Held, error) {
	listeners := 1
	if m.SOCKS5 {
		listeners = 2
	}
	return d.enterGate(profile, m, listeners)
}

// enterGate enters a sandbox with a gate that has the given number of listeners.
func (d *Door) enterGate(profile sandbox.Profile, m Managed, listeners int) (*Held, error) {
	profile.Network, profile.AllUnixSockets, profile.Transparent = sandbox.NetworkManaged, m.AllUnixSockets, m.Transparent
	h, err := d.Enter(profile)
	if err != nil {
		return nil, err
	}
	if !h.command.isManaged() { // because the ceiling has no network
		h.Release()
		return nil, errNoNetwork
	}
	if h.Has(sandbox.NetNS) {
		h.gate, h.theirs, err = gate.Inside(listeners)
	} else {
		h.gate, h.theirs, err = gate.Told(listeners)
	}
	if err != nil {
		h.Release()
		return nil, err
	}
	h.command.Gate = h.gate.Ports()
	h.Layers = append(h.Layers, h.command.Backend.ProxyName())
	if m.Transparent {
		holds, err := h.gate.Hold()
		if err != nil {
			h.Release()
			return nil, err
		}
		h.holds = holds
		h.Layers = append(h.Layers, "transparent")
	}
	return h, nil
}

// Gate returns the listeners of a managed network, whose addresses are known from
// the beginning; nil if there is no such network. It is closed with the sandbox, or
// before.
func (h *Held) Gate() *gate.Gate {
	if h == nil {
		return nil
	}
	return h.gate
}

var (
	errNoNetwork = errors.New("the operator's ceiling (--sandbox-ceiling) has no network, so the command cannot have a proxy; start it without one")

	errNoGate   = errors.New("the gate of the managed network was used already")
	errConnects = errors.New("nothing is connected to from inside a managed network but by its proxy")
)

// takeGate returns the descriptor that leads to the gate, for one init.
func (h *Held) takeGate() ([]*os.File, error) {
	if h.gate == nil {
		return nil, nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.theirs == nil {
		return nil, errNoGate
	}
	files := []*os.File{h.theirs}
	if h.holds != nil {
		files = append(files, h.holds)
	}
	h.theirs, h.holds = nil, nil
	return files, nil
}

// closeGate closes the gate, and the file that leads to it.
func (h *Held) closeGate() {
	h.gate.Close()
	if files, err := h.takeGate(); err == nil {
		for _, f := range files {
			_ = f.Close()
		}
	}
}

// isManaged reports whether the command has a managed network.
func (c *Command) isManaged() bool { return c.Policy.Network == sandbox.NetworkManaged }

// openGate makes the listeners in the network namespace of this process.
func (c *config) openGate() error {
	if !c.isManaged() || !c.Backend.Has(sandbox.NetNS) {
		return nil
	}
	return gate.Serve(gateFD, c.Gate)
}

// heldFD leads to the gate for held connections. It exists only if connections are transparent.
const heldFD = gateFD + 1

// openHolder makes what holds the connections of the command; nil if none are held, or if another init
// holds them. In the network namespace of the command it also makes the sockets of the resolver.
func (c *config) openHolder(r role) (*gate.Holder, error) {
	if !c.Policy.Transparent || r == roleOuter {
		return nil, nil
	}
	h, err := gate.NewHolder(heldFD)
	if err == nil && c.Backend.Has(sandbox.NetNS) {
		err = h.ServeResolvers()
	}
	return h, err
}

// teller returns the supervisor's means to announce connections to the gate; nil without a gate.
func (c *config) teller() *gate.Teller {
	if !c.isManaged() || !c.Backend.Has(sandbox.Supervised) {
		return nil
	}
	return gate.NewTeller(gateFD, c.Gate)
}
