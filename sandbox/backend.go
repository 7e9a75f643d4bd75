package sandbox

import (
	"errors"
	"fmt"
	"slices"

	"github.com/execagent/execagent/internal/sandbox/pathname"
)

// Host says which layers work on a host. A probe found that out by using each
// of them.
type Host struct {
	// Layers has the layers that work, without Landlock, which has the next
	// field: [Host.Has] looks at both.
	Layers Layers
	// Landlock is the ABI with which a probe saw Landlock refuse something; 0:
	// Landlock does not work.
	Landlock int
	// Reasons has, for each missing layer, what failed and how to get it.
	Reasons map[Layer]Reason
}

// Has reports whether the layer works; for Landlock, with any ABI.
func (h Host) Has(l Layer) bool { return has(h.Layers, h.Landlock, l) }

// has reports whether l is there: Landlock if it has an ABI, any other layer if
// it is in the set.
func has(set Layers, abi int, l Layer) bool {
	if l == Landlock {
		return abi > 0
	}
	return set.has(l)
}

// Reason is the reason why a layer is missing.
type Reason struct {
	Error  string // of the attempt
	Remedy string // for the operator
}

// Backend is the set of layers that confine a process. The zero value has none.
type Backend struct {
	// Layers has the layers that are put on, without Landlock, which has the
	// next field: [Backend.Has] looks at both.
	Layers Layers
	// Landlock is the ABI that is used; 0 is none.
	Landlock int
	// Level is the level of the layer [Supervised]; NoLevel if that layer is not put on.
	Level Level
}

// Has reports whether the layer is put on.
func (b Backend) Has(l Layer) bool { return has(b.Layers, b.Landlock, l) }

// Scoped reports whether a Landlock domain keeps signals and abstract UNIX
// sockets inside.
func (b Backend) Scoped() bool { return b.Landlock >= scopeABI }

// scopeABI is the first Landlock ABI that keeps signals and abstract UNIX
// sockets inside (landlock(7)).
const scopeABI = 6

// UnenforceableError says that the host cannot enforce a policy exactly, and
// names the missing layer and the way to get it.
type UnenforceableError struct {
	Layer  string // as in Backend.Names, without a version
	Reason string // why the host has none
	Remedy string // for the operator; "" if none is known
}

// Error returns all fields in one line.
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
		case l == Supervised:
			names = append(names, fmt.Sprintf("%s:%s", layers[l].wire, b.Level))
		case l == PIDNS && !b.Has(Procfs):
			names = append(names, layers[l].wire+":shared")
		default:
			names = append(names, layers[l].wire)
		}
	}
	return names
}

// ProxyName returns the name on the wire of the mechanism that keeps a process
// with [NetworkManaged] from everything except its proxy: one more name for
// [Backend.Names].
func (b Backend) ProxyName() string {
	if b.Has(NetNS) {
		return "proxy:netns"
	}
	return "proxy:supervised"
}

// Operator has the requirements of a host's operator. The zero value accepts
// whatever is exact.
type Operator struct {
	// RequireNamespaces refuses a policy that restricts files if there are no
	// namespaces, even if a supervisor or Landlock would be exact.
	RequireNamespaces bool
	// VisibleMetadata chooses [LevelReads] instead of [LevelMetadata]. A command
	// can then learn whether denied files exist, their size and their times, but
	// looks at files at full speed.
	VisibleMetadata bool
	// InheritPIDs gives confined commands [Policy.SharesPIDs].
	InheritPIDs bool
}

// Limits are resource limits of each process of a command, soft and hard
// (setrlimit(2)). Zero leaves a limit as the command inherits it. No limit is
// ever raised above the inherited one.
type Limits struct {
	Processes    uint64 // that this user may have in total, including threads
	AddressSpace uint64 // in bytes
	CPUSeconds   uint64 // of processor time
	FileSize     uint64 // of each file that is written, in bytes
}

// level returns the level of a supervisor for the policy.
func (o Operator) level(p *Policy) Level {
	if level := p.level(); level < LevelMetadata || !o.VisibleMetadata {
		return level
	}
	return LevelReads
}

// Backend chooses the strongest row of sandbox.md 14.4 whose layers the host
// has, that expresses the policy exactly, and that the operator accepts. The
// error is an *UnenforceableError. The rows are:
//
//   - Files are unrestricted. With the network enabled nothing is needed. With
//     the network restricted, a filter removes it; a Landlock domain covers
//     files of procfs, which the filter cannot see.
//   - Namespaces, which can express every policy. A pid namespace with a fresh
//     procfs keeps other processes out of reach, unless the policy shares the pid
//     namespace of the host. If the host refuses a fresh
//     procfs, the command sees the existing one, and Landlock keeps the processes
//     in it out of reach. An ABI without signals leaves that to a pid namespace,
//     at the price of wrong numbers in procfs (14.3). The abstract UNIX sockets of
//     others are out of reach in a network namespace; without one, the filter
//     refuses to connect to them if the network is restricted, and Landlock if it
//     is enabled. In the last case, a filter with a listener also keeps sockets
//     with a path out of reach. A managed network needs the network namespace,
//     because only the proxy's listeners may lead out of it.
//   - A supervisor, which does or judges every call that could touch something
//     forbidden, in the cheapest level that is exact ([Level]). It needs neither
//     namespaces nor privileges. A Landlock domain blocks calls that should have
//     gone to the supervisor but did not.
//   - Landlock alone, where that is exact (landlockExact). Landlock guards
//     files, signals and sockets, and the filter guards the rest.
func (p *Policy) Backend(h Host, o Operator) (Backend, error) {
	filter := LayersOf(Seccomp)
	if p.RestrictsNothing() {
		return Backend{}, nil
	}
	if !p.Confined {
		switch {
		case !h.Has(Seccomp):
			return Backend{}, h.lacks(Seccomp, 0)
		case h.Landlock < movesABI:
			return Backend{}, h.lacks(Landlock, movesABI)
		}
		return Backend{Layers: filter, Landlock: h.Landlock}, nil
	}
	missing, incomplete := p.missingForNamespaces(h)
	if !incomplete {
		b := Backend{Layers: filter.With(UserNS, MountNS, IPCNS), Landlock: h.Landlock}
		switch {
		case p.SharesPIDs: // Landlock keeps the memory of the processes outside out of reach
		case h.Has(PIDNS) && h.Has(Procfs):
			b.Layers = b.Layers.With(PIDNS, Procfs)
		case h.Landlock < scopeABI:
			b.Layers = b.Layers.With(PIDNS)
		}
		if h.Has(NetNS) && p.Network != NetworkEnabled {
			b.Layers = b.Layers.With(NetNS)
		}
		return b, nil
	}
	if !o.RequireNamespaces && p.supervisable(h) {
		b := Backend{Layers: filter.With(Supervised), Landlock: h.Landlock, Level: o.level(p)}
		if !b.Scoped() {
			b.Level = max(b.Level, UnscopedLevel)
		}
		return b, nil
	}
	if !o.RequireNamespaces && h.Has(Seccomp) && h.Landlock >= scopeABI && p.landlockExact() {
		return Backend{Layers: filter, Landlock: h.Landlock}, nil
	}
	lacks := h.lacks(missing, scopeABI)
	if why := h.Reasons[Supervised].Error; why != "" && !o.RequireNamespaces {
		lacks.Reason += "; a supervisor does not work either: " + why
	}
	return Backend{}, lacks
}

// RestrictsNothing reports whether the policy allows everything. Such a policy
// needs no layer: a command runs like any other process of the user.
func (p *Policy) RestrictsNothing() bool { return !p.Confined && p.Network == NetworkEnabled }

// CheckBackend returns an error in three cases, however b was chosen: b lacks a layer
// that every backend for the policy has; b has a layer that no backend for the policy
// has and that changes the effect of other layers; or no layer should be put on at
// all. The process that puts the layers on calls it again, because a mistake on the
// way from [Policy.Backend] to that process must not lead to a command with less
// confinement than its policy says.
func (p *Policy) CheckBackend(b Backend) error {
	switch {
	case !b.Has(Seccomp):
		return errors.New("sandbox: the backend has no system call filter")
	case p.RestrictsNothing():
		return errors.New("sandbox: the policy restricts nothing")
	case p.Network == NetworkManaged && !p.Confined, p.Network == NetworkManaged && !b.Has(NetNS) && !b.Has(Supervised):
		return errors.New("sandbox: the backend leaves other ways out than the proxy")
	case !p.Confined && !b.Has(Landlock):
		return errors.New("sandbox: the backend has no Landlock domain")
	case p.AllUnixSockets && p.Network != NetworkManaged:
		return fmt.Errorf("sandbox: the network %v does not have all UNIX sockets", p.Network)
	case p.Transparent && p.Network != NetworkManaged:
		return fmt.Errorf("sandbox: the network %v has no transparent connections", p.Network)
	case !p.Confined && (b.Layers != LayersOf(Seccomp) || b.Level != NoLevel):
		return errors.New("sandbox: the backend has layers for files, which the policy does not restrict")
	case !p.Confined:
		return nil
	case !b.Has(MountNS) && !b.Has(Landlock):
		return errors.New("sandbox: the backend confines no files")
	case b.Has(Supervised) != (b.Level != NoLevel), b.Has(Supervised) && !b.Has(Landlock), b.Has(Supervised) && b.Has(MountNS):
		return errors.New("sandbox: the backend has half of a supervisor")
	case b.Has(Supervised) && b.Landlock < movesABI:
		return errors.New("sandbox: the backend's supervisor could not move files")
	case b.Has(Supervised) && !b.Scoped() && b.Level < UnscopedLevel, b.Has(Supervised) && b.Level < min(p.level(), LevelReads):
		return errors.New("sandbox: the backend's supervisor has too low a level")
	case !b.Has(MountNS) && !b.Has(Supervised) && p.judgesConnects():
		return errors.New("sandbox: the backend has no view of the file system, which hides the sockets of the host")
	case b.Has(MountNS) && !b.Has(UserNS):
		return errors.New("sandbox: the backend has a view of the file system without a user namespace")
	case p.SharesPIDs && b.Has(PIDNS):
		return errors.New("sandbox: the backend has a pid namespace, and the policy shares that of the host")
	case b.Has(Procfs) && !b.Has(PIDNS):
		return errors.New("sandbox: the backend has a fresh procfs without a pid namespace")
	case !b.Has(PIDNS) && !b.Has(Supervised) && !b.Scoped():
		return errors.New("sandbox: the backend leaves the processes outside in reach")
	case !b.Scoped() && (p.Network == NetworkEnabled || p.Network == NetworkManaged && !b.Has(NetNS) || b.Has(Supervised) && len(p.Sockets) > 0):
		return errors.New("sandbox: the backend leaves abstract sockets in reach")
	case p.judgesConnects() && b.Has(PIDNS) && !b.Has(Procfs):
		return errors.New("sandbox: the backend's listener would look up the command under wrong numbers")
	}
	return nil
}

// supervisable reports whether a supervisor can enforce the policy on this host.
// The supervisor itself does what an old ABI of Landlock cannot restrict:
// truncation is always one of its calls (ABI 3), and below scopeABI it also opens
// devices and sends signals. Before movesABI it could not move files for the
// command.
func (p *Policy) supervisable(h Host) bool {
	enough := movesABI
	if p.Network != NetworkRestricted || len(p.Sockets) > 0 {
		enough = scopeABI
	}
	return h.Has(Seccomp) && h.Has(Supervised) && h.Landlock >= enough
}

// missingForNamespaces returns the first layer that the row of namespaces needs
// and the host lacks, if any.
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
	case p.SharesPIDs && !scopes:
		return Landlock, true
	case !h.Has(PIDNS) && !scopes:
		return PIDNS, true
	case p.Network == NetworkManaged && !h.Has(NetNS):
		return NetNS, true
	case p.Network == NetworkEnabled && !scopes:
		return Landlock, true
	case (p.Transparent || len(p.Sockets) > 0) && !h.Has(Procfs) && !p.SharesPIDs && !scopes:
		return Procfs, true // the listener would look up the command under wrong numbers
	case p.judgesConnects() && !h.Has(UserNotify):
		return UserNotify, true // a listener decides which UNIX sockets may be connected to, and holds connections
	case p.judgesConnects() && !h.Has(Pidfd):
		return Pidfd, true // and then it connects the command's socket
	}
	return 0, false
}

// landlockExact reports whether Landlock alone can express the policy. Landlock
// can only add to the rights of a parent directory, never remove them. So the
// policy must not make anything writable, and must not deny anything below a
// readable path. The network must be restricted, because Landlock knows only
// TCP, and no sockets be named, because nobody judges connect(2).
//
// The agent's own files are still denied: the ruleset allows their neighbours
// one by one (PathRule.Except). The price is small: a command cannot open files
// that appear beside them after its start.
func (p *Policy) landlockExact() bool {
	if p.Network != NetworkRestricted || len(p.Sockets) > 0 {
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
	return !slices.ContainsFunc(p.Globs, func(g Glob) bool { return p.Access(g.Base) >= Read || p.Leads(g.Base) })
}

// landlockKernels are the versions of Linux that brought an ABI of Landlock
// (landlock(7)).
var landlockKernels = map[int]string{movesABI: "5.19", scopeABI: "6.12"}

// lacks returns the error for a missing layer; abi is the required ABI if that
// layer is Landlock.
func (h Host) lacks(l Layer, abi int) *UnenforceableError {
	reason := h.Reasons[l]
	if reason.Error == "" {
		reason.Error = "not available"
		if l == Landlock {
			reason.Error = fmt.Sprintf("ABI %d is too old, %d is needed", h.Landlock, abi)
			reason.Remedy = "run a kernel of version " + landlockKernels[abi] + " or later"
		}
	}
	return &UnenforceableError{Layer: layers[l].wire, Reason: reason.Error, Remedy: reason.Remedy}
}
