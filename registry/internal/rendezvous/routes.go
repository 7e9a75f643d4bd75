package rendezvous

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/registry/limits"
	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/registry/ticket"
)

// Config has the parts and options of a rendezvous. All fields except Review are required.
type Config struct {
	Store   Store
	Signer  *ticket.Signer  // of the URLs of websockets
	Limits  *limits.Limiter // of principals, shared with the API
	Log     *limits.Log
	Metrics *Metrics
	Self    store.Server // describes this server; the node is its name, which no other server may ever have

	// Review is called with each principal whose key or identity has changed, and with "" when all
	// principals must be reviewed. nil: it is not called.
	Review func(ctx context.Context, principalID string)

	// Grace is how long a stream whose ends acknowledge keeps its route if one of its
	// websockets has ended.
	Grace time.Duration
}

// Routes has the websockets and streams of one server, in a meeting for every registration
// that has websockets or streams here. It is the [http.Handler] of the rendezvous URLs.
// All methods may be called concurrently. Close must be called last.
type Routes struct {
	store   Store
	signer  *ticket.Signer
	limits  *limits.Limiter
	log     *limits.Log
	metrics *Metrics
	self    store.Server
	node    string // of self
	grace   time.Duration
	also    func(ctx context.Context, principalID string) // Config.Review

	hop     *hop
	silence time.Duration // nodeSilence except in tests; under hop.mu
	opening time.Duration // defaultOpening except in tests

	aftermath aftermath   // returns memory after many websockets at once
	draining  atomic.Bool // upgrades are refused; set by Drain and Close

	// background ends with Close. It is for work that outlives the request that opened a
	// websocket.
	background context.Context
	stop       context.CancelFunc
	serving    sync.WaitGroup // websockets, and the goroutines that they started

	retire   context.CancelFunc // ends the goroutines that watching counts
	watching sync.WaitGroup     // heartbeat, revocations, audit, relief

	mu       sync.Mutex // protects the fields below; taken after a meeting's
	closed   bool
	meetings map[string]*meeting // by registration id
	sockets  map[*peer]struct{}
	drained  chan struct{} // made by Drain, closed when no socket is left
}

// New announces the node to the other servers on the store, and begins to receive their
// letters and revocations. The start must succeed before ctx ends and within
// store.OpenTimeout. The goroutines that New starts run until Close.
func New(ctx context.Context, cfg Config) (*Routes, error) {
	ctx, enough := context.WithTimeout(ctx, store.OpenTimeout)
	defer enough()
	rs := &Routes{
		store: cfg.Store, signer: cfg.Signer, limits: cfg.Limits, log: cfg.Log, metrics: cfg.Metrics, self: cfg.Self, node: cfg.Self.Node, grace: cfg.Grace, also: cfg.Review,
		silence: nodeSilence, opening: defaultOpening,
		meetings: make(map[string]*meeting), sockets: make(map[*peer]struct{}),
	}
	rs.background, rs.stop = context.WithCancel(context.Background())
	var lasting context.Context
	lasting, rs.retire = context.WithCancel(context.Background())
	if err := rs.begin(ctx, lasting); err != nil {
		rs.retire()
		rs.stop()
		return nil, errors.Join(err, rs.store.Withdraw(context.WithoutCancel(ctx), rs.node))
	}
	return rs, nil
}

// begin starts the goroutines that run until lasting ends. ctx bounds only the start.
func (rs *Routes) begin(ctx, lasting context.Context) error {
	if err := store.Persist(ctx, func() error { return rs.store.Announce(ctx, rs.node) }); err != nil {
		return err
	}
	var err error
	if rs.hop, err = openHop(ctx, rs); err != nil {
		return err
	}
	// The watch lives as long as the context that it is made with, so this context must be
	// lasting. Until the watch is made, the end of ctx ends lasting, too.
	stop := context.AfterFunc(ctx, rs.retire)
	var revoked store.Revocations
	err = store.Persist(ctx, func() (err error) {
		revoked, err = rs.store.WatchRevocations(lasting)
		return err
	})
	if err == nil && !stop() {
		err = errors.Join(context.Cause(ctx), revoked.Stop())
	}
	if err != nil {
		return errors.Join(err, rs.close())
	}
	rs.watching.Go(func() { revoked.Run(lasting, func(id string) { rs.review(lasting, id) }) })
	rs.watching.Go(func() { rs.audit(lasting) })
	rs.watching.Go(func() { rs.relieve(lasting) })
	rs.watching.Go(func() { rs.store.Heartbeat(lasting, rs.self) })
	return nil
}

// Close ends all websockets and waits for every goroutine that New or a request has
// started. Streams then move to other servers of the same store, as after a crash. A
// [Routes.Drain] before Close makes the move smoother for the ends. Close may be called again.
func (rs *Routes) Close() error {
	rs.draining.Store(true)
	err := rs.close()
	rs.aftermath.stop()
	rs.retire()
	rs.watching.Wait()
	if err := rs.store.Withdraw(context.Background(), rs.node); err != nil {
		// The other servers find out themselves, after store.nodeTTL.
		rs.log.Warn("leaving the store", "error", err)
	}
	return err
}

// Draining reports whether Drain or Close has begun. From then on no websocket is opened.
func (rs *Routes) Draining() bool { return rs.draining.Load() }

// enter returns the meeting of a registration, and makes the meeting if there is none.
// The caller must call leave.
func (rs *Routes) enter(environmentID, registrationID string) *meeting {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	m := rs.meetings[registrationID]
	if m == nil {
		m = &meeting{rs: rs, id: registrationID, environmentID: environmentID}
		rs.meetings[registrationID] = m
	}
	m.holders++
	return m
}

// leave undoes one enter or find, or releases the hold of a route or a goroutine on its
// meeting. A meeting without holders is forgotten.
func (rs *Routes) leave(m *meeting) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if m.holders--; m.holders == 0 {
		delete(rs.meetings, m.id)
	}
}

// find enters the meeting of a registration, or returns nil if there is none.
func (rs *Routes) find(registrationID string) *meeting {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	m := rs.meetings[registrationID]
	if m != nil {
		m.holders++
	}
	return m
}

// each calls f with every meeting. f may lock every mutex.
func (rs *Routes) each(f func(*meeting)) {
	rs.mu.Lock()
	all := make([]*meeting, 0, len(rs.meetings))
	for _, m := range rs.meetings {
		m.holders++
		all = append(all, m)
	}
	rs.mu.Unlock()
	for _, m := range all {
		f(m)
		rs.leave(m)
	}
}
