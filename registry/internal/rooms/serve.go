package rooms

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// SignedBy reports whether the principal with the id has signed a request. The error wraps
// [store.ErrUnavailable] if the signature cannot be checked now.
type SignedBy func(r *http.Request, principalID string) (bool, error)

const (
	upgradeTimeout = 10 * time.Second
	pingInterval   = 30 * time.Second
	// peerTimeout is how long a peer may send nothing, not even a pong. It is also how long a
	// peer may take to accept a piece of a message.
	peerTimeout = 90 * time.Second
	maxMessage  = 64 << 20 // bytes: the largest message that an executor accepts
	// chunk is the number of bytes of a message that are passed on at once. In each direction
	// no more than a chunk is held in memory, and a fragment has this length.
	chunk = 32 << 10
	// minPiece is the least number of bytes that a piece of a message counts for the limit of
	// bytes per second. Without it, fragments of one byte would count next to nothing.
	minPiece = 1 << 10
	// maxPings is the number of pings and pongs that a peer may send in pingWindow.
	maxPings   = 64
	pingWindow = 10 * time.Second
)

var errPings = errors.New("too many pings")

var chunks = sync.Pool{New: func() any { return new([chunk]byte) }}

// writeBuffers are lent to websockets while they write.
var writeBuffers sync.Pool

// end is one websocket.
type end struct {
	role      ticket.Role
	principal *store.Principal
	room      *room
	other     *end // the websocket that gets the messages; Rooms.mu protects it

	ws   *websocket.Conn
	done chan struct{} // closed with the websocket
	once sync.Once
}

// close ends the websocket, without a close frame. It waits for nothing. Data that was written
// before still arrives.
func (e *end) close() {
	e.once.Do(func() {
		close(e.done)
		conn := e.ws.NetConn()
		if secure, ok := conn.(*tls.Conn); ok {
			conn = secure.NetConn()
		}
		if stream, ok := conn.(conns.Stream); ok {
			conns.Linger(stream)
		}
		_ = e.ws.Close() // an error changes nothing: the websocket has ended
	})
}

// refusal is the answer to a request that gets no websocket. After 409 an executor registers again,
// after another 4xx it gives up, and after any other status it tries the same URL again
// (capabilities.md 7). A harness always asks for another URL.
type refusal struct {
	status int
	reason string
}

// Reasons in addition to the reasons of package ticket.
const (
	rejectDraining    = "pod_draining"
	rejectUnknown     = "unknown_route"
	rejectUnavailable = "route_unavailable"
	rejectUnsigned    = "invalid_request_signature"
)

// ServeHTTP upgrades a request for a URL of the direct transport, or refuses it with a reason in a
// header. The websocket stays open after ServeHTTP has returned.
func (rs *Rooms) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, no := rs.admit(w, r)
	if no == nil {
		return
	}
	rs.cfg.Metrics.Refused(no.reason)
	level := slog.LevelInfo
	if t.RegistrationID == "" { // the request is from a stranger, who could fill the log
		level = slog.LevelDebug
	}
	rs.cfg.Log.Tell(level, "websocket refused", t.EnvironmentID, t.RegistrationID, t.Principal, "transport", "direct", "status", no.status, "reason", no.reason)
	w.Header().Set(wire.HeaderRejectionReason, no.reason)
	http.Error(w, no.reason, no.status)
}

// admit checks a request and upgrades it. With a refusal the ticket is empty, unless its signature
// is right.
func (rs *Rooms) admit(w http.ResponseWriter, r *http.Request) (ticket.Ticket, *refusal) {
	unavailable := &refusal{http.StatusServiceUnavailable, rejectUnavailable}
	if rs.background.Err() != nil {
		return ticket.Ticket{}, &refusal{http.StatusServiceUnavailable, rejectDraining}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return ticket.Ticket{}, &refusal{http.StatusBadRequest, ticket.RejectMalformedQuery}
	}
	t, rejection := rs.cfg.Signer.OpenDirect(query, time.Now())
	switch {
	case rejection != "" && query.Get("role") == "environment":
		return ticket.Ticket{}, &refusal{http.StatusConflict, rejection} // makes the executor get a new URL
	case rejection != "":
		return ticket.Ticket{}, &refusal{http.StatusUnauthorized, rejection}
	}
	p, found, err := rs.cfg.Store.Principal(r.Context(), t.Principal)
	if err != nil {
		rs.cfg.Log.Trouble("looking for a principal", "error", err)
		return t, unavailable
	}
	if !found || !p.May(t.Role, t.EnvironmentID) || !rs.cfg.Allows(t.EnvironmentID) {
		return t, &refusal{http.StatusForbidden, ticket.RejectInvalidRole}
	}
	if t.Signed {
		switch signed, err := rs.cfg.Verify(r, t.Principal); {
		case err != nil:
			return t, unavailable
		case !signed:
			return t, &refusal{http.StatusForbidden, rejectUnsigned}
		}
	}
	reg, registered, err := rs.cfg.Store.See(r.Context(), t.EnvironmentID)
	if err != nil {
		rs.cfg.Log.Trouble("looking for a registration", "environment", t.EnvironmentID, "error", err)
		return t, unavailable
	}
	if !registered || reg.ID != t.RegistrationID || !reg.Direct {
		status := http.StatusGone
		if t.Role == ticket.Executor {
			status = http.StatusConflict
		}
		return t, &refusal{status, rejectUnknown}
	}
	release, ok := rs.cfg.Limits.Connect(p)
	if !ok {
		if t.Role == ticket.Executor {
			return t, unavailable
		}
		return t, &refusal{http.StatusTooManyRequests, rejectUnavailable}
	}
	return t, rs.welcome(w, r, p, t, reg, release)
}

// welcome upgrades a request that is allowed. If it returns nil, the request is answered, even if
// the upgrade has failed.
func (rs *Rooms) welcome(w http.ResponseWriter, r *http.Request, p *store.Principal, t ticket.Ticket, reg store.Seen, release func()) *refusal {
	e := &end{
		role: t.Role, principal: p, done: make(chan struct{}),
		room: newRoom(t.EnvironmentID, t.RegistrationID),
	}
	var executor *end
	if t.Role == ticket.Harness {
		found, left, err := rs.find(r.Context(), t.RegistrationID, p.ID)
		disconnect := release
		if err != nil {
			disconnect()
			return &refusal{http.StatusServiceUnavailable, rejectUnavailable}
		}
		executor, e.room = found, found.room
		release = func() {
			disconnect()
			left()
		}
	}
	upgrader := websocket.Upgrader{
		HandshakeTimeout: upgradeTimeout, ReadBufferSize: 4 << 10, WriteBufferSize: chunk, WriteBufferPool: &writeBuffers,
		CheckOrigin: func(*http.Request) bool { return true }, // no page knows the URL, see socket.Upgrade
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err == nil {
		e.take(ws)
		if err = rs.enter(e, executor, reg); err != nil {
			e.close()
		}
	}
	if err != nil {
		release()
		if executor != nil {
			executor.close() // the executor opens another websocket for the next harness
		}
		rs.tell(e, "websocket not opened", "error", err)
	} else {
		rs.start(e, release)
		rs.serving.Done()
	}
	return nil
}

// take sets up the websocket.
func (e *end) take(ws *websocket.Conn) {
	e.ws = ws
	begun, pings := time.Time{}, 0 // only the goroutine that reads uses these variables
	alive := func() error {
		now := time.Now()
		if now.Sub(begun) > pingWindow {
			begun, pings = now, 0
		}
		if pings++; pings > maxPings {
			return errPings
		}
		return ws.SetReadDeadline(now.Add(peerTimeout))
	}
	ws.SetReadLimit(maxMessage)
	ws.SetCloseHandler(func(int, string) error { return nil }) // no echo
	ws.SetPongHandler(func(string) error { return alive() })
	ws.SetPingHandler(func(payload string) error {
		// An error of the pong has closed the connection, or the peer does not read for now.
		_ = ws.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(time.Second))
		return alive()
	})
}

// start serves a websocket that is in a room.
func (rs *Rooms) start(e *end, release func()) {
	count := rs.cfg.Metrics.Executors
	if e.role == ticket.Harness {
		count = rs.cfg.Metrics.Harnesses
	}
	rs.serving.Go(e.ping)
	rs.serving.Go(func() {
		defer release()
		count.Add(1)
		defer count.Add(-1)
		var more []any
		if e.role == ticket.Harness { // the executor's log has the pseudonym
			more = []any{"pseudonym", rs.cfg.Signer.Pseudonym(e.room.environmentID, e.principal.ID)}
		}
		rs.tell(e, string(e.role)+" connected", more...)
		if other := rs.partner(e); other != nil {
			rs.introduce(e, other, wire.PingPrincipal)
			if other.isOver() {
				e.close() // other has ended before it could close e
			}
		}
		err := rs.pass(e)
		e.close()
		if other := rs.leave(e); other != nil {
			other.close()
		}
		key := "error"
		if errors.Is(err, io.EOF) {
			key = "reason" // the peer has ended the connection, which is no error
		}
		rs.tell(e, string(e.role)+" disconnected", key, err)
	})
}

// introduce sends the executor a ping about its harness. what is wire.PingPrincipal or
// wire.PingRevoked.
func (rs *Rooms) introduce(harness, executor *end, what string) {
	if harness.role != ticket.Harness {
		return // the first argument is an executor, which knows its harness already
	}
	text := what + rs.cfg.Signer.Pseudonym(harness.room.environmentID, harness.principal.ID)
	// After an error the connection is closed, which the reader will notice.
	_ = executor.ws.WriteControl(websocket.PingMessage, []byte(text), time.Now().Add(pingInterval))
}

func (e *end) isOver() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// pass copies messages of e to its partner until one of them ends.
func (rs *Rooms) pass(e *end) error {
	var partner *end
	for {
		_ = e.ws.SetReadDeadline(time.Now().Add(peerTimeout)) // fails only if the read fails too
		kind, message, err := e.ws.NextReader()
		if err != nil {
			return err
		}
		if partner == nil {
			if partner = rs.partner(e); partner == nil {
				return errors.New("a message before there is anybody to get it")
			}
		}
		out, err := partner.ws.NextWriter(kind)
		if err == nil {
			err = rs.copy(out, message, e, partner)
		}
		if err != nil {
			return err
		}
	}
}

// copy passes one message on, within the sender's limit of relayed bytes per second.
func (rs *Rooms) copy(out io.WriteCloser, in io.Reader, e, partner *end) error {
	lent := chunks.Get().(*[chunk]byte)
	defer chunks.Put(lent)
	buffer := lent[:]
	for first := true; ; first = false {
		_ = e.ws.SetReadDeadline(time.Now().Add(peerTimeout)) // fails only if the read fails too
		n, err := in.Read(buffer)
		if n > 0 || first {
			cost := max(n, minPiece)
			if first {
				cost += limits.FrameCost
			}
			if err := rs.cfg.Limits.Bytes(e.done, e.principal, cost); err != nil {
				return err
			}
			rs.cfg.Metrics.Bytes.Add(uint64(n))
			_ = partner.ws.SetWriteDeadline(time.Now().Add(peerTimeout)) // fails only if the write fails too
			if _, err := out.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return out.Close()
		}
		if err != nil {
			return err
		}
	}
}

// ping sends pings. They keep the connection open in the network, and their pongs show that the
// peer lives.
func (e *end) ping() {
	ticker := time.NewTicker(pingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			// After an error the connection is closed, which the reader will notice.
			_ = e.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(pingInterval))
		case <-e.done:
			return
		}
	}
}
