// Package limits counts the resources that each principal uses, and refuses more than its
// limits: requests, websockets, streams, bytes, lines in the log, and memory for ends that do
// not read. Each process counts separately. One [Limiter] serves the API and the
// rendezvous. Its methods may be called concurrently, and only Bytes waits.
package limits

import (
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/execagent/execagent/internal/registry/store"
	"github.com/execagent/execagent/internal/relay/socket"
)

// Defaults of [store.Limits]. They are generous, because usually a whole fleet shares one
// key and connects again at once after an outage, and the reference executor ends forever
// after an answer of 429.
const (
	DefaultRequests     = 500
	DefaultRequestBurst = 5_000
	DefaultConnections  = 10_000
	DefaultStreams      = 20_000
	DefaultBytes        = 1 << 30
)

// FrameCost is the number of bytes that a frame counts in addition to its length, for the
// processor time that it costs. So by default a principal may send 250,000 tiny frames per
// second, which take most of one core.
const FrameCost = 4 << 10

// maxLarge is the number of messages above 1 KiB, of up to 256 KiB each, that the websockets
// of a principal may hold at once. These messages have come in part, or are not passed on yet.
// A message of an honest peer is held for milliseconds. The number is lower if these messages
// could take more than the principal's part of the memory that the process may hold for peers.
const maxLarge = 1024

// maxPrincipalWaiting bounds the bytes that a process holds for one principal's streams
// and websockets, so that one principal cannot use up all memory that the process may hold for
// peers. If that memory is small, a principal may use only 1/principalShare of it. Without the
// bound a principal could let several MiB wait in each of thousands of streams.
const (
	maxPrincipalWaiting = 128 << 20
	principalShare      = 4
)

// Bounds of the bytes that a process holds for peers. They may take 1/waitingShare of the
// process's memory. The rest is for websockets, the store, and the garbage of all of them.
// defaultWaiting is used if the memory has no limit, and minWaiting is the least bound for a
// small memory.
const (
	waitingShare   = 2
	defaultWaiting = 512 << 20
	minWaiting     = 16 << 20
)

// Parts of the memory that a process may hold for peers. An alarm is raised when alarmShare is
// taken. It is over when no more than calmShare is taken.
const (
	alarmShare = 7. / 8
	calmShare  = 3. / 4
)

// MaxNewEnvironments is the number of environments without a registration that a principal
// may register within EnvironmentsTime. The store keeps each registration, of about 2 KiB,
// for 30 days. With this bound one principal alone cannot fill the store.
const (
	MaxNewEnvironments = 10_000
	EnvironmentsTime   = 24 * time.Hour
)

// A principal may cause linesPerConnection lines in the log for each websocket that it may
// have, all at once, and after that linesPerSecond. Further lines are left out and counted.
const (
	linesPerConnection = 3
	linesPerSecond     = 20
)

// minByteBurst is the least number of bytes that a principal may relay at once. It is needed
// because the largest message must be relayed even at a low limit of bytes per second.
const minByteBurst = 1 << 20

// maxAllowances bounds the number of principals whose accounts a server keeps. If there are
// more, it drops the accounts that are equal to a new account: their principals were silent
// for idleAllowance, have nothing open, and have all their rates back.
const (
	maxAllowances = 4096
	idleAllowance = time.Minute
)

// Limiter enforces the limits of principals.
type Limiter struct {
	defaults store.Limits
	waiting  *socket.Budget  // bytes that are held for peers, of all principals
	alarm    <-chan struct{} // has a value when little of waiting is left

	mu         sync.Mutex            // protects the field below, and the counts in it
	allowances map[string]*Allowance // by principal; at most maxAllowances
}

// Allowance is the account of one principal: how much of its limits it has used. The exported
// members may be used without a lock. The limiter's mutex protects the other members.
type Allowance struct {
	limits      store.Limits
	requests    *rate.Limiter  // nil: no limit
	validations *rate.Limiter  // validate requests of an executor
	upgrades    *rate.Limiter  // attempts to open a websocket
	Created     *rate.Limiter  // new environments, see [MaxNewEnvironments]
	Bytes       *rate.Limiter  // relayed bytes; nil: no limit
	Lines       *rate.Limiter  // in the log
	unsaid      int            // lines that were left out since the last logged line
	Large       chan struct{}  // places for large messages, see [socket.Config]
	waiting     *socket.Budget // bytes for ends of its streams that do not read
	connections int            // websockets
	kept        int            // HTTP connections, see Keep
	streams     int
	creating    int       // environments that are being registered
	used        time.Time // when the account was last asked for, or a place was last released
}

// New makes a limiter. defaults are the limits of principals without limits of their own. For
// zero members the constants above are used. memory is the memory that the process may use, in
// bytes; 0 for no limit.
func New(defaults store.Limits, memory int64) *Limiter {
	most := int64(defaultWaiting)
	if memory > 0 {
		most = max(memory/waitingShare, minWaiting)
	}
	l := &Limiter{
		defaults: defaults.Or(store.Limits{
			Requests: DefaultRequests, RequestBurst: DefaultRequestBurst,
			Connections: DefaultConnections, Streams: DefaultStreams, Bytes: DefaultBytes,
		}),
		waiting:    socket.NewBudget(most, nil),
		allowances: make(map[string]*Allowance),
	}
	l.alarm = l.waiting.Alarm(int64(float64(most) * alarmShare))
	return l
}

// Alarm returns a channel that has a value when little is left of the memory that may be held
// for peers.
func (l *Limiter) Alarm() <-chan struct{} { return l.alarm }

// Excess returns the number of bytes that must be freed to end an alarm. It is not positive if
// there is no need to free any.
func (l *Limiter) Excess() int { return l.waiting.Used() - int(float64(l.waiting.Limit())*calmShare) }

// MaxWaiting returns the number of bytes that may be held for peers.
func (l *Limiter) MaxWaiting() int64 { return l.waiting.Limit() }

// Defaults returns the limits of principals without limits of their own.
func (l *Limiter) Defaults() store.Limits { return l.defaults }

// Request counts one request. If ok is false, the request is refused, and the principal should
// try again after retryAfter.
func (l *Limiter) Request(p *store.Principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *Allowance) *rate.Limiter { return a.requests })
}

// Validation counts a validate request of an executor, as Request counts a request. Validate
// requests are counted separately, because harnesses decide how many there are. If they kept an
// executor from registering, the executor would end.
func (l *Limiter) Validation(p *store.Principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *Allowance) *rate.Limiter { return a.validations })
}

// reserve takes one event from the rate limiter that of returns. It takes none if it would have
// to wait.
func (l *Limiter) reserve(p *store.Principal, of func(*Allowance) *rate.Limiter) (retryAfter time.Duration, ok bool) {
	l.mu.Lock()
	a := l.allowanceLocked(p)
	if a == nil {
		l.mu.Unlock()
		return time.Second, false
	}
	requests := of(a)
	l.mu.Unlock()
	if requests == nil {
		return 0, true
	}
	r := requests.Reserve()
	if !r.OK() {
		return time.Second, false
	}
	if delay := r.Delay(); delay > 0 {
		r.Cancel()
		return delay, false
	}
	return 0, true
}

// Connect takes a place for a websocket. ok is false if the principal has as many websockets as
// it may have, or if it has opened too many in a short time. Each opening costs some exchanges
// with the store. So a principal may open as many websockets at once as it may have, and after
// that as many per second as it may make requests. release releases the place, and must not be
// called twice.
func (l *Limiter) Connect(p *store.Principal) (release func(), ok bool) {
	if _, ok := l.reserve(p, func(a *Allowance) *rate.Limiter { return a.upgrades }); !ok {
		return nil, false
	}
	return l.take(p, func(a *Allowance) (*int, int) { return &a.connections, a.limits.Connections })
}

// Large returns the channel that all websockets of a principal share, see
// [socket.Config]. The caller must hold a place from Connect. Without it the principal may have
// no allowance, and Large would panic.
func (l *Limiter) Large(p *store.Principal) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allowances[p.ID].Large
}

// line reports whether a line about a principal may be logged, and how many lines were left out
// since the last logged line.
func (l *Limiter) line(principalID string) (unsaid int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(principalID)
	if a == nil {
		return 0, false
	}
	if !a.Lines.Allow() {
		a.unsaid++
		return 0, false
	}
	unsaid, a.unsaid = a.unsaid, 0
	return unsaid, true
}

// Share returns the budget of the bytes that wait for ends of a principal's streams. If
// there are too many principals, it returns the budget of the whole process.
func (l *Limiter) Share(principalID string) *socket.Budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accountLocked(principalID); a != nil {
		return a.waiting
	}
	return l.waiting
}

// Create takes a place for registering an environment that has no registration, until
// release. ok is false if the principal is registering as many environments now as it may
// still create. Only Created counts the environment as created, because an executor tries
// again and again while the store fails.
func (l *Limiter) Create(p *store.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.creating, int(a.Created.Tokens()) })
}

// Created counts an environment for which Create gave a place, after it was
// registered.
func (l *Limiter) Created(p *store.Principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.allowanceLocked(p); a != nil {
		a.Created.Allow()
	}
}

// Keep takes a place for an HTTP connection that stays open for further requests, until
// release. A principal may have as many such connections as websockets.
func (l *Limiter) Keep(p *store.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.kept, a.limits.Connections })
}

// Stream takes a place for a stream, until release.
func (l *Limiter) Stream(p *store.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.streams, a.limits.Streams })
}

// KeepStream takes a place for a stream that had a place at another server, until release. It
// succeeds even if the principal has as many streams as it may have.
func (l *Limiter) KeepStream(principalID string) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.accountLocked(principalID)
	if a == nil {
		return func() {}
	}
	a.streams++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		a.streams--
		a.used = time.Now()
	}
}

// take increments the count that of returns, until release. ok is false if the count has
// reached the limit.
func (l *Limiter) take(p *store.Principal, of func(*Allowance) (count *int, limit int)) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.allowanceLocked(p)
	if a == nil {
		return nil, false
	}
	count, limit := of(a)
	if limit >= 0 && *count >= limit {
		return nil, false
	}
	*count++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		*count--
		a.used = time.Now()
	}, true
}

// Bytes waits until n more bytes may be relayed for the principal. done is closed at the end of
// the websocket on which the bytes came. If it is closed during the wait, Bytes returns
// net.ErrClosed. If there are too many principals, it returns an error at once.
func (l *Limiter) Bytes(done <-chan struct{}, p *store.Principal, n int) error {
	l.mu.Lock()
	a := l.allowanceLocked(p)
	if a == nil {
		l.mu.Unlock()
		return fmt.Errorf("more than %d principals at once", maxAllowances)
	}
	bytes := a.Bytes
	l.mu.Unlock()
	if bytes == nil {
		return nil
	}
	for ; n > 0; n -= minByteBurst {
		now := time.Now()
		r := bytes.ReserveN(now, min(n, minByteBurst))
		delay := r.DelayFrom(now)
		if delay == 0 {
			continue
		}
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-done:
			timer.Stop()
			r.Cancel()
			return net.ErrClosed
		}
	}
	return nil
}

// Allowance returns the account of a principal, for tests, or nil if there are too many
// principals.
func (l *Limiter) Allowance(principalID string) *Allowance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accountLocked(principalID)
}

// Usage counts the open resources of one principal, or of all principals together.
type Usage struct {
	Connections int // websockets
	Kept        int // HTTP connections
	Streams     int
	Creating    int // environments that are being registered
	Waiting     int // bytes for ends that do not read
}

// Usage counts the open resources of a principal, or of all principals with "".
func (l *Limiter) Usage(principalID string) (u Usage) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range l.allowances {
		if principalID == "" || principalID == id {
			u.Connections += a.connections
			u.Kept += a.kept
			u.Streams += a.streams
			u.Creating += a.creating
			u.Waiting += a.waiting.Used()
		}
	}
	if principalID == "" {
		u.Waiting = l.waiting.Used() // also of principals that have no allowance
	}
	return u
}

// allowanceLocked finds or makes the principal's allowance, and gives it the limits that
// the principal has now. It returns nil if there are too many principals.
func (l *Limiter) allowanceLocked(p *store.Principal) *Allowance {
	now := time.Now()
	limits := p.Limits.Or(l.defaults)
	a := l.allowances[p.ID]
	if a == nil {
		if len(l.allowances) >= maxAllowances && !l.forgetLocked(now) {
			return nil
		}
		part := l.waiting.Limit() / principalShare
		a = &Allowance{
			Created: rate.NewLimiter(rate.Every(EnvironmentsTime/MaxNewEnvironments), MaxNewEnvironments),
			Large:   make(chan struct{}, min(maxLarge, part/socket.MaxMessage)),
			waiting: socket.NewBudget(min(maxPrincipalWaiting, part), l.waiting),
		}
		l.allowances[p.ID] = a
	}
	if a.limits != limits {
		a.limits = limits
		burst := limits.RequestBurst
		if burst < 0 {
			burst = max(1, int(limits.Requests))
		}
		a.requests = relimited(a.requests, rate.Limit(limits.Requests), burst)
		a.validations = relimited(a.validations, rate.Limit(limits.Requests), burst)
		a.upgrades = relimited(a.upgrades, rate.Limit(limits.Requests), max(limits.Connections, burst))
		a.Lines = relimited(a.Lines, linesPerSecond, linesPerConnection*max(limits.Connections, burst))
		a.Bytes = relimited(a.Bytes, rate.Limit(limits.Bytes), int(max(limits.Bytes, minByteBurst)))
	}
	a.used = now
	return a
}

// accountLocked is allowanceLocked for a principal of which only the id is known, for example
// because it is connected to another server. A new allowance has the default limits.
func (l *Limiter) accountLocked(principalID string) *Allowance {
	if a := l.allowances[principalID]; a != nil {
		return a
	}
	return l.allowanceLocked(&store.Principal{ID: principalID})
}

// relimited gives a rate limiter a new limit and burst, and keeps its spent tokens. A
// negative limit means no limit: the result is nil. Old and new limits may alternate, because
// a websocket keeps the limits that it was opened with.
func relimited(l *rate.Limiter, limit rate.Limit, burst int) *rate.Limiter {
	switch {
	case limit < 0:
		return nil
	case l == nil:
		return rate.NewLimiter(limit, burst)
	}
	l.SetLimit(limit)
	l.SetBurst(burst)
	return l
}

// forgetLocked drops idle allowances, because a new allowance would grant the same. It reports
// whether it has dropped any.
func (l *Limiter) forgetLocked(now time.Time) bool {
	n := len(l.allowances)
	for id, a := range l.allowances {
		if a.isIdle(now) {
			delete(l.allowances, id)
		}
	}
	return len(l.allowances) < n
}

// isIdle reports whether a new allowance would grant as much, and the allowance was not used for
// idleAllowance.
func (a *Allowance) isIdle(now time.Time) bool {
	if now.Sub(a.used) < idleAllowance {
		return false
	}
	if a.connections > 0 || a.kept > 0 || a.streams > 0 || a.creating > 0 || a.waiting.Used() > 0 {
		return false
	}
	for _, r := range []*rate.Limiter{a.requests, a.validations, a.upgrades, a.Created, a.Bytes, a.Lines} {
		if r != nil && r.TokensAt(now) < float64(r.Burst()) {
			return false
		}
	}
	return true
}
