package sandbox

import (
	"fmt"

	"github.com/execagent/execagent/sandbox/internal/pathname"
)

// Host is what a host can enforce, found out by doing it.
type Host struct {
	UserNS  bool // a user namespace with our own ids mapped
	MountNS bool // a new root with read-only and writable mounts, pivoted to
	PIDNS   bool // a pid namespace with a fresh procfs in it
	IPCNS   bool
	NetNS   bool
	// Landlock is the ABI that was seen to refuse; 0 is none.
	Landlock int
	Seccomp  bool
	// UserNotify is a filter that asks a listener, and waits for its answer
	// where only what kills interrupts (Linux 5.19).
	UserNotify bool
	// Reasons has, for each missing layer (by the name of its field), what
	// failed and how to get it.
	Reasons map[string]Reason
}

// Reason is why a layer is missing.
type Reason struct {
	Error  string // of the attempt
	Remedy string // for the operator
}

// Backend is the set of layers that a process is confined by. The zero value
// is none.
type Backend struct {
	UserNS, MountNS, PIDNS, IPCNS, NetNS bool
	Landlock                             int
	Seccomp                              bool
}

// scopeABI is the first Landlock ABI that keeps signals and abstract UNIX
// sockets inside (landlock(7)).
const scopeABI = 6

// UnenforceableError says that the host cannot enforce a policy exactly, which
// layer it would need and how to get that.
type UnenforceableError struct {
	Layer  string // as in Backend.Layers, without a version
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

// Layers names the layers as the wire does (sandbox.md 1), in the order in which they
// are put on. It is not nil.
func (b Backend) Layers() []string {
	layers := []string{}
	for _, l := range []struct {
		name string
		has  bool
	}{
		{"userns", b.UserNS},
		{"mountns", b.MountNS},
		{"pidns", b.PIDNS},
		{"netns", b.NetNS},
		{fmt.Sprintf("landlock:%d", b.Landlock), b.Landlock > 0},
		{"seccomp", b.Seccomp},
	} {
		if l.has {
			layers = append(layers, l.name)
		}
	}
	return layers
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
	if !p.Confined {
		switch {
		case p.Network == NetworkEnabled:
			return Backend{}, nil
		case !h.Seccomp:
			return Backend{}, h.lacks("Seccomp", 0)
		case h.Landlock < networkABI:
			return Backend{}, h.lacks("Landlock", networkABI)
		}
		return Backend{Landlock: h.Landlock, Seccomp: true}, nil
	}
	missing := p.missingForNamespaces(h)
	if missing == "" {
		return Backend{
			UserNS: true, MountNS: true, IPCNS: true, PIDNS: h.PIDNS,
			NetNS:    h.NetNS && p.Network == NetworkRestricted,
			Landlock: h.Landlock, Seccomp: true,
		}, nil
	}
	if !minimumFull && h.Seccomp && h.Landlock >= scopeABI && p.landlockExact() {
		return Backend{Landlock: h.Landlock, Seccomp: true}, nil
	}
	return Backend{}, h.lacks(missing, scopeABI)
}

// missingForNamespaces names the first field of Host that the row of
// namespaces needs; "" if there is all.
func (p *Policy) missingForNamespaces(h Host) string {
	scopes := h.Landlock >= scopeABI
	switch {
	case !h.UserNS:
		return "UserNS"
	case !h.MountNS:
		return "MountNS"
	case !h.IPCNS:
		return "IPCNS"
	case !h.Seccomp:
		return "Seccomp"
	case !h.PIDNS && !scopes:
		return "PIDNS"
	case p.Network == NetworkEnabled && !scopes:
		return "Landlock"
	case p.Network == NetworkEnabled && !h.UserNotify:
		return "UserNotify" // connections to UNIX sockets are asked for
	}
	return ""
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

// layerNames are the words of the wire for the fields of Host.
var layerNames = map[string]string{
	"UserNS": "userns", "MountNS": "mountns", "PIDNS": "pidns", "IPCNS": "ipcns",
	"NetNS": "netns", "Landlock": "landlock", "Seccomp": "seccomp", "UserNotify": "seccomp",
}

// lacks is the error for a field of Host. Of Landlock, abi is needed.
func (h Host) lacks(field string, abi int) error {
	reason := h.Reasons[field]
	if reason.Error == "" {
		reason.Error = "not available"
		if field == "Landlock" {
			reason.Error = fmt.Sprintf("ABI %d is too old, %d is needed", h.Landlock, abi)
		}
	}
	return &UnenforceableError{Layer: layerNames[field], Reason: reason.Error, Remedy: reason.Remedy}
}
