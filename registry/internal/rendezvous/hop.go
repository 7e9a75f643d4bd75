package rendezvous

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/registry/internal/notice"
)

// Values of Letter.About in letters between servers, see [store.Post], and their content:
//
//	executor.<registration>   a frame, unchanged, for the executor at the receiver
//	harness.<registration>    a frame, unchanged, for its stream's harness at the receiver
//	notice                    one notice for the receiver
//	to all                    one notice
//
// Letter.From is the sender's node. In a letter with a frame for an executor, a dot and
// the revision of the presence that the frame is meant for follow the node.
const (
	hopExecutor = "executor"
	hopHarness  = "harness"
	hopNotice   = "notice"
)

// Each server sends a beat every beatInterval. If a server has sent nothing for
// nodeSilence, the others regard it as dead. They need this rule because NATS does not
// report that a server is gone, and the store forgets it only after store.nodeTTL.
const (
	beatInterval = 2 * time.Second
	nodeSilence  = 4 * beatInterval
	maxNodes     = 1024 // the largest number of other servers that are remembered
)

// hopShare is a divisor: the letters that wait in a subscription may take this part of the
// memory that may be held for peers.
const hopShare = 4

// hop sends letters to the other servers of the store, receives theirs, and knows which
// of them live.
type hop struct {
	rs     *Routes
	post   store.Post
	node   string
	missed chan struct{} // has a value after letters were lost, until watch receives it
	wg     sync.WaitGroup

	mu    sync.Mutex           // protects the field below
	heard map[string]time.Time // other servers, with the time of their last letter to all
}

// openHop starts to receive letters. A server that learns of this server after openHop has
// returned can reach this server. ctx must have a deadline.
func openHop(ctx context.Context, rs *Routes) (*hop, error) {
	post, err := rs.store.OpenPost(ctx, rs.node, rs.limits.MaxWaiting()/hopShare)
	if err != nil {
		return nil, err
	}
	h := &hop{rs: rs, post: post, node: rs.node, heard: make(map[string]time.Time), missed: make(chan struct{}, 1)}
	h.wg.Go(func() { post.Receive(rs.background, h.fromServer, h.missedLetters) })
	h.wg.Go(func() { post.ReceiveAll(rs.background, h.fromAll, h.missedLetters) })
	h.wg.Go(func() { h.watch(rs.background) })
	return h, nil
}

// close waits for the receivers, which end with Routes.background, and ends the
// subscriptions.
func (h *hop) close() error {
	h.wg.Wait()
	return h.post.Close()
}

// missedLetters wakes watch after letters were lost. watch then gets their content again.
func (h *hop) missedLetters(err error) {
	h.rs.log.Warn("messages of other servers were lost", "error", err)
	select {
	case h.missed <- struct{}{}:
	default: // watch has not received the last value yet
	}
}

// fromServer handles a letter to this server alone.
func (h *hop) fromServer(message store.Letter) {
	kind, registrationID, _ := strings.Cut(message.About, ".")
	switch kind {
	case hopExecutor:
		h.frame(toExecutor, registrationID, message)
	case hopHarness:
		h.frame(toHarness, registrationID, message)
	case hopNotice:
		switch n, ok := decodeNotice(message); {
		case !ok:
		case n.Kind == notice.Leave:
			h.left(message.From)
			// The sender has forgotten the executors here. With the announcement it
			// need not ask the store for them.
			h.rs.announceAll(message.From)
		default:
			h.rs.noticed(message.From, n)
		}
	}
}

// left handles a leave: another server has ended, or has forgotten its state about this
// server.
func (h *hop) left(node string) {
	h.remove(node)
	h.rs.nodeGone(node)
}

// frame passes a frame to its meeting. The frame is not copied, because the message takes
// over the buffer that NATS has made for the letter.
func (h *hop) frame(to side, registrationID string, message store.Letter) {
	h.rs.metrics.HopFrames.Add(1)
	h.rs.metrics.HopBytes.Add(uint64(len(message.Data)))
	from, presence, _ := strings.Cut(message.From, ".")
	revision, err := strconv.ParseUint(presence, 10, 64)
	if to == toExecutor && err != nil {
		h.rs.metrics.Dropped.Add(1)
		return
	}
	m := h.rs.find(registrationID)
	if m == nil {
		if to == toExecutor {
			h.tell(from, notice.Notice{Kind: notice.Absent, Registration: registrationID, Revision: revision})
		}
		h.rs.metrics.Dropped.Add(1)
		return
	}
	defer h.rs.leave(m)
	content := socket.NewMessage(0)
	content.Bytes = message.Data
	m.frame(to, from, revision, content)
}

// decodeNotice decodes a notice. It refuses a letter that names no sender.
func decodeNotice(message store.Letter) (n notice.Notice, ok bool) {
	if message.From == "" {
		return notice.Notice{}, false
	}
	return notice.Decode(message.Data)
}

// fromAll handles a letter to all servers.
func (h *hop) fromAll(message store.Letter) {
	n, ok := decodeNotice(message)
	from := message.From
	if !ok || from == h.node {
		return
	}
	if n.Kind == notice.Leave {
		h.left(from)
		return
	}
	if h.hear(from) {
		h.rs.recall(false) // the server may have restarted and forgotten everything
	}
	h.rs.noticed(from, n)
}

// hear notes that a server lives, and reports whether it was unknown until now.
func (h *hop) hear(node string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, known := h.heard[node]
	if known || len(h.heard) < maxNodes {
		h.heard[node] = time.Now()
	}
	return !known
}

func (h *hop) remove(node string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.heard, node)
}

// watch sends a beat every beatInterval, handles silent servers as dead, and calls beginAnew
// after letters were lost.
func (h *hop) watch(ctx context.Context) {
	beat := time.NewTicker(beatInterval)
	defer beat.Stop()
	h.broadcast(notice.Notice{Kind: notice.Beat})
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.post.Back():
			h.beginAnew() // letters that were sent meanwhile are lost, in both directions
		case <-h.missed:
			h.beginAnew()
		case now := <-beat.C:
			if !h.post.Connected() {
				continue // without a connection the silence of a server means nothing
			}
			h.broadcast(notice.Notice{Kind: notice.Beat})
			for _, node := range h.silent(now) {
				h.rs.log.Warn("another server is silent", "node", node)
				h.tell(node, notice.Notice{Kind: notice.Leave}) // in case the server lives
				h.rs.nodeGone(node)
			}
		}
	}
}

// beginAnew makes this server and the others forget their state about each other and send
// it again, after letters may have been lost. Without it a server could wait forever for a
// lost letter, because no letter is sent twice.
func (h *hop) beginAnew() {
	h.rs.lettersLost()
	for _, node := range h.excuse(time.Now()) {
		h.rs.nodeGone(node) // before the server answers
		h.tell(node, notice.Notice{Kind: notice.Leave})
		h.rs.announceAll(node)
	}
	h.rs.recall(true)
}

// silent forgets and returns the servers that have sent nothing for Routes.silence.
func (h *hop) silent(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var nodes []string
	for node, last := range h.heard {
		if now.Sub(last) > h.rs.silence {
			delete(h.heard, node)
			nodes = append(nodes, node)
		}
	}
	return nodes
}

// excuse sets the time of the last letter of all known servers to now, and returns these
// servers. It is for servers whose letters could not arrive while the connection was lost.
func (h *hop) excuse(now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	nodes := slices.Collect(maps.Keys(h.heard))
	for _, node := range nodes {
		h.heard[node] = now
	}
	return nodes
}

// send passes a frame to another server and releases its message. revision is the revision
// of the presence of the executor there. For a frame to a harness it is not used.
func (h *hop) send(node string, to side, registrationID string, revision uint64, message *socket.Message) error {
	h.rs.metrics.HopFrames.Add(1)
	h.rs.metrics.HopBytes.Add(uint64(len(message.Bytes)))
	kind, from := hopHarness, h.node
	if to == toExecutor {
		kind, from = hopExecutor, h.node+"."+strconv.FormatUint(revision, 10)
	}
	err := h.post.Send(node, kind+"."+registrationID, from, message.Bytes)
	message.Release()
	return err
}

// reset sends a reset to a websocket at another server.
func (h *hop) reset(node string, to side, m *meeting, stream, reason string) {
	h.rs.metrics.Resets.Add(1)
	// Like a notice (see told), a reset is lost only with the connection. Then beginAnew
	// restores the state of both servers about each other.
	_ = h.send(node, to, m.id, m.revision, resetMessage(stream, reason))
}

// announceLocked sends an open for a route to the executor's server. If the harness is not
// here, the open says detached. If the route is barred, the open says revoked.
func (h *hop) announceLocked(m *meeting, rt *route) {
	h.tell(m.node, notice.Notice{
		Kind: notice.Open, Registration: m.id, Revision: m.revision, Stream: rt.stream,
		Principal: rt.principal, Acknowledges: rt.acknowledges, Detached: rt.harness == nil, Revoked: rt.revoked,
	})
}

// tell sends a notice to one server.
func (h *hop) tell(node string, n notice.Notice) {
	h.told(n, h.post.Send(node, hopNotice, h.node, n.Encode()))
}

// broadcast sends a notice to all other servers.
func (h *hop) broadcast(n notice.Notice) { h.told(n, h.post.SendAll(h.node, n.Encode())) }

// told logs that a notice was not sent. A notice is lost only with the connection, and
// beginAnew sends everything again when the connection is back.
func (h *hop) told(n notice.Notice, err error) {
	if err != nil {
		h.rs.log.Trouble("another server was not told", "kind", string(n.Kind), "error", err)
	}
}
