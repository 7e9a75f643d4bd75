package sandbox

import (
	"errors"
	"fmt"

	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// Host is what a host can enforce, found out by doing it.
type Host struct {
	// Layers are those that work, but for Landlock: ask [Host.Has].
	Layers Layers
	// Landlock is the ABI that was seen to refuse; 0 is none.
	Landlock int
	// Reasons has, for each missing layer, what failed and how to get it.
	Reasons map[Layer]Reason
}

// Has tells whether the layer works; Landlock with whatever ABI.
func (h Host) Has(l Layer) bool { return has(h.Layers, h.Landlock, l) }

// has tells of Landlock, which one number says all of, and of other layers.
func has(set Layers, abi int, l Layer) bool {
	if l == Landlock {
		return abi > 0
	}
	return set.has(l)
}

// Reason is why a layer is missing.
type Reason struct {
	Error  string // of the attempt
	Remedy string // for the operator
}

// Backend is what a process is confined by. The zero value is nothing.
type Backend struct {
	// Layers are those that are put on, but for Landlock: ask [Backend.Has].
	Layers Layers
	// Landlock is the ABI that is used; 0 is none.
	Landlock int
}

// Has tells whether the layer is put on.
func (b Backend) Has(l Layer) bool { return has(b.Layers, b.Landlock, l) }

// scopeABI is the first Landlock ABI that keeps signals and abstract UNIX
// sockets inside (landlock(7)).
const scopeABI = 6

// UnenforceableError says that the host cannot enforce a policy exactly, which
// layer it would need and how to get that.
type UnenforceableError struct {
	Layer  string // as in Backend.Names, without a version
	Reason string // why the host has none
	Remedy string // for the operator; "" if none is known
}

func (e *UnenforceableError) Error() string {
	text := fmt.Sprintf("this host cannot enforce the sandbox: %s is missing: %s", e.Layer, e.Reason)
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Names returns the names of the layers on the wire, in the order in which they
// are put on, as in sandboxLayers of process/start (sandbox.md 1). It is not nil.
func (b Backend) Names() []string {
	names := []string{}
	for _, l := range AllLayers() {
		switch {
		case !b.Has(l) || layers[l].untold:
		case l == Landlock:
			names = append(names, fmt.Sprintf("%s:%d", layers[l].wire, b.Landlock))
		default:
			names = append(names, layers[l].wire)
		}
	}
	return names
}

// Backend chooses the strongest row of sandbox.md 14.4 that the host has and
// that expresses the policy exactly. With minimumFull only namespaces will do
// where files are restricted, even if Landlock would be exact. The error is an
// *UnenforceableError.
//
//   - Files unrestricted: for a restricted network a filter and, as that does
//     not see what is opened in procfs, a Landlock domain; else nothing.
//   - Namespaces: everything. A pid namespace keeps other processes out of
//     reach; without one Landlock has to (14.3). Other processes' abstract UNIX
//     sockets are out of reach if there is a network namespace or, with the
//     network restricted, by the filter; with the network enabled Landlock has
//     to do it, and a filter that asks keeps those with a path out of reach.
//   - Landlock: where it is exact, see landlockExact. It keeps files,
//     signals and sockets, and the filter what Landlock does not know.
//
// A backend that supervises calls would be a further row, before the refusal.
func (p *Policy) Backend(h Host, minimumFull bool) (Backend, error) {
	filter := LayersOf(Seccomp)
	if p.RestrictsNothing() {
		return Backend{}, nil
	}
	if !p.Confined {
		switch {
		case !h.Has(Seccomp):
			return Backend{}, h.lacks(Seccomp, 0)
		case h.Landlock < networkABI:
			return Backend{}, h.lacks(Landlock, networkABI)
		}
		return Backend{Layers: filter, Landlock: h.Landlock}, nil
	}
	missing, incomplete := p.missingForNamespaces(h)
	if !incomplete {
		b := Backend{Layers: filter.With(UserNS, MountNS, IPCNS), Landlock: h.Landlock}
		if h.Has(PIDNS) {
			b.Layers = b.Layers.With(PIDNS)
		}
		if h.Has(NetNS) && p.Network == NetworkRestricted {
			b.Layers = b.Layers.With(NetNS)
		}
		return b, nil
	}
	if !minimumFull && h.Has(Seccomp) && h.Landlock >= scopeABI && p.landlockExact() {
		return Backend{Layers: filter, Landlock: h.Landlock}, nil
	}
	return Backend{}, h.lacks(missing, scopeABI)
}

// RestrictsNothing tells whether all may be done under the policy: it needs no layer, and what runs
// under it runs as anything else.
func (p *Policy) RestrictsNothing() bool { return !p.Confined && p.Network == NetworkEnabled }

// CheckBackend returns why nobody could enforce the policy with b, however b
// was chosen. Whoever puts the layers on asks it once more: a mistake on the
// way from [Policy.Backend] to there must not end with a command that runs with
// less.
func (p *Policy) CheckBackend(b Backend) error {
	switch {
	case !b.Has(Seccomp):
		return errors.New("sandbox: the backend has no system call filter")
	case p.RestrictsNothing():
		return errors.New("sandbox: the policy restricts nothing")
	case !p.Confined && !b.Has(Landlock):
		return errors.New("sandbox: the backend has no Landlock domain")
	case !p.Confined:
		return nil
	case !b.Has(MountNS) && !b.Has(Landlock):
		return errors.New("sandbox: the backend confines no files")
	case !b.Has(MountNS) && p.Network == NetworkEnabled:
		return errors.New("sandbox: the backend has no view of the file system, which hides the sockets of the host")
	case b.Has(MountNS) && !b.Has(UserNS):
		return errors.New("sandbox: the backend has a view of the file system without a user namespace")
	}
	return nil
}

// missingForNamespaces returns the first layer that the row of namespaces needs
// and the host has not, if there is one.
func (p *Policy) missingForNamespaces(h Host) (missing Layer, incomplete bool) {
	scopes := h.Landlock >= scopeABI
	switch {
	case !h.Has(UserNS):
		return UserNS, true
	case !h.Has(MountNS):
		return MountNS, true
	case !h.Has(IPCNS):
		return IPCNS, true
	case !h.Has(Seccomp):
		return Seccomp, true
	case !h.Has(PIDNS) && !scopes:
		return PIDNS, true
	case p.Network == NetworkEnabled && !scopes:
		return Landlock, true
	case p.Network == NetworkEnabled && !h.Has(UserNotify):
		return UserNotify, true // connections to UNIX sockets are asked for
	}
	return 0, false
}

// landlockExact tells whether Landlock, which can only add to what a parent
// directory allows, says what the policy says: nothing may be written, nothing
// is denied below what can be read. The agent's own files are an exception:
// they are left out by allowing what lies beside them, one by one, which only
// costs what comes to lie there later (PathRule). Nothing may be sent: a network
// is out of Landlock's reach but for TCP.
func (p *Policy) landlockExact() bool {
	if p.Network != NetworkRestricted {
		return false
	}
	for _, r := range p.Rules {
		switch {
		case r.Origin == Private:
		case r.Access == Write || r.Otherwise == Write:
			return false
		case r.Access == Denied || r.Otherwise == Denied:
			if r.Path != "/" && p.Access(pathname.Parent(r.Path)) >= Read {
				return false
			}
		}
	}
	for _, g := range p.Globs {
		if p.Access(g.Base) >= Read || p.Leads(g.Base) {
			return false
		}
	}
	return true
}

// lacks is the error for a layer. Of Landlock, abi is needed.
func (h Host) lacks(l Layer, abi int) error {
	reason := h.Reasons[l]
	if reason.Error == "" {
		reason.Error = "not available"
		if l == Landlock {
			reason.Error = fmt.Sprintf("ABI %d is too old, %d is needed", h.Landlock, abi)
		}
	}
	return &UnenforceableError{Layer: layers[l].wire, Reason: reason.Error, Remedy: reason.Remedy}
}
