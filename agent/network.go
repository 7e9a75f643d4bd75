package agent

import (
	"context"
	"net/netip"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// networkPlan checks a start's request for the managed network; nil: it asks for no proxy. With always,
// the connections of each process whose network is enforced are transparent.
func networkPlan(p *protocol.StartParams, always bool) (*egress.Plan, error) {
	proxy := p.NetworkProxy != nil && p.NetworkProxy.Proxy.TransparentTCP
	// The texts are those of the reference (transparent.md 1.2).
	switch {
	case proxy && p.Sandbox == nil:
		return nil, protocol.InvalidParams("transparent TCP requires a managed Linux sandbox")
	case !proxy && p.ManagedNetwork != nil && p.ManagedNetwork.TransparentTCP:
		return nil, protocol.InvalidParams("transparent TCP requires an executor-local managed proxy")
	case p.NetworkProxy == nil:
		return nil, nil
	}
	plan, err := egress.Of(p.NetworkProxy, p.ProcessID)
	if err != nil {
		return nil, protocol.InvalidParams("%v", err)
	}
	if always && p.Sandbox != nil && p.EnforceManagedNetwork {
		if !plan.SOCKS() {
			return nil, protocol.InvalidParams("transparent TCP requires managed SOCKS5")
		}
		plan.Transparent = true
	}
	return plan, nil
}

// errFree refuses commands that could reach the network without a proxy of ours, if the operator
// wants that.
var errFree = protocol.InvalidRequest("the operator of this agent requires that the network of commands is enforced " +
	"(--require-network-enforcement): the start needs a sandbox that restricts the network, or one with networkProxy and " +
	"enforceManagedNetwork; nothing was run")

// errUnixSockets refuses a proxy beside which the process may connect to every UNIX socket.
var errUnixSockets = protocol.InvalidRequest("the operator of this agent requires that the network of commands is enforced " +
	"(--require-network-enforcement), and a UNIX socket may lead to any host: leave out " +
	"networkProxy.proxy.dangerouslyAllowAllUnixSockets, or set it to false; nothing was run")

// errNamed refuses a sandbox that names UNIX sockets or devices.
var errNamed = protocol.InvalidRequest("the operator of this agent requires that the network of commands is enforced " +
	"(--require-network-enforcement), and a UNIX socket or a device may lead to any host: leave out the entries of the sandbox with the types " +
	"unix_socket and device, unixSockets and allowUnixSockets, or ask the operator for a --sandbox-ceiling that names them; nothing was run")

// leadsAside reports whether a sandbox names UNIX sockets or devices although the operator wants the network
// to be enforced, and has no ceiling. With a ceiling, those that are left are in the ceiling. A device may be a way
// to a network, as those of RDMA and macvtap are.
func (a *Agent) leadsAside(box *confine.Held) bool {
	return a.cfg.RequireNetworkEnforcement && a.cfg.SandboxCeiling == nil && box.ReachesNamed()
}

// admit judges a connection that the agent makes for a client, if the operator wants the network to be
// enforced: such a connection goes through no proxy, so the same policy is asked here.
func (a *Agent) admit(ctx context.Context, address, host, method, path string) ([]netip.AddrPort, error) {
	places, err := a.networks.Admit(ctx, address, host, method, path)
	if err != nil {
		return nil, protocol.InvalidRequest("the operator of this agent requires that the network is enforced (--require-network-enforcement): %v; nothing was sent", err)
	}
	return places, nil
}

// connect gives the process its network. It comes after confine, because it depends on the network
// that the sandbox leaves.
func (l *launch) connect(context.Context) (err error) {
	a := l.session.agent
	bridged := l.enforced() && l.proxy == nil // to the proxy that the client named
	if a.cfg.RequireNetworkEnforcement && !l.params.Builtin && (l.free || bridged) {
		return errFree
	}
	if a.cfg.RequireNetworkEnforcement && l.enforced() && l.proxy != nil && l.proxy.AllUnixSockets() {
		return errUnixSockets
	}
	if a.leadsAside(l.box) {
		return errNamed
	}
	if l.proxy == nil {
		l.spec.Env = a.networks.Hide(l.spec.Env)
		return nil
	}
	if l.box != nil && l.box.Refusal() != nil {
		return nil
	}
	start := egress.Start{Environ: l.spec.Env, Gate: l.box.Gate(), OnHost: true, Enforced: l.enforced()}
	if start.Gate != nil {
		start.OnHost = !l.box.Has(sandbox.NetNS)
	} else if start.Gate, err = gate.Owned(l.proxy.Listeners()); err != nil {
		return err
	}
	client := egress.Client{Owner: l.session.owner, Session: l.session.id, Ask: l.ask, Reports: &l.session.reports, Noted: l.noteHost}
	if l.network, err = a.networks.Open(l.proxy, start, client); err != nil {
		return err
	}
	l.spec.Env = l.network.Environ()
	return nil
}

// noteHost notes what the proxy has refused.
func (l *launch) noteHost(r netproxy.Report) {
	l.session.agent.metrics.RefusedBy(refusals.Network, 1)
	l.refused.add(egress.Refused(r))
}

// enforced reports whether the sandbox must leave the process a proxy as its only way to the
// network. Under a ceiling without a network it must not leave even that.
func (l *launch) enforced() bool {
	return l.params.Sandbox != nil && !l.session.agent.cfg.offline() && (l.params.EnforceManagedNetwork || l.proxy != nil && l.proxy.Transparent)
}
