package relay

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/share"
)

// Limits of an executor's link (remote.md 8.2, 8.3).
const (
	maxActive     = 128 // streams; one principal has half of them
	maxPending    = 32  // handshakes whose validation is under way; one key has half of them
	maxHandshakes = 64  // goroutines of handshakes, including dropped ones
	maxLingering  = 128 // ended streams that still have frames to send
)

// maxStreamID bounds a stream's id, in bytes. remote.md 5 sets no bound. With this
// bound, the largest record still fits into a message with the id, and a reset
// always fits into a lane.
const maxStreamID = 16 << 10

// Reasons why a handshake was refused or failed. The peer does not learn which.
var (
	errActive     = errors.New("handshake on an active stream")
	errSecond     = errors.New("second handshake while the first is validated")
	errEarlyData  = errors.New("data before the handshake is complete")
	errBusy       = errors.New("too many handshakes at once")
	errFull       = errors.New("too many active streams")
	errStreamID   = errors.New("stream id is too long")
	errDropped    = errors.New("handshake was dropped meanwhile")
	errNoListener = errors.New("connections are no longer accepted")
)

// streams has the streams of a link: active ones, with a websocket or waiting
// for one, and the handshakes on the current websocket. It decides and counts;
// it sends nothing and calls no stream.
type streams struct {
	mu     sync.Mutex // protects the fields below
	active map[string]*member
	// leg is the current websocket, or the last one if up is false.
	leg *leg
	up  bool
	// orphans ended while no websocket was up; their peers must still be told.
	orphans []string
	// places are those of active streams, by the owners of these, and validations those of handshakes
	// that are validated, by their keys.
	places, validations share.Pool

	// The fields below are about the current websocket only.
	pending   map[string]*attempt
	running   int // goroutines of handshakes
	lingering int // goroutines of ended streams
}

func newStreams() *streams {
	return &streams{places: share.Pool{Max: maxActive}, validations: share.Pool{Max: maxPending}}
}

// member is an active stream and its lane on the current websocket.
type member struct {
	id     string
	owner  string // the harness's principal, or its key if the registry tells no principal
	stream *stream
	lane   *socket.Lane // nil while it waits for a websocket
}

// attempt is a handshake under way: one that is being read, answered and validated.
type attempt struct {
	id     string
	cancel context.CancelFunc
	key    string // of the harness; "" until message 1 is read

	acknowledges bool // the harness said that it will acknowledge
}

// find returns the active stream with that id, and reports whether a handshake
// for the id is under way.
func (t *streams) find(id []byte) (s *stream, pending bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.active[string(id)]; m != nil {
		return m.stream, false
	}
	return nil, t.pending[string(id)] != nil
}

// admit decides whether to run a handshake, from its id, its size and the
// handshakes under way. The caller then runs the handshake, and calls validate and released. On
// errSecond, the first handshake with that id is dropped too.
func (t *streams) admit(id, message1 []byte, cancel context.CancelFunc) (*attempt, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.active[string(id)] != nil:
		return nil, errActive
	case t.pending[string(id)] != nil:
		t.dropLocked(t.pending[string(id)])
		return nil, errSecond
	case len(id) > maxStreamID:
		return nil, errStreamID
	case !noise.FitsInitiation(message1):
		return nil, noise.ErrInitiationSize
	case t.running >= maxHandshakes:
		return nil, errBusy
	case len(t.active) >= maxActive:
		return nil, errFull
	}
	h := &attempt{id: string(id), cancel: cancel}
	if t.pending == nil {
		t.pending = make(map[string]*attempt)
	}
	t.pending[h.id] = h
	t.running++
	return h, nil
}

// validate notes whose handshake it is, before it is validated. errBusy means that too many
// handshakes of that key are validated, and errDropped that this one was dropped in the meantime.
func (t *streams) validate(h *attempt, key string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending[h.id] != h {
		return errDropped
	}
	if t.validations.Take(key, 1) != nil {
		return errBusy
	}
	h.key = key
	return nil
}

// released notes that the goroutine of a handshake has ended.
func (t *streams) released() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
}

// disturb drops the handshake under way for id, because its peer broke the order
// or ended it. It reports whether there was one.
func (t *streams) disturb(id []byte) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	h := t.pending[string(id)]
	if h == nil {
		return false
	}
	t.dropLocked(h)
	return true
}

// fail ends a handshake that failed by itself. It reports whether the peer must
// be told: not if the handshake was dropped before.
func (t *streams) fail(h *attempt) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.pending[h.id] != h {
		return false
	}
	t.endLocked(h)
	return true
}

// activate makes an active stream from a completed handshake. errDropped means that
// the handshake was dropped in the meantime, and its peer needs no answer. After
// errFull the caller tells the peer.
func (t *streams) activate(h *attempt, m *member) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.up || t.pending[h.id] != h {
		return errDropped
	}
	t.endLocked(h)
	if t.places.Take(m.owner, 1) != nil {
		return errFull
	}
	if t.active == nil {
		t.active = make(map[string]*member)
	}
	t.active[m.id] = m
	return nil
}

// endedByPeer removes and returns the active stream with that id, which its peer
// ended; nil if there is none.
func (t *streams) endedByPeer(id []byte) *member {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.active[string(id)]
	if m != nil {
		t.removeLocked(m)
	}
	return m
}

// endedHere removes a stream that ended from this side. It returns no member if
// the stream was removed before, because its id may now be another stream's. It
// returns the websocket on which to tell the peer; if none is up, the next attach
// returns the id, and the peer is told then.
func (t *streams) endedHere(id string, s *stream) (*member, *leg) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m := t.active[id]
	if m == nil || m.stream != s {
		return nil, nil
	}
	t.removeLocked(m)
	if t.up {
		return m, t.leg
	}
	if len(t.orphans) < maxActive {
		t.orphans = append(t.orphans, id)
	}
	return m, nil
}

// attach makes g the current websocket. It returns the streams that waited for a
// websocket, each with a lane on g, and the ids of streams that ended in the
// meantime.
func (t *streams) attach(g *leg) (waited []*member, orphans []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.leg, t.up = g, true
	for _, m := range t.active {
		m.lane = g.socket.NewLane(0)
		waited = append(waited, m)
	}
	orphans, t.orphans = t.orphans, nil
	return waited, orphans
}

// detach notes that the current websocket is gone, and drops its handshakes. It
// returns the active streams, which stay.
func (t *streams) detach() []*member {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.up = false
	for _, h := range t.pending {
		t.dropLocked(h)
	}
	return slices.Collect(maps.Values(t.active))
}

// owners returns the owners of the streams that wait for the next websocket.
func (t *streams) owners() wire.StreamOwners {
	t.mu.Lock()
	defer t.mu.Unlock()
	owners := make(wire.StreamOwners)
	for id, m := range t.active {
		if m.stream.principal != "" {
			owners.Set([]byte(id), m.stream.principal)
		}
	}
	return owners
}

// count returns how many streams are active.
func (t *streams) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.active)
}

// stranded reports whether streams wait for the next websocket.
func (t *streams) stranded() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.up && len(t.active) > 0
}

// endedWithLeg removes a stream that ended with its websocket, without telling its
// peer. It reports whether the stream was there.
func (t *streams) endedWithLeg(m *member) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.active[m.id] != m {
		return false
	}
	t.removeLocked(m)
	return true
}

// clear removes and returns all streams. If lost is not nil and another websocket
// has come after it, clear does nothing.
func (t *streams) clear(lost *leg) []*member {
	t.mu.Lock()
	defer t.mu.Unlock()
	if lost != nil && (t.up || t.leg != lost) {
		return nil
	}
	members := slices.Collect(maps.Values(t.active))
	for _, m := range members {
		t.removeLocked(m)
	}
	t.orphans = nil
	return members
}

// linger runs send in a goroutine that g waits for. It returns false, without
// running send, if g is no longer the current websocket or too many such
// goroutines already run.
func (t *streams) linger(g *leg, send func()) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.up || t.leg != g || t.lingering >= maxLingering {
		return false
	}
	t.lingering++
	g.wg.Go(func() {
		send()
		t.mu.Lock()
		defer t.mu.Unlock()
		t.lingering--
	})
	return true
}

func (t *streams) dropLocked(h *attempt) {
	t.endLocked(h)
	h.cancel()
}

// endLocked ends a handshake under way, whatever becomes of it.
func (t *streams) endLocked(h *attempt) {
	delete(t.pending, h.id)
	if h.key != "" {
		t.validations.Give(h.key, 1)
	}
}

// removeLocked removes an active stream.
func (t *streams) removeLocked(m *member) {
	delete(t.active, m.id)
	t.places.Give(m.owner, 1)
}

// label makes a text from outside, such as a stream id, fit for a log: at most 64
// bytes of it, quoted if they are not all printable.
func label(id []byte) string {
	const most = 64 // bytes
	cut := id[:min(len(id), most)]
	for _, c := range cut {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return strconv.QuoteToASCII(string(cut))
		}
	}
	if len(id) > most {
		return string(cut) + "..."
	}
	return string(cut)
}
