package agent

import (
	"context"
	"net/netip"
	"slices"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sockowner"
	"github.com/execagent/execagent/protocol"
)

// portsOf says which ports a request may see: those that a socket with its sandbox could reach.
type portsOf struct {
	agent *Agent
	none  bool // it has no network
	bare  bool // it is confined: nothing is said of processes
}

func (c *connection) portsOf(asked *protocol.Sandbox) (see portsOf, err error) {
	see.agent = c.agent
	if c.agent.cfg.offline() {
		return see, errOffline
	}
	if asked, err = c.agent.sandboxOf(asked); err != nil {
		return see, err
	}
	profile, err := c.agent.socketProfile(asked)
	if err != nil || profile == nil {
		return see, err
	}
	var held *confine.Held
	if held, err = c.agent.enterToDial(*profile); err != nil {
		return see, err
	}
	defer held.Release()
	see.none, see.bare = !held.HasNetwork(), !held.Unconfined()
	return see, nil
}

// list returns those of the ports that listen that may be seen.
func (s *portsOf) list(ctx context.Context, seen []sockowner.Listener) []protocol.Port {
	ports := []protocol.Port{}
	if s.none {
		return ports
	}
	admitted := func(sockowner.Listener) bool { return true }
	if s.agent.cfg.RequireNetworkEnforcement {
		admission, err := s.agent.networks.Admission()
		if err != nil {
			return ports // the operator's policy leads nowhere
		}
		defer admission.Close()
		admitted = func(l sockowner.Listener) bool {
			_, err := admission.Admit(ctx, netip.AddrPortFrom(reachedAt(l.Address), l.Port).String(), "", "", "")
			return err == nil
		}
	}
	for _, l := range seen {
		if !admitted(l) {
			continue
		}
		p := protocol.Port{Port: l.Port, Address: l.Address.String()}
		if l.UID >= 0 {
			p.UID = new(uint64(l.UID))
		}
		if l.PID > 0 && !s.bare {
			p.PID = new(uint64(l.PID))
		}
		if l.Program != "" && !s.bare {
			p.Program = &l.Program
		}
		ports = append(ports, p)
	}
	return ports
}

// reachedAt returns the address at which a listener is reached from this host.
func reachedAt(at netip.Addr) netip.Addr {
	switch at {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return at
}

func (c *connection) listPorts(ctx context.Context, p protocol.PortListParams) (*protocol.PortListResult, error) {
	see, err := c.portsOf(p.Sandbox)
	if err != nil {
		return nil, err
	}
	seen, more, err := sockowner.Listeners(protocol.MaxPorts)
	if err != nil {
		return nil, err
	}
	return &protocol.PortListResult{Ports: see.list(ctx, seen), Truncated: more}, nil
}

// portWatch is one watch of ports.
type portWatch struct {
	*teller
	id    string
	see   portsOf
	watch *sockowner.Watch
	seen  *sockowner.Seen // the client knows
	known []protocol.Port
}

// watchPortsResult lets the notifications of a watch come after the answer.
type watchPortsResult struct {
	protocol.PortListResult
	watch *portWatch
}

func (r *watchPortsResult) Sent() { r.watch.begin(r.watch.tell) }

func (c *connection) watchPorts(ctx context.Context, p protocol.PortWatchParams) (*watchPortsResult, error) {
	see, err := c.portsOf(p.Sandbox)
	if err != nil {
		return nil, err
	}
	if err := c.ports.reserve(p.WatchID, protocol.MaxPortWatches, "watches of ports"); err != nil {
		return nil, err
	}
	seen, err := c.agent.ports.Begin()
	if err != nil {
		c.ports.remove(p.WatchID)
		return nil, err
	}
	w := &portWatch{newTeller(c.peer), p.WatchID, see, &c.agent.ports, seen, see.list(ctx, seen.Listeners)}
	c.ports.set(p.WatchID, w)
	return &watchPortsResult{protocol.PortListResult{Ports: w.known, Truncated: w.seen.More}, w}, nil
}

func (c *connection) unwatchPorts(_ context.Context, p protocol.UnwatchParams) (protocol.Empty, error) {
	if watch := c.ports.remove(p.WatchID); watch != nil {
		watch.end()
	}
	return protocol.Empty{}, nil
}

// tell sends what opens and closes. While a client does not read, that is merged.
func (w *portWatch) tell() {
	for {
		select {
		case <-w.seen.Old:
		case <-w.ctx.Done():
			return
		}
		w.seen = w.watch.Now()
		now := w.see.list(w.ctx, w.seen.Listeners)
		changed := &protocol.PortChangedNotification{
			WatchID: w.id, Opened: without(now, w.known), Closed: without(w.known, now),
		}
		w.known = now
		if len(changed.Opened)+len(changed.Closed) > 0 && w.peer.Notify(protocol.MethodPortChanged, changed) != nil {
			return // the connection has ended, and the watch with it
		}
	}
}

// without returns those of the ports that others lack.
func without(ports, others []protocol.Port) []protocol.Port {
	type key struct {
		port     uint16
		address  string
		uid, pid uint64
	}
	of := func(p protocol.Port) key { return key{p.Port, p.Address, or(p.UID, 0), or(p.PID, 0)} }
	known := map[key]bool{}
	for _, p := range others {
		known[of(p)] = true
	}
	return slices.DeleteFunc(append([]protocol.Port{}, ports...), func(p protocol.Port) bool { return known[of(p)] })
}

// end ends the watch and waits for its goroutines.
func (w *portWatch) end() {
	w.quit()
	w.watch.End()
}
