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
)

// Websockets is how many an executor may have open: one waits, the others have a harness each.
const Websockets = 64

const (
	// joinPatience is how long a harness waits for a websocket of the executor: that of the
	// reference is away for a second after each harness.
	joinPatience = 5 * time.Second
	// lingering is how long an executor without a websocket counts as online, for the same reason.
	lingering = 5 * time.Second
	// maxWanting is how many harnesses may wait for one executor.
	maxWanting = 64
)

var (
	errAbsent  = errors.New("no websocket of the executor waits")
	errCrowded = errors.New("too many websockets of the executor")
	errClosed  = errors.New("the registry ends")
)

// Config is what rooms work with. All of it is needed.
type Config struct {
	Store  *store.Store
	Signer *ticket.Signer
	Limits *limits.Limiter
	Log    *limits.Log
	Node   string // of this process

	// Allows reports whether the operator lets an environment use the direct transport.
	Allows func(environmentID string) bool
	// Verify reports whether the request for a websocket is signed by a principal.
	Verify SignedBy

	Metrics Metrics
}

// Metrics are what rooms count; they belong to the rendezvous as a whole.
type Metrics struct {
	Executors, Harnesses *atomic.Int64 // open websockets
	Bytes                *atomic.Uint64
	Refused              func(reason string) // upgrades
}

// Rooms is the [http.Handler] of the URLs of the direct transport. All methods may run at once;
// Close comes last.
type Rooms struct {
	cfg        Config
	joining    time.Duration // joinPatience but in tests
	lingerTime time.Duration // lingering but in tests
	background context.Context
	stop       context.CancelFunc
	serving    sync.WaitGroup

	mu     sync.Mutex // protects the fields below and those of the rooms
	closed bool
	rooms  map[string]*room // by registration id
	ends   map[*end]struct{}
}

// room is what this process knows of one executor. It is there as long as websockets of the
// executor are, and for a while after that.
type room struct {
	environmentID string
	id            string // of the registration
	executors     int    // websockets, waiting or joined
	waiting       []*end // the oldest first
	wanting       []chan *end
	empty         chan struct{} // has room for one: the last websocket of the executor has gone
}

// New returns rooms without anybody in them.
func New(cfg Config) *Rooms {
	rs := &Rooms{cfg: cfg, joining: joinPatience, lingerTime: lingering, rooms: make(map[string]*room), ends: make(map[*end]struct{})}
	rs.background, rs.stop = context.WithCancel(context.Background())
	return rs
}

// Close ends all websockets and waits for them. New ones are refused. It may be called again.
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

// Online reports whether a harness may find the executor of a registration: here, also if that has
// gone just now and may be about to come back, or at another process.
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

// Review ends the websockets that a principal may not have any more; with "" those of all
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

// revoke ends a websocket, which may wait for its partner to hear of that.
func (rs *Rooms) revoke(e *end) {
	rs.tell(e, "closing a websocket", "reason", "its principal may not have it any more")
	if other := rs.partner(e); other != nil {
		rs.introduce(e, other, wire.PingRevoked)
	}
	e.close()
}

// enter adds a websocket: of an executor to its room, which it makes, or of a harness to the
// executor's websocket that it has found. Without an error Close waits for the caller, who calls
// serving.Done once the websocket is served.
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
		rm.wanting[0] <- e // has room for it
		rm.wanting = rm.wanting[1:]
	} else {
		rm.waiting = append(rm.waiting, e)
	}
	return nil
}

// partner returns the websocket that the messages of e go to, nil before there is one.
func (rs *Rooms) partner(e *end) *end {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return e.other
}

// leave takes a websocket out again, and returns its partner.
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

// find returns a websocket of an executor for a harness that has come. It waits for one, since
// that of the harness before may have ended just now.
func (rs *Rooms) find(ctx context.Context, registrationID string) (*end, error) {
	rs.mu.Lock()
	rm := rs.rooms[registrationID]
	if rm == nil || rs.closed || len(rm.wanting) >= maxWanting {
		rs.mu.Unlock()
		return nil, errAbsent
	}
	if len(rm.waiting) > 0 {
		e := rm.waiting[0]
		rm.waiting = slices.Delete(rm.waiting, 0, 1)
		rs.mu.Unlock()
		return e, nil
	}
	want := make(chan *end, 1)
	rm.wanting = append(rm.wanting, want)
	rs.mu.Unlock()

	timer := time.NewTimer(rs.joining)
	defer timer.Stop()
	select {
	case e := <-want:
		return e, nil
	case <-timer.C:
	case <-ctx.Done():
	case <-rs.background.Done():
	}
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if i := slices.Index(rm.wanting, want); i >= 0 {
		rm.wanting = slices.Delete(rm.wanting, i, i+1)
		return nil, errAbsent
	}
	return <-want, nil // it has come meanwhile
}

// announce keeps the store informed that an executor is here, until it has been away for a while.
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

// await returns when the executor of a room has been away for a while. Then there is no room.
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
