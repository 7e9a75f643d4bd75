package enforce

import (
	"strings"

	"github.com/execagent/execagent/sandbox"
)

// FiltersFor returns the filters of a command under the policy and the backend, in the
// order in which a thread loads them. The last one is loaded with the listener, because a
// thread can have only one, and the filters before it with [NoListener]. judged reports
// whether rules decide about every program that the command executes.
//
// This is the only place that chooses filters for commands.
func FiltersFor(b sandbox.Backend, p *sandbox.Policy, judged bool) (filters []Filter, listener Listener) {
	switch {
	case p.RestrictsNothing() && judged:
		filters = []Filter{FilterExecs}
	case !p.Confined: // also if the policy restricts nothing, though such a command needs no filter
		filters = []Filter{FilterNetwork}
	case b.Has(sandbox.Supervised):
		filters, listener = []Filter{supervised(b, p)}, AskedCalls
	case p.Network == sandbox.NetworkEnabled:
		filters, listener = []Filter{FilterEnabled}, AskedCalls
	case p.Network == sandbox.NetworkManaged && p.Transparent && p.AllUnixSockets:
		filters, listener = []Filter{FilterManagedUnixHeld}, AskedCalls
	case p.Network == sandbox.NetworkManaged && p.Transparent && len(p.Sockets) > 0:
		filters, listener = []Filter{FilterManagedSocketsHeld}, AskedCalls
	case p.Network == sandbox.NetworkManaged && p.Transparent:
		filters, listener = []Filter{FilterManagedHeld}, AskedCalls
	case p.Network == sandbox.NetworkManaged && p.AllUnixSockets:
		filters = []Filter{FilterManagedUnix}
	case p.Network == sandbox.NetworkManaged && len(p.Sockets) > 0:
		filters, listener = []Filter{FilterManagedSockets}, AskedCalls
	case p.Network == sandbox.NetworkManaged:
		filters = []Filter{FilterManaged}
	case b.Has(sandbox.MountNS) && len(p.Sockets) > 0:
		filters, listener = []Filter{FilterRestrictedSockets}, AskedCalls
	case b.Has(sandbox.MountNS):
		filters = []Filter{FilterRestricted}
	case p.FullRead:
		filters = []Filter{FilterLandlock}
	default:
		filters = []Filter{FilterHiddenPaths, FilterLandlock}
	}
	if judged {
		listener = AskedExecs
	}
	return filters, listener
}

// supervised returns the filter for processes whose calls a supervisor does at the
// level of b, without the network, with named sockets, with the network, or with a proxy. The listener of this
// filter does the calls that have a row in package calls. It also sends the signals if
// Landlock does not keep them inside.
func supervised(b sandbox.Backend, p *sandbox.Policy) Filter {
	name := Filter("supervised-" + strings.ToLower(b.Level.String()))
	switch p.Network {
	case sandbox.NetworkEnabled:
		name += "-online"
	case sandbox.NetworkManaged:
		name += "-managed"
		if p.Transparent {
			name += "-held"
		}
	case sandbox.NetworkRestricted:
		if len(p.Sockets) > 0 {
			name += "-sockets"
		}
	}
	if !b.Scoped() {
		name += "-unscoped" // with a network there is no such program, and the load fails
	}
	return name
}
