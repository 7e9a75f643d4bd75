package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/execagent/execagent/registry/rendezvous/notice"
	"github.com/execagent/execagent/relay/socket"
)

// Subjects of what servers say to each other, in core NATS:
//
//	execagent.rendezvous.<node>.executor.<registration>   a frame, unchanged, for the executor there
//	execagent.rendezvous.<node>.harness.<registration>    a frame, unchanged, for the harness of its stream there
//	execagent.rendezvous.<node>.notice                    one notice for that server
//	execagent.rendezvous                                  one notice for all servers
//
// The reply subject is the sender's node; that of a frame for an executor is
// followed by a dot and the revision of the presence that it was sent for. Each
// server subscribes once to all of
// its own, when it starts: nothing is lost because a subscription has not yet
// spread through a cluster, what one server sends to another keeps its order, and
// an idle executor costs nothing.
const (
	hopSubject  = "execagent.rendezvous"
	hopExecutor = "executor"
	hopHarness  = "harness"
	hopNotice   = "notice"
)

// Bounds of what has come from NATS and waits for the goroutine that
// passes it on, which waits for nobody. More is lost, see [hop.beginAnew].
const (
	hopPendingMessages = 1 << 16
	hopPendingBytes    = 128 << 20
)

// A server that has said nothing for nodeSilence is dead for the others. NATS
// tells nobody of it, and the store only after a while.
const (
	beatInterval = 2 * time.Second
	nodeSilence  = 4 * beatInterval
	maxNodes     = 1024 // that are remembered
)

// hop is the way between servers.
type hop struct {
	rs       *routes
	conn     *nats.Conn // the store's
	node     string
	own, all *nats.Subscription
	statuses chan nats.Status
	missed   chan struct{} // holds one when messages were lost
	wg       sync.WaitGroup

	mu    sync.Mutex           // protects the field below
	heard map[string]time.Time // other servers, when they last said something to all
}

// openHop has a context with a deadline.
func openHop(ctx context.Context, rs *routes) (*hop, error) {
	h := &hop{rs: rs, conn: rs.s.store.Conn(), node: rs.s.node, heard: make(map[string]time.Time), missed: make(chan struct{}, 1)}
	var err error
	if h.own, err = h.subscribe(hopSubject + "." + h.node + ".>"); err != nil {
		return nil, err
	}
	if h.all, err = h.subscribe(hopSubject); err != nil {
		return nil, errors.Join(err, h.own.Unsubscribe())
	}
	// Whoever learns of this server must be able to reach it.
	if err := h.conn.FlushWithContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("subscribing: %w", err), h.own.Unsubscribe(), h.all.Unsubscribe())
	}
	h.statuses = h.conn.StatusChanged(nats.CONNECTED)
	h.wg.Go(func() { h.receive(rs.background, h.own, h.fromServer) })
	h.wg.Go(func() { h.receive(rs.background, h.all, h.fromAll) })
	h.wg.Go(func() { h.watch(rs.background) })
	return h, nil
}

func (h *hop) subscribe(subject string) (*nats.Subscription, error) {
	sub, err := h.conn.SubscribeSync(subject)
	if err == nil {
		err = sub.SetPendingLimits(hopPendingMessages, hopPendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribing: %w", err)
	}
	return sub, nil
}

// close ends the hop; background has ended before.
func (h *hop) close() error {
	h.wg.Wait()
	h.conn.RemoveStatusListener(h.statuses)
	var err error
	for _, sub := range []*nats.Subscription{h.own, h.all} {
		if subErr := sub.Unsubscribe(); !errors.Is(subErr, nats.ErrConnectionClosed) {
			err = errors.Join(err, subErr)
		}
	}
	return err
}

// receive passes on what a subscription brings until ctx ends.
func (h *hop) receive(ctx context.Context, sub *nats.Subscription, take func(*nats.Msg)) {
	for {
		message, err := sub.NextMsgWithContext(ctx)
		switch {
		case err == nil:
			take(message)
		case errors.Is(err, nats.ErrSlowConsumer):
			h.rs.s.log.Warn("messages of other servers were lost", "error", err)
			select {
			case h.missed <- struct{}{}:
			default: // it is known
			}
		default: // ctx or the connection has ended
			return
		}
	}
}

// fromServer handles what was sent to this server alone.
func (h *hop) fromServer(message *nats.Msg) {
	kind, registrationID, _ := strings.Cut(message.Subject[len(hopSubject)+1+len(h.node)+1:], ".")
	switch kind {
	case hopExecutor:
		h.frame(toExecutor, registrationID, message)
	case hopHarness:
		h.frame(toHarness, registrationID, message)
	case hopNotice:
		switch n, ok := decodeNotice(message); {
		case !ok:
		case n.Kind == notice.Leave:
			h.left(message.Reply)
			// It has forgotten the executors here, and need not wait for the store.
			h.rs.announceAll(message.Reply)
		default:
			h.rs.noticed(message.Reply, n)
		}
	}
}

// left is that another server has ended, or counts this one as such.
func (h *hop) left(node string) {
	h.forget(node)
	h.rs.nodeGone(node)
}

// frame hands a frame to its meeting. The buffer that NATS has made for it
// becomes that of the message.
func (h *hop) frame(to side, registrationID string, message *nats.Msg) {
	h.rs.s.metrics.hopFrames.Add(1)
	h.rs.s.metrics.hopBytes.Add(uint64(len(message.Data)))
	from, presence, _ := strings.Cut(message.Reply, ".")
	revision, err := strconv.ParseUint(presence, 10, 64)
	if to == toExecutor && err != nil {
		h.rs.s.metrics.dropped.Add(1)
		return
	}
	m := h.rs.find(registrationID)
	if m == nil {
		if to == toExecutor {
			h.tell(from, notice.Notice{Kind: notice.Absent, Registration: registrationID, Revision: revision})
		}
		h.rs.s.metrics.dropped.Add(1)
		return
	}
	defer h.rs.leave(m)
	content := socket.NewMessage(0)
	content.Bytes = message.Data
	m.frame(to, from, revision, content)
}

// decodeNotice also wants to know who says it.
func decodeNotice(message *nats.Msg) (n notice.Notice, ok bool) {
	if message.Reply == "" {
		return notice.Notice{}, false
	}
	return notice.Decode(message.Data)
}

// fromAll handles what was sent to all servers.
func (h *hop) fromAll(message *nats.Msg) {
	n, ok := decodeNotice(message)
	from := message.Reply
	if !ok || from == h.node {
		return
	}
	if n.Kind == notice.Leave {
		h.left(from)
		return
	}
	if h.hear(from) {
		h.rs.recall(false) // it may have come back, and have forgotten
	}
	h.rs.noticed(from, n)
}

// hear notes that a server lives, and tells whether it was not known to.
func (h *hop) hear(node string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.heard[node]
	if known || len(h.heard) < maxNodes {
		h.heard[node] = time.Now()
	}
	return !known
}

func (h *hop) forget(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.heard, node)
}

// watch says that this server lives, and finds out which others do not.
func (h *hop) watch(ctx context.Context) {
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	h.broadcast(notice.Notice{Kind: notice.Beat})
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.statuses:
			h.beginAnew() // what was sent meanwhile is lost, in both directions
		case <-h.missed:
			h.beginAnew()
		case now := <-beat.C:
			if !h.conn.IsConnected() {
				continue // nobody can be heard
			}
			h.broadcast(notice.Notice{Kind: notice.Beat})
			for _, node := range h.silent(now) {
				h.rs.s.log.Warn("another server is silent", "node", node)
				h.tell(node, notice.Notice{Kind: notice.Leave}) // in case it lives
				h.rs.nodeGone(node)
			}
		}
	}
}

// beginAnew finds out again what this server and the others know of each other,
// after notices may have been lost: one would wait for what the other has said
// and forgotten.
func (h *hop) beginAnew() {
	h.rs.lost()
	for _, node := range h.excuse(time.Now()) {
		h.rs.nodeGone(node) // before it answers
		h.tell(node, notice.Notice{Kind: notice.Leave})
		h.rs.announceAll(node)
	}
	h.rs.recall(true)
}

// silent forgets and returns the servers that were not heard of for too long.
func (h *hop) silent(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var nodes []string
	for node, last := range h.heard {
		if now.Sub(last) > nodeSilence {
			delete(h.heard, node)
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// excuse starts to wait for all servers anew, and returns them.
func (h *hop) excuse(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	nodes := slices.Collect(maps.Keys(h.heard))
	for _, node := range nodes {
		h.heard[node] = now
	}
	return nodes
}

// send passes a frame to another server and releases it. The revision is that of
// the executor's presence there; it does not count for a frame to a harness.
func (h *hop) send(node string, to side, registrationID string, revision uint64, message *socket.Message) error {
	h.rs.s.metrics.hopFrames.Add(1)
	h.rs.s.metrics.hopBytes.Add(uint64(len(message.Bytes)))
	kind, from := hopHarness, h.node
	if to == toExecutor {
		kind, from = hopExecutor, h.node+"."+strconv.FormatUint(revision, 10)
	}
	err := h.conn.PublishRequest(hopSubject+"."+node+"."+kind+"."+registrationID, from, message.Bytes)
	message.Release()
	return err
}

// reset sends another server a reset for one of its websockets.
func (h *hop) reset(node string, to side, m *meeting, stream, reason string) {
	h.rs.s.metrics.resets.Add(1)
	_ = h.send(node, to, m.id, m.revision, resetMessage(stream, reason)) // see publish
}

// announce tells the executor's server of a route whose harness is here or, when
// it is gone or was revoked, was. The meeting's mutex is held.
func (h *hop) announce(m *meeting, rt *route) {
	h.tell(m.node, notice.Notice{
		Kind: notice.Open, Registration: m.id, Revision: m.revision, Stream: rt.stream,
		Principal: rt.principal, Acknowledges: rt.acknowledges, Detached: rt.harness == nil, Revoked: rt.revoked,
	})
}

// tell sends a notice to one server, broadcast to all others.
func (h *hop) tell(node string, n notice.Notice) {
	h.publish(hopSubject+"."+node+"."+hopNotice, n)
}

func (h *hop) broadcast(n notice.Notice) { h.publish(hopSubject, n) }

// publish loses a notice only with the connection, after whose return everything
// that counts is said anew.
func (h *hop) publish(subject string, n notice.Notice) {
	if err := h.conn.PublishRequest(subject, h.node, n.Encode()); err != nil {
		h.rs.s.trouble.Do(func() { h.rs.s.log.Warn("another server was not told", "kind", string(n.Kind), "error", err) })
	}
}
