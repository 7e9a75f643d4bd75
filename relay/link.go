package relay

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/rpc"
)

const (
	// defaultGrace is how long a stream lives without a websocket (remote.md 8.1).
	defaultGrace = 30 * time.Second
	// defaultFarewell bounds how long an orderly end waits for earlier writes
	// to be sent.
	defaultFarewell = time.Second
	// maxStreamLines is how many lines about streams go into the log per
	// streamLinesInterval. Without a bound, harnesses could flood the log.
	maxStreamLines      = 256
	streamLinesInterval = 10 * time.Second
)

// LinkConfig configures a [Link]. Registry and Identity are required.
type LinkConfig struct {
	// Registry is where the executor registers and asks about harnesses. The
	// caller closes it after Run.
	Registry *Registry
	// Identity is the executor's key pair, the same for every registration.
	Identity *Identity
	// Logger logs registrations, connections, losses with their reasons,
	// streams and refused handshakes, but never a key, an authorization or a
	// signed URL. Nil discards.
	Logger *slog.Logger
	// Budget bounds the memory of the messages of all streams together, unread
	// ones included. Nil: there is no common bound.
	Budget *rpc.Budget
	// ReserveBytes is the size of two reserves that all streams share: one for
	// received records that wait for earlier records, for room or for memory, the
	// other for unacknowledged output. The first 256 KiB of a stream do not count
	// in either. Unread messages count in Budget. Zero: [DefaultReserveBytes].
	ReserveBytes int64

	// Holders returns the holders of sessions here, see [rpc.Revocable]: after each
	// reconnect, the link asks the rendezvous whether they may still connect. Revoked is
	// called for a holder that may not, in the goroutine that reads the websocket. Nil:
	// none.
	Holders func() []string
	Revoked func(holder string)

	timing timing
	socket socket.Config
}

// timing has durations that tests shorten; zero stands for the default.
type timing struct {
	steady, grace, farewell, handshake, least, urgent, most time.Duration
}

// Link is the executor's side of a relay: an [rpc.Listener] whose connections
// are the streams of harnesses with a completed handshake, all over one
// websocket to the rendezvous. [Link.Run] keeps the websocket up.
//
// A stream whose harness acknowledges (remote.md 8.1) outlives the websocket by 30 s and
// continues on the next one; others end with the websocket.
type Link struct {
	cfg            LinkConfig
	log            *slog.Logger
	streams        *streams
	waitingReserve reserve
	keptReserve    reserve
	ready          atomic.Bool
	registered     atomic.Pointer[registration] // the newest one
	unwelcome      chan struct{}                // the registry refused the credential; has room for one
	connects       atomic.Uint64                // websockets so far
	refused        atomic.Uint64                // handshakes so far
	traffic        socket.Traffic

	computing sync.Mutex // held by the handshake that is being computed
	lines     lineLimit  // for the lines about streams in the log

	accepted chan rpc.Conn // room for every active stream
	closing  sync.Once
	closed   chan struct{}
}

// NewLink returns a link that does nothing until [Link.Run].
func NewLink(cfg LinkConfig) *Link {
	l := &Link{
		cfg:      cfg,
		streams:  newStreams(),
		accepted: make(chan rpc.Conn, maxActive),
		closed:   make(chan struct{}),

		unwelcome: make(chan struct{}, 1),
	}
	l.waitingReserve.limit = cmp.Or(cfg.ReserveBytes, DefaultReserveBytes)
	l.keptReserve.limit = l.waitingReserve.limit
	l.log = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)).With("environment", cfg.Registry.environmentID)
	return l
}

// Run registers, connects to the rendezvous, serves streams and reconnects for
// as long as ctx lives (remote.md 3.4, 3.5). It may be called only once. When
// it returns, all streams have ended, Accept returns net.ErrClosed, and all its
// goroutines have ended.
//
// It returns nil when ctx ends: it then sends earlier writes, for up to a
// second, and drops the websocket without a close frame. It returns an error if
// the registry refuses a registration, the first or a later one.
func (l *Link) Run(ctx context.Context) error {
	defer func() { _ = l.Close() }() // it has no error
	var expiring sync.WaitGroup
	defer expiring.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer l.endStreams(nil, net.ErrClosed)

	if err := l.register(ctx); err != nil {
		return unlessDone(ctx, err)
	}
	l.cfg.Identity.Prepare()
	pace := backoff{timing: l.cfg.timing}
	for {
		g, err := l.connect(ctx, l.registered.Load())
		if g != nil {
			pace.connected()
			err = l.serve(ctx, g)
			expiring.Go(func() { l.expire(ctx, g) })
		}
		if ctx.Err() != nil {
			l.log.Info("disconnected from the rendezvous")
			return nil
		}
		delay := pace.next(l.streams.stranded())
		if g != nil {
			l.log.Warn("connection to the rendezvous lost", "error", err, "delay", delay)
		} else {
			l.log.Warn("connection to the rendezvous not made", "error", err, "delay", delay)
		}
		if refusedForGood(err) {
			if err := l.register(ctx); err != nil {
				return unlessDone(ctx, err)
			}
		}
		if api.Sleep(ctx, delay) != nil {
			return nil
		}
	}
}

// register announces the executor's key. An error is final, because
// [Registry.register] has already repeated calls that may be repeated.
func (l *Link) register(ctx context.Context) error {
	registration, err := l.cfg.Registry.register(ctx, l.cfg.Identity.PublicKey())
	if err != nil {
		return fmt.Errorf("registering the executor: %w", err)
	}
	l.log.Info("registered", "registration", label([]byte(registration.ID)))
	l.registered.Store(registration)
	return nil
}

// connect makes one attempt at a websocket.
func (l *Link) connect(ctx context.Context, registration *registration) (*leg, error) {
	var id [16]byte
	_, _ = rand.Read(id[:]) // it has no error
	header := http.Header{}
	header.Set(wire.HeaderRequestID, "req_"+hex.EncodeToString(id[:]))
	if owners := l.streams.owners(); len(owners) > 0 {
		header.Set(wire.HeaderStreamOwners, owners.Header())
	}
	cfg := l.cfg.socket
	cfg.Traffic = &l.traffic
	s, err := l.cfg.Registry.dial(ctx, registration.URL, header, cfg)
	if err != nil {
		return nil, err
	}
	return &leg{link: l, registrationID: registration.ID, socket: s, control: s.NewLane(0)}, nil
}

// serve runs a websocket until it ends. Streams that waited for a websocket
// continue on it. At its end, streams whose peers acknowledge wait for the next
// one, and the others end.
func (l *Link) serve(ctx context.Context, g *leg) error {
	waited, orphans := l.streams.attach(g)
	l.ready.Store(true)
	l.connects.Add(1)
	l.log.Info("connected to the rendezvous", "registration", label([]byte(g.registrationID)))
	over := make(chan struct{})
	g.wg.Go(func() {
		select {
		case <-ctx.Done():
			l.endStreams(nil, net.ErrClosed)
			flush(ctx, g.socket, orDefault(l.cfg.timing.farewell, defaultFarewell))
		case <-over:
		}
		_ = g.socket.Close() // the websocket is over, whatever Close says
	})
	for _, id := range orphans {
		g.sendReset([]byte(id))
	}
	for _, m := range waited {
		m.stream.resume(m.lane.Send)
	}

	attempts, cancel := context.WithCancel(ctx)
	defer cancel()
	g.wg.Go(func() { l.renew(attempts) })
	g.wg.Go(g.askForHolders)
	err := g.read(attempts)
	l.ready.Store(false)
	close(over)
	cancel()
	members := l.streams.detach()
	g.wg.Wait()
	for _, m := range members {
		m.lane.Close()
		if !m.stream.suspend() && l.streams.endedWithLeg(m) {
			l.logStream(slog.LevelInfo, "stream ended", []byte(m.id), "reason", "connection to the rendezvous lost")
		}
	}
	return err
}

// expire waits for the grace after the end of g, and then ends the streams,
// unless another websocket has come since.
func (l *Link) expire(ctx context.Context, g *leg) {
	if api.Sleep(ctx, orDefault(l.cfg.timing.grace, defaultGrace)) == nil {
		l.endStreams(g, errNoWebsocket)
	}
}

var errNoWebsocket = errors.New("relay connection was lost and did not come back")

// endStreams ends all streams with err. If lost is not nil, it does so only if no
// websocket has come after lost.
func (l *Link) endStreams(lost *leg, err error) {
	for _, m := range l.streams.clear(lost) {
		m.stream.end(err)
		m.lane.Close()
		l.logStream(slog.LevelInfo, "stream ended", []byte(m.id), "reason", err.Error())
	}
}

// streamEnded is called when a stream ended from this side, and sends the peer a
// reset.
func (l *Link) streamEnded(id string, s *stream, err error) {
	m, g := l.streams.endedHere(id, s)
	if m == nil {
		return
	}
	if err != nil {
		l.logStream(slog.LevelWarn, "stream ended", []byte(id), "error", err)
	} else {
		l.logStream(slog.LevelInfo, "stream ended", []byte(id), "reason", "closed")
	}
	if g != nil {
		g.farewell(m)
	}
}

// logStream writes a line about a stream into the log; at level debug if there were
// too many such lines just now.
func (l *Link) logStream(level slog.Level, what string, id []byte, args ...any) {
	if level > slog.LevelDebug {
		ok, first := l.lines.take(time.Now())
		if first {
			l.log.Warn("too much to say about streams, the rest is left out", "lines", maxStreamLines, "interval", streamLinesInterval)
		}
		if !ok {
			level = slog.LevelDebug
		}
	}
	l.log.Log(context.Background(), level, what, append([]any{"stream", label(id)}, args...)...)
}

// lineLimit counts lines of a log. The zero value is ready.
type lineLimit struct {
	mu    sync.Mutex // protects the fields below
	since time.Time
	n     int
}

// take counts one more line. ok reports whether the line may be written; first
// reports that it is the first line of its interval that may not.
func (l *lineLimit) take(now time.Time) (ok, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.since) >= streamLinesInterval {
		l.since, l.n = now, 0
	}
	l.n++
	return l.n <= maxStreamLines, l.n == maxStreamLines+1
}

// offer passes a stream to Accept. It returns false if Accept will not take it.
func (l *Link) offer(s rpc.Conn) bool {
	select {
	case <-l.closed:
		return false
	default:
	}
	select {
	case l.accepted <- s:
	default: // full of streams that ended before they were accepted
		return false
	}
	select {
	case <-l.closed:
		l.refuseAccepted() // Close may have emptied the channel just before s came
	default:
	}
	return true
}

// Accept returns the next stream whose handshake is complete. Its String is a
// label for logs.
func (l *Link) Accept() (rpc.Conn, error) {
	select {
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close makes Accept return net.ErrClosed and refuses new streams. It does not
// end Run, nor the streams that were accepted.
func (l *Link) Close() error {
	l.closing.Do(func() { close(l.closed) })
	l.refuseAccepted()
	return nil
}

// refuseAccepted closes streams that wait for an Accept that will not come.
func (l *Link) refuseAccepted() {
	for {
		select {
		case c := <-l.accepted:
			_ = c.Close() // no caller would get its error
		default:
			return
		}
	}
}

// Addr is nil: a link listens nowhere.
func (l *Link) Addr() net.Addr { return nil }

// Ready reports whether the websocket to the rendezvous is up.
func (l *Link) Ready() bool { return l.ready.Load() }

// Unready returns the reason why no harness can open a stream, "" if one can. A websocket outlives
// the key that it was opened with, but the registry lets no harness connect to an executor whose
// credential it refuses.
func (l *Link) Unready() string {
	switch {
	case !l.Ready():
		return "there is no connection to the rendezvous"
	case l.Refused():
		return fmt.Sprintf("the registry refuses the credential of this executor (status %d)", l.cfg.Registry.Refused())
	}
	return ""
}

// Refused reports whether the registry refused the executor's credential and has not accepted it
// since.
func (l *Link) Refused() bool { return l.cfg.Registry.Refused() != 0 }

// Stats has the current state and the counts of a link.
type Stats struct {
	Streams        int
	Connects       uint64 // websockets
	Refused        uint64 // handshakes
	Sent, Received uint64 // bytes of websockets
}

// Stats returns the current values.
func (l *Link) Stats() Stats {
	return Stats{l.streams.count(), l.connects.Load(), l.refused.Load(), l.traffic.Sent.Load(), l.traffic.Received.Load()}
}

// refusedForGood reports whether the rendezvous refused the websocket with a
// status 4xx: then only a new registration can help (remote.md 3.5).
func refusedForGood(err error) bool {
	refused, ok := errors.AsType[*socket.RefusedError](err)
	return ok && 400 <= refused.Status && refused.Status < 500
}

// flush waits until earlier writes have been sent, or patience is over.
func flush(ctx context.Context, s *socket.Socket, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	_ = s.Flush(ctx) // the caller closes s anyway
}

func unlessDone(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func orDefault(d, fallback time.Duration) time.Duration {
	if d <= 0 {
		return fallback
	}
	return d
}
