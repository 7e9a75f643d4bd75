package agent

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sockowner"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
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
	for _, l := range seen {
		if s.none || s.agent.cfg.RequireNetworkEnforcement && !s.admitted(ctx, l) {
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

// admitted reports whether the operator's policy leads to a port.
func (s *portsOf) admitted(ctx context.Context, l sockowner.Listener) bool {
	at := l.Address
	switch at {
	case netip.IPv4Unspecified():
		at = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		at = netip.IPv6Loopback()
	}
	_, err := s.agent.admit(ctx, netip.AddrPortFrom(at, l.Port).String(), "", "", "")
	return err == nil
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

// portWatches holds the watches of ports of a connection, by their ids. The zero value is ready for use.
type portWatches struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*portWatch
}

// portWatch is one watch, and the goroutine that notifies its client.
type portWatch struct {
	id    string
	see   portsOf
	peer  *rpc.Peer
	watch *sockowner.Watch
	seen  *sockowner.Seen // the client knows
	known []protocol.Port

	ctx  context.Context // ends with the watch
	stop context.CancelFunc

	mu      sync.Mutex // guards over, so that no notification starts afterwards
	over    bool
	telling sync.WaitGroup
}

func (w *portWatches) add(p *portWatch) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.byID[p.id]; taken {
		return protocol.InvalidRequest("watchId already exists: %s", p.id)
	}
	if len(w.byID) == protocol.MaxPortWatches {
		return protocol.InvalidRequest("watchId: a connection has at most %d watches of ports", protocol.MaxPortWatches)
	}
	if w.byID == nil {
		w.byID = map[string]*portWatch{}
	}
	w.byID[p.id] = p
	return nil
}

// remove frees an id and returns its watch, or nil.
func (w *portWatches) remove(id string) *portWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch := w.byID[id]
	delete(w.byID, id)
	return watch
}

// end ends all watches. None is made any more.
func (w *portWatches) end() {
	for _, watch := range w.byID {
		watch.end()
	}
}

// watchPortsResult lets the notifications of a watch come after the answer.
type watchPortsResult struct {
	protocol.PortListResult
	watch *portWatch
}

func (r *watchPortsResult) Sent() {
	w := r.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.telling.Go(w.tell)
	}
}

func (c *connection) watchPorts(ctx context.Context, p protocol.PortWatchParams) (*watchPortsResult, error) {
	see, err := c.portsOf(p.Sandbox)
	if err != nil {
		return nil, err
	}
	w := &portWatch{id: p.WatchID, see: see, peer: c.peer, watch: &c.agent.ports}
	if w.seen, err = w.watch.Begin(); err != nil {
		return nil, err
	}
	if err := c.ports.add(w); err != nil {
		w.watch.End()
		return nil, err
	}
	w.ctx, w.stop = context.WithCancel(context.Background())
	w.known = see.list(ctx, w.seen.Listeners)
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
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.stop()
	w.telling.Wait()
	w.watch.End()
}
