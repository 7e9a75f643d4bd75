package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/execagent/execagent/relay/socket"
)

// Subjects of what servers say to each other, in core NATS:
//
//	execagent.rendezvous.<node>.executor.<registration>   a frame, unchanged, for the executor there
//	execagent.rendezvous.<node>.harness.<registration>    a frame, unchanged, for the harness of its stream there
//	execagent.rendezvous.<node>.notice                    one notice for that server
//	execagent.rendezvous                                  one notice for all servers
//
// The reply subject is the sender's node. Each server subscribes once to all of
// its own, when it starts: nothing is lost because a subscription has not yet
// spread through a cluster, what one server sends to another keeps its order, and
// an idle executor costs nothing.
const (
	hopSubject  = "execagent.rendezvous"
	hopExecutor = "executor"
	hopHarness  = "harness"
	hopNotice   = "notice"
)

// hopPending bounds what has come from NATS and waits for the goroutine that
// passes it on, which waits for nobody. More is lost, see [routes.lost].
const (
	hopPendingMessages = 1 << 16
	hopPendingBytes    = 128 << 20
	maxNotice          = 8 << 10 // bytes; a stream id may grow sixfold in JSON
)

// A server that has said nothing for nodeSilence is dead for the others. NATS
// tells nobody of it, and the store only after a while.
const (
	beatInterval = 2 * time.Second
	nodeSilence  = 4 * beatInterval
	maxNodes     = 1024 // that are remembered
)

// noticeKind tells notices apart.
type noticeKind string

const (
	noticeOnline  noticeKind = "online"  // the executor is here, with the presence of this revision
	noticeOffline noticeKind = "offline" // it has gone, unless there is a newer presence
	noticeOpen    noticeKind = "open"    // to the executor's server: the stream's harness is here or, detached, was
	noticeDetach  noticeKind = "detach"  // to the executor's server: it is here no longer
	noticeMoved   noticeKind = "moved"   // to the harness's server: it has come back elsewhere
	noticeRefused noticeKind = "refused" // to the harness's server: the answer to an open
	noticeAbsent  noticeKind = "absent"  // to the harness's server: the executor is not here
	noticeTaken   noticeKind = "taken"   // bytes that have been passed on
	noticeBeat    noticeKind = "beat"    // the server lives
	noticeLeave   noticeKind = "leave"   // it ends
)

// notice is a message between servers, in JSON. Which members count depends on
// the kind.
type notice struct {
	Kind         noticeKind `json:"kind"`
	Registration string     `json:"registration,omitempty"`
	Revision     uint64     `json:"revision,omitempty"`
	Stream       string     `json:"stream,omitempty"`
	Principal    string     `json:"principal,omitempty"`
	Acknowledges bool       `json:"acknowledges,omitempty"`
	Detached     bool       `json:"detached,omitempty"`
	Intruder     bool       `json:"intruder,omitempty"` // refused for that reason
	Bytes        int        `json:"bytes,omitempty"`
}

// hop is the way between servers.
type hop struct {
	rs       *routes
	conn     *nats.Conn // the store's
	node     string
	own, all *nats.Subscription
	statuses chan nats.Status
	wg       sync.WaitGroup

	mu    sync.Mutex           // protects the field below
	heard map[string]time.Time // other servers, when they last said something to all
}

func openHop(rs *routes) (*hop, error) {
	h := &hop{rs: rs, conn: rs.s.store.conn(), node: rs.s.node, heard: make(map[string]time.Time)}
	var err error
	if h.own, err = h.subscribe(hopSubject + "." + h.node + ".>"); err != nil {
		return nil, err
	}
	if h.all, err = h.subscribe(hopSubject); err != nil {
		return nil, errors.Join(err, h.own.Unsubscribe())
	}
	// Whoever learns of this server must be able to reach it.
	if err := h.conn.FlushTimeout(storeTimeout); err != nil {
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
			h.rs.lost()
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
		if n, ok := decodeNotice(message); ok {
			h.rs.noticed(message.Reply, n)
		}
	}
}

// frame hands a frame to its meeting. The buffer that NATS has made for it
// becomes that of the message.
func (h *hop) frame(to side, registrationID string, message *nats.Msg) {
	h.rs.s.metrics.hopFrames.Add(1)
	h.rs.s.metrics.hopBytes.Add(uint64(len(message.Data)))
	m := h.rs.find(registrationID)
	if m == nil {
		if to == toExecutor {
			h.tell(message.Reply, notice{Kind: noticeAbsent, Registration: registrationID})
		}
		h.rs.s.metrics.dropped.Add(1)
		return
	}
	defer h.rs.leave(m)
	content := socket.NewMessage(0)
	content.Bytes = message.Data
	m.frame(to, message.Reply, content)
}

func decodeNotice(message *nats.Msg) (n notice, ok bool) {
	if len(message.Data) > maxNotice || message.Reply == "" {
		return notice{}, false
	}
	return n, json.Unmarshal(message.Data, &n) == nil
}

// fromAll handles what was sent to all servers.
func (h *hop) fromAll(message *nats.Msg) {
	n, ok := decodeNotice(message)
	from := message.Reply
	if !ok || from == h.node {
		return
	}
	if n.Kind == noticeLeave {
		h.forget(from)
		h.rs.nodeGone(from)
		return
	}
	if h.hear(from) {
		h.rs.recall()
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
	h.broadcast(notice{Kind: noticeBeat})
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.statuses:
			// What was sent meanwhile is lost, in both directions.
			h.silent(time.Now(), true)
			h.rs.lost()
			h.rs.announceAll()
			h.rs.recall()
		case now := <-beat.C:
			if !h.conn.IsConnected() {
				continue // nobody can be heard
			}
			h.broadcast(notice{Kind: noticeBeat})
			for _, node := range h.silent(now, false) {
				h.rs.s.log.Warn("another server is silent", "node", node)
				h.rs.nodeGone(node)
			}
		}
	}
}

// silent forgets and returns the servers that were not heard of for too long or,
// with excuse, starts to wait for all of them anew.
func (h *hop) silent(now time.Time, excuse bool) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var nodes []string
	for node, last := range h.heard {
		switch {
		case excuse:
			h.heard[node] = now
		case now.Sub(last) > nodeSilence:
			delete(h.heard, node)
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// send passes a frame to another server and releases it.
func (h *hop) send(node string, to side, registrationID string, message *socket.Message) error {
	h.rs.s.metrics.hopFrames.Add(1)
	h.rs.s.metrics.hopBytes.Add(uint64(len(message.Bytes)))
	kind := hopExecutor
	if to == toHarness {
		kind = hopHarness
	}
	err := h.conn.PublishRequest(hopSubject+"."+node+"."+kind+"."+registrationID, h.node, message.Bytes)
	message.Release()
	return err
}

// reset sends another server a reset for one of its websockets.
func (h *hop) reset(node string, to side, registrationID, stream, reason string) {
	h.rs.s.metrics.resets.Add(1)
	_ = h.send(node, to, registrationID, resetMessage(stream, reason)) // see publish
}

// announce tells the executor's server of a route whose harness is here or, when
// it is gone, was. The meeting's mutex is held.
func (h *hop) announce(m *meeting, rt *route) {
	h.tell(m.node, notice{
		Kind: noticeOpen, Registration: m.id, Stream: rt.stream,
		Principal: rt.principal, Acknowledges: rt.acknowledges, Detached: rt.harness == nil,
	})
}

// tell sends a notice to one server, broadcast to all others.
func (h *hop) tell(node string, n notice) {
	h.publish(hopSubject+"."+node+"."+hopNotice, n)
}

func (h *hop) broadcast(n notice) { h.publish(hopSubject, n) }

// publish loses a notice only with the connection, after whose return everything
// that counts is said anew.
func (h *hop) publish(subject string, n notice) {
	text, err := json.Marshal(n)
	if err != nil {
		panic(err) // a struct of strings and numbers
	}
	if err := h.conn.PublishRequest(subject, h.node, text); err != nil {
		h.rs.s.log.Warn("another server was not told", "kind", string(n.Kind), "error", err)
	}
}
