package rooms

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/share"
)

// Websockets is the number of websockets that an executor may have open: one waits, and each of the
// others has a harness. One principal has half of these harnesses at most.
const Websockets = 64

const (
	// joinPatience is how long a harness waits for a websocket of the executor. It is needed
	// because the reference has no websocket for a second after each harness.
	joinPatience = 5 * time.Second
	// lingering is how long an executor without a websocket counts as online, for the same reason.
	lingering = 5 * time.Second
)

var (
	errAbsent  = errors.New("no websocket of the executor waits")
	errCrowded = errors.New("too many websockets of the executor")
	errClosed  = errors.New("the registry ends")
)

// Config has the parts and options of rooms. All fields are required.
type Config struct {
	Store  *store.Store
	Signer *ticket.Signer
	Limits *limits.Limiter
	Log    *limits.Log
	Node   string // of this process

	// Allows reports whether the operator lets an environment use the direct transport.
	Allows func(environmentID string) bool
	// Verify reports whether a principal has signed the request for a websocket.
	Verify SignedBy

	Metrics Metrics
}

// Metrics are the counters of rooms. They belong to the metrics of the rendezvous.
type Metrics struct {
	Executors, Harnesses *atomic.Int64 // open websockets
	Bytes                *atomic.Uint64
	Refused              func(reason string) // upgrades
}

// Rooms is the [http.Handler] of the URLs of the direct transport. All methods may be called
// concurrently. Close must be called last.
type Rooms struct {
	cfg        Config
	joining    time.Duration // joinPatience except in tests
	lingerTime time.Duration // lingering except in tests
	background context.Context
	stop       context.CancelFunc
	serving    sync.WaitGroup

	mu     sync.Mutex // protects the fields below and those of the rooms
	closed bool
	rooms  map[string]*room // by registration id
	ends   map[*end]struct{}
}

// room is the state of one executor at this process. It exists as long as the executor has
// websockets here, and for lingerTime after that.
type room struct {
	environmentID string
	id            string // of the registration
	executors     int    // websockets, waiting or joined
	waiting       []*end // the oldest first
	wanting       []chan *end
	harnesses     share.Pool    // joined or wanting, by principal
	empty         chan struct{} // of capacity 1: has a value when the last websocket of the executor has gone
}

func newRoom(environmentID, registrationID string) *room {
	return &room{environmentID: environmentID, id: registrationID, harnesses: share.Pool{Max: Websockets}, empty: make(chan struct{}, 1)}
}

// New returns empty rooms.
func New(cfg Config) *Rooms {
	rs := &Rooms{cfg: cfg, joining: joinPatience, lingerTime: lingering, rooms: make(map[string]*room), ends: make(map[*end]struct{})}
	rs.background, rs.stop = context.WithCancel(context.Background())
	return rs
}

// Close ends all websockets and waits for their end. New websockets are refused. Close may be
// called again.
func (rs *Rooms) Close() {
	rs.mu.Lock()
	rs.closed = true
	for e := range rs.ends {
		e.close()
	}
	rs.mu.Unlock()
	rs.stop()
	rs.serving.Wait()
}

// HasExecutor reports whether the executor of a registration has a websocket here.
func (rs *Rooms) HasExecutor(registrationID string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rm := rs.rooms[registrationID]
	return rm != nil && rm.executors > 0
}

// Online reports whether a harness may find the executor of a registration here or at another
// process. An executor that has just gone from here counts for lingerTime, because it may connect
// again.
func (rs *Rooms) Online(ctx context.Context, environmentID, registrationID string) (bool, error) {
	rs.mu.Lock()
	here := rs.rooms[registrationID] != nil
	rs.mu.Unlock()
	if here {
		return true, nil
	}
	p, online, err := rs.cfg.Store.Online(ctx, environmentID)
	return online && p.RegistrationID == registrationID, err
}

// Review ends the websockets to which a principal has lost its right. With "" it reviews all
// principals. If the store does not answer, everything stays as it is.
func (rs *Rooms) Review(ctx context.Context, principalID string) {
	found := make(map[string][]*end)
	rs.mu.Lock()
	for e := range rs.ends {
		if id := e.principal.ID; principalID == "" || principalID == id {
			found[id] = append(found[id], e)
		}
	}
	rs.mu.Unlock()
	var ending sync.WaitGroup
	defer ending.Wait()
	for id, ends := range found {
		now, known, err := rs.cfg.Store.Principal(ctx, id)
		if err != nil {
			return
		}
		for _, e := range ends {
			if !known || !now.May(e.role, e.room.environmentID) {
				ending.Go(func() { rs.revoke(e) })
			}
		}
	}
}

// revoke ends a websocket, after it has told the partner. It may wait for the partner to accept
// this message.
func (rs *Rooms) revoke(e *end) {
	rs.tell(e, "closing a websocket", "reason", "its principal may not have it any more")
	if other := rs.partner(e); other != nil {
		rs.introduce(e, other, wire.PingRevoked)
	}
	e.close()
}

// enter adds a websocket. A websocket of an executor is added to its room, which enter makes if
// there is none. A websocket of a harness is joined with the executor's websocket that find has
// returned. If the error is nil, Close waits for the caller, which must call serving.Done once the
// websocket is served.
func (rs *Rooms) enter(e, executor *end, reg store.Seen) error {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.closed {
		return errClosed
	}
	if e.role == ticket.Harness {
		e.other, executor.other = executor, e
		rs.ends[e] = struct{}{}
		rs.serving.Add(1)
		return nil
	}
	rm := rs.rooms[e.room.id]
	switch {
	case rm == nil:
		rm = e.room
		rs.rooms[rm.id] = rm
		rs.serving.Go(func() { rs.announce(rm, e.principal, reg) })
	case rm.executors >= Websockets:
		return errCrowded
	}
	e.room = rm
	rm.executors++
	rs.ends[e] = struct{}{}
	rs.serving.Add(1)
	if len(rm.wanting) > 0 {
		rm.wanting[0] <- e // does not block: the channel has room for one
		rm.wanting = rm.wanting[1:]
	} else {
		rm.waiting = append(rm.waiting, e)
	}
	return nil
}

// partner returns the websocket that gets the messages of e, or nil if there is none yet.
func (rs *Rooms) partner(e *end) *end {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return e.other
}

// leave removes a websocket, and returns its partner.
func (rs *Rooms) leave(e *end) *end {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	delete(rs.ends, e)
	if e.role == ticket.Harness {
		return e.other
	}
	rm := e.room
	if i := slices.Index(rm.waiting, e); i >= 0 {
		rm.waiting = slices.Delete(rm.waiting, i, i+1)
	}
	if rm.executors--; rm.executors == 0 {
		select {
		case rm.empty <- struct{}{}:
		default:
		}
	}
	return e.other
}

// find returns a waiting websocket of an executor for a harness that has come. If none waits, find
// waits for one, because the websocket of the previous harness may have ended just now. The harness
// has a place in the share of its principal until left is called.
func (rs *Rooms) find(ctx context.Context, registrationID, principalID string) (e *end, left func(), err error) {
	rs.mu.Lock()
	rm := rs.rooms[registrationID]
	if rm == nil || rs.closed || rm.harnesses.Take(principalID, 1) != nil {
		rs.mu.Unlock()
		return nil, nil, errAbsent
	}
	left = func() { rm.harnesses.Give(principalID, 1) }
	if len(rm.waiting) > 0 {
		e := rm.waiting[0]
		rm.waiting = slices.Delete(rm.waiting, 0, 1)
		rs.mu.Unlock()
		return e, left, nil
	}
	want := make(chan *end, 1)
	rm.wanting = append(rm.wanting, want)
	rs.mu.Unlock()

	timer := time.NewTimer(rs.joining)
	defer timer.Stop()
	select {
	case e := <-want:
		return e, left, nil
	case <-timer.C:
	case <-ctx.Done():
	case <-rs.background.Done():
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if i := slices.Index(rm.wanting, want); i >= 0 {
		rm.wanting = slices.Delete(rm.wanting, i, i+1)
		left()
		return nil, nil, errAbsent
	}
	return <-want, left, nil // a websocket has come meanwhile
}

// announce notes in the store that an executor is here, and removes the note when the executor has
// been away for lingerTime.
func (rs *Rooms) announce(rm *room, p *store.Principal, reg store.Seen) {
	presence := store.Presence{EnvironmentID: rm.environmentID, RegistrationID: rm.id, Node: rs.cfg.Node, Principal: p.ID, Since: time.Now().UTC()}
	revision, err := rs.cfg.Store.SetOnline(rs.background, presence, reg)
	for errors.Is(err, store.ErrUnavailable) && store.Pause(rs.background) {
		revision, err = rs.cfg.Store.SetOnline(rs.background, presence, store.Seen{})
	}
	if err != nil {
		if rs.background.Err() == nil {
			rs.cfg.Log.Trouble("an executor cannot stay", "environment", rm.environmentID, "registration", rm.id, "error", err)
		}
		rs.evict(rm)
	}
	rs.await(rm)
	for err == nil {
		failed := rs.cfg.Store.SetOffline(context.WithoutCancel(rs.background), rm.environmentID, revision)
		if !errors.Is(failed, store.ErrUnavailable) || !store.Pause(rs.background) {
			return
		}
	}
}

// evict closes the websockets of a room's executor.
func (rs *Rooms) evict(rm *room) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	for e := range rs.ends {
		if e.room == rm && e.role == ticket.Executor {
			e.close()
		}
	}
}

// await waits until the executor of a room has been away for lingerTime, and removes the room.
func (rs *Rooms) await(rm *room) {
	for {
		select {
		case <-rm.empty:
		case <-rs.background.Done():
		}
		timer := time.NewTimer(rs.lingerTime)
		select {
		case <-timer.C:
		case <-rs.background.Done():
			timer.Stop()
		}
		rs.mu.Lock()
		over := rm.executors == 0 || rs.background.Err() != nil
		if over {
			delete(rs.rooms, rm.id)
		}
		rs.mu.Unlock()
		if over {
			return
		}
	}
}

func (rs *Rooms) tell(e *end, message string, more ...any) {
	rs.cfg.Log.Tell(slog.LevelInfo, message, e.room.environmentID, e.room.id, e.principal.ID, append([]any{"transport", "direct"}, more...)...)
}
