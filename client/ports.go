package client

import (
	"cmp"
	"context"
	"io/fs"
	"sort"
	"strconv"
	"sync"

	"github.com/execagent/execagent/protocol"
)

const (
	// maxPortsKnown bounds the ports that a watch holds.
	maxPortsKnown = 4 * protocol.MaxPorts
	// maxEarly bounds the notifications that come before their answer.
	maxEarly = 16
)

// Ports lists the TCP ports that listen on the server's side, sorted by port and address. With a sandbox, only
// those are listed that a process in it could connect to. more says that the list is cut. It needs the server's ports.
func (c *Client) Ports(ctx context.Context, sandbox *protocol.Sandbox) (ports []protocol.Port, more bool, err error) {
	if err := c.requirePorts(ctx); err != nil {
		return nil, false, err
	}
	var r protocol.PortListResult
	err = c.replay(ctx, protocol.MethodPortList, &protocol.PortListParams{Sandbox: sandbox}, &r)
	return r.Ports, r.Truncated, err
}

func (c *Client) requirePorts(ctx context.Context) error {
	return c.require(ctx, "listing ports", func(c *protocol.Capabilities) bool { return c.Ports })
}

// PortWatch tells which TCP ports open and close on the server's side. Its methods may be called concurrently.
// It outlives connections: after a reconnect it tells what is different.
type PortWatch struct {
	client *Client
	params protocol.PortWatchParams

	next sync.Mutex  // held by Next: one call asks for the watch again
	on   *connection // that has the watch; guarded by next

	mu     sync.Mutex                          // guards what follows
	now    map[portKey]protocol.Port           // nil: the server has not answered yet
	early  []*protocol.PortChangedNotification // came before that answer was read
	told   map[portKey]protocol.Port
	closed bool
	end    context.CancelCauseFunc // ends a call of Next
	err    error
	wake   chan struct{} // has one when anything above has changed
}

// portKey is what makes a port another one.
type portKey struct {
	port     uint16
	address  string
	uid, pid uint64
}

func keyOf(p protocol.Port) portKey {
	k := portKey{port: p.Port, address: p.Address}
	if p.UID != nil {
		k.uid = *p.UID
	}
	if p.PID != nil {
		k.pid = *p.PID
	}
	return k
}

// PortChanges are the ports that have opened and closed, each sorted by port and address. A port where another
// process listens now is in both.
type PortChanges struct{ Opened, Closed []protocol.Port }

// WatchPorts watches the ports that [Client.Ports] lists. The first call of Next tells those that are open
// already. The caller closes the watch. It needs the server's ports; a server has up to 16 watches for each client.
func (c *Client) WatchPorts(ctx context.Context, sandbox *protocol.Sandbox) (*PortWatch, error) {
	if err := c.requirePorts(ctx); err != nil {
		return nil, err
	}
	w := &PortWatch{
		client: c, wake: make(chan struct{}, 1), told: map[portKey]protocol.Port{}, end: func(error) {},
		params: protocol.PortWatchParams{WatchID: "p" + strconv.FormatUint(c.nextID(), 10), Sandbox: sandbox},
	}
	w.next.Lock()
	defer w.next.Unlock()
	return w, w.ask(ctx)
}

// ask asks for the watch on the current connection, unless that has it.
func (w *PortWatch) ask(ctx context.Context) error {
	for {
		l, err := w.client.connected(ctx)
		if err != nil || l == w.on {
			return err
		}
		var r protocol.PortListResult
		l.mu.Lock()
		l.ports[w.params.WatchID] = w
		l.mu.Unlock()
		w.mu.Lock()
		w.now, w.early = nil, nil
		w.mu.Unlock()
		if err = l.called(ctx, protocol.MethodPortWatch, &w.params, &r); isLoss(err) {
			continue // a watch ends with its connection
		}
		if err != nil {
			l.forgetPorts(w)
			if ctx.Err() != nil {
				w.client.begin(func() { w.unwatch(l) }) // the server may have made it
			}
			return err
		}
		w.on = l
		return w.begin(r.Ports)
	}
}

func (l *connection) forgetPorts(w *PortWatch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ports, w.params.WatchID)
}

// Next waits for changes and takes all that have come. Errors: the error of ctx; [fs.ErrClosed] after Close; a
// [ServerError] when the ports could not be watched again over a new connection; the [DisconnectedError] of a
// failed client.
func (w *PortWatch) Next(ctx context.Context) (PortChanges, error) {
	w.next.Lock()
	defer w.next.Unlock()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	w.mu.Lock()
	w.end = end
	w.mu.Unlock()
	for {
		changes, err := w.take()
		if err != nil || len(changes.Opened)+len(changes.Closed) > 0 {
			return changes, err
		}
		if err := w.ask(ctx); err != nil {
			return PortChanges{}, err
		}
		if changes, err = w.take(); err != nil || len(changes.Opened)+len(changes.Closed) > 0 {
			return changes, err
		}
		select {
		case <-w.wake:
		case <-w.on.done:
			w.on = nil
		case <-ctx.Done():
			return PortChanges{}, context.Cause(ctx)
		}
	}
}

// take returns what is different from what was told.
func (w *PortWatch) take() (changes PortChanges, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		w.signal() // for the next call
		return changes, fs.ErrClosed
	}
	if w.err != nil || w.now == nil {
		return changes, w.err
	}
	for k, p := range w.now {
		if _, known := w.told[k]; !known {
			changes.Opened = append(changes.Opened, p)
			w.told[k] = p
		}
	}
	for k, p := range w.told {
		if _, open := w.now[k]; !open {
			changes.Closed = append(changes.Closed, p)
			delete(w.told, k)
		}
	}
	for _, list := range [][]protocol.Port{changes.Opened, changes.Closed} {
		sort.Slice(list, func(i, j int) bool {
			return cmp.Or(cmp.Compare(list[i].Port, list[j].Port), cmp.Compare(list[i].Address, list[j].Address)) < 0
		})
	}
	return changes, nil
}

// begin notes the ports of an answer, and what has come since.
func (w *PortWatch) begin(ports []protocol.Port) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = map[portKey]protocol.Port{}
	w.applyLocked(&protocol.PortChangedNotification{Opened: ports})
	for _, n := range w.early {
		w.applyLocked(n)
	}
	w.early = nil
	return w.err
}

// applyLocked notes ports that have opened and closed.
func (w *PortWatch) applyLocked(n *protocol.PortChangedNotification) {
	if w.now == nil {
		w.early = append(w.early, n)
		if len(w.early) > maxEarly {
			w.err = protocolErrorf("the server has told of ports %d times before it answered", maxEarly)
		}
		return
	}
	for _, p := range n.Closed {
		delete(w.now, keyOf(p))
	}
	for _, p := range n.Opened {
		w.now[keyOf(p)] = p
	}
	if len(w.now) > maxPortsKnown {
		w.err = protocolErrorf("the server tells of more than %d ports", maxPortsKnown)
	}
	w.signal()
}

// portsChanged takes a notification. It never waits.
func (l *connection) portsChanged(n *protocol.PortChangedNotification) {
	l.mu.Lock()
	w := l.ports[n.WatchID]
	l.mu.Unlock()
	if w == nil {
		return // closed
	}
	l.useful.Store(true)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.applyLocked(n) // Next returns an error
	}
}

func (w *PortWatch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Close ends the watch, and waits up to 10 s for the server to end it too. A call of Next ends. Closing it again is
// no error, nor is closing it after the connection is gone.
func (w *PortWatch) Close() error {
	w.mu.Lock()
	first := !w.closed
	w.closed = true
	w.end(fs.ErrClosed)
	w.signal()
	w.mu.Unlock()
	if !first {
		return nil
	}
	w.next.Lock()
	defer w.next.Unlock()
	if w.on == nil {
		return nil
	}
	return w.unwatch(w.on)
}

// unwatch ends the watch at the server.
func (w *PortWatch) unwatch(l *connection) error {
	l.forgetPorts(w)
	return l.unwatch(protocol.MethodPortUnwatch, w.params.WatchID)
}
