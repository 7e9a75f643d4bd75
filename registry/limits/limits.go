// Package limits counts what each principal uses of what it may: requests,
// websockets, streams, bytes, lines in the log, memory for ends that do not read.
// Each process counts for itself. One [Limiter] serves the API and the rendezvous;
// its methods may run at once, and none of them waits but Bytes.
package limits

import (
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/relay/socket"
)

// Defaults of [principal.Limits]. A fleet shares one key as a rule, and comes back all at
// once after an outage; the reference executor ends for good at a 429.
const (
	DefaultRequests     = 500
	DefaultRequestBurst = 5_000
	DefaultConnections  = 10_000
	DefaultStreams      = 20_000
	DefaultBytes        = 1 << 30
)

// FrameCost is what a frame counts beside its length, in bytes a second: that of
// the processor. A principal that sends nothing but tiny ones may send 250,000 a
// second by default, which is most of one core.
const FrameCost = 4 << 10

// MaxLarge is how many messages above 1 KiB a principal's websockets may be in the
// middle of, or have read and not passed on yet, at up to 256 KiB each: honest ones
// take milliseconds.
const MaxLarge = 1024

// What may wait in a process for ends that do not read, in bytes: for all, and for
// the streams of one principal, so that who fills it fills no more than that. A
// Stream alone could have laneLimit, and a principal thousands of streams.
const (
	maxWaiting          = 512 << 20
	MaxPrincipalWaiting = 128 << 20
)

// MaxNewEnvironments is how many environments a principal may register within
// EnvironmentsTime that have no registration yet. Each is kept for registrationTTL:
// with about 2 KiB for each, one principal alone cannot fill the store for all.
const (
	MaxNewEnvironments = 10_000
	EnvironmentsTime   = 24 * time.Hour
)

// A principal may cause so many lines in the log: three for each of its websockets,
// which may all come at once, and then a few a second. More are counted.
const (
	LinesPerConnection = 3
	linesPerSecond     = 20
)

// MinByteBurst lets the largest message through whatever the rate is.
const MinByteBurst = 1 << 20

// maxAllowances bounds how many principals a server keeps account of. Beyond it
// those go who have been silent for idleAllowance, have nothing open and have used up
// nothing that is not back.
const (
	maxAllowances = 4096
	idleAllowance = time.Minute
)

// Limiter holds principals to their limits.
type Limiter struct {
	defaults principal.Limits
	waiting  *socket.Budget // for ends that do not read, of all

	mu         sync.Mutex
	allowances map[string]*Allowance // by principal; at most maxAllowances
}

// Allowance is what one principal has used up. Its counts belong to the
// limiter's mutex.
type Allowance struct {
	limits      principal.Limits
	requests    *rate.Limiter // nil: no limit
	validations *rate.Limiter // requests that harnesses make executors make
	upgrades    *rate.Limiter // attempts at a websocket
	Created     *rate.Limiter // environments
	Bytes       *rate.Limiter
	Lines       *rate.Limiter  // in the log
	unsaid      int            // lines that were left out since the last one
	Large       chan struct{}  // of its websockets, see [socket.Config]
	waiting     *socket.Budget // of its streams
	connections int
	kept        int // HTTP connections, see keep
	streams     int
	creating    int       // environments, at the moment
	used        time.Time // last time
}

// New makes a limiter. What defaults does not say is as the constants above.
func New(defaults principal.Limits) *Limiter {
	return &Limiter{
		defaults: defaults.Or(principal.Limits{
			Requests: DefaultRequests, RequestBurst: DefaultRequestBurst,
			Connections: DefaultConnections, Streams: DefaultStreams, Bytes: DefaultBytes,
		}),
		waiting:    socket.NewBudget(maxWaiting, nil),
		allowances: make(map[string]*Allowance),
	}
}

// Request takes one request. Without ok the principal should come again after
// retryAfter.
func (l *Limiter) Request(p *principal.Principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *Allowance) *rate.Limiter { return a.requests })
}

// Validation is request for an executor's question about a harness. Those have an
// allowance of their own: harnesses decide how many there are, and an executor
// that may not register because of them would end.
func (l *Limiter) Validation(p *principal.Principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *Allowance) *rate.Limiter { return a.validations })
}

func (l *Limiter) reserve(p *principal.Principal, of func(*Allowance) *rate.Limiter) (retryAfter time.Duration, ok bool) {
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

// Connect takes a websocket, unless there are too many, or too many came and went:
// each costs some exchanges with the store. All that a principal may have may come
// at once, and then as many a second as requests. release gives it back and may be
// called once.
func (l *Limiter) Connect(p *principal.Principal) (release func(), ok bool) {
	if _, ok := l.reserve(p, func(a *Allowance) *rate.Limiter { return a.upgrades }); !ok {
		return nil, false
	}
	return l.take(p, func(a *Allowance) (*int, int) { return &a.connections, a.limits.Connections })
}

// Large is shared by the websockets of a principal. The caller must have a place from
// Connect; otherwise the allowance may not exist.
func (l *Limiter) Large(p *principal.Principal) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allowances[p.ID].Large
}

// Line tells whether a line about a principal may go into the log, and how many could
// not since the last one.
func (l *Limiter) Line(principalID string) (unsaid int, ok bool) {
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

// Share is what a principal's streams may have waiting. One of too many principals
// has what all have.
func (l *Limiter) Share(principalID string) *socket.Budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accountLocked(principalID); a != nil {
		return a.waiting
	}
	return l.waiting
}

// Create takes a place for registering an environment that has no registration, as
// Connect takes a websocket, of as many as may be created. Once it is registered
// Created counts it, and not before: an executor tries again and again while the
// store fails.
func (l *Limiter) Create(p *principal.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.creating, int(a.Created.Tokens()) })
}

// Created counts an environment that Create has let through.
func (l *Limiter) Created(p *principal.Principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.allowanceLocked(p); a != nil {
		a.Created.Allow()
	}
}

// Keep takes an HTTP connection that stays open for further requests, of which
// there may be as many again as websockets.
func (l *Limiter) Keep(p *principal.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.kept, a.limits.Connections })
}

// Stream takes a stream as connect takes a websocket.
func (l *Limiter) Stream(p *principal.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.streams, a.limits.Streams })
}

func (l *Limiter) take(p *principal.Principal, of func(*Allowance) (count *int, limit int)) (release func(), ok bool) {
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

// Bytes waits until n more bytes may be relayed for the principal, or the websocket
// that has brought them is done.
func (l *Limiter) Bytes(done <-chan struct{}, p *principal.Principal, n int) error {
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
	for ; n > 0; n -= MinByteBurst {
		now := time.Now()
		r := bytes.ReserveN(now, min(n, MinByteBurst))
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

// Allowance is what a principal has used up until now, nil if there are too many
// principals.
func (l *Limiter) Allowance(principalID string) *Allowance {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.accountLocked(principalID)
}

// Usage is how much a principal, or all with "", has open at the moment.
type Usage struct {
	Connections int // websockets
	Kept        int // HTTP connections
	Streams     int
	Creating    int // environments that are being registered
	Waiting     int // bytes for ends that do not read
}

// Usage counts what a principal has, or all with "".
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
		u.Waiting = l.waiting.Used() // with those who have no allowance
	}
	return u
}

// allowanceLocked finds or makes the principal's, with its limits of today; nil when
// there are too many. The mutex is held.
func (l *Limiter) allowanceLocked(p *principal.Principal) *Allowance {
	now := time.Now()
	limits := p.Limits.Or(l.defaults)
	a := l.allowances[p.ID]
	if a == nil {
		if len(l.allowances) >= maxAllowances && !l.forgetLocked(now) {
			return nil
		}
		a = &Allowance{
			Created: rate.NewLimiter(rate.Every(EnvironmentsTime/MaxNewEnvironments), MaxNewEnvironments),
			Large:   make(chan struct{}, MaxLarge),
			waiting: socket.NewBudget(MaxPrincipalWaiting, l.waiting),
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
		a.Lines = relimited(a.Lines, linesPerSecond, LinesPerConnection*max(limits.Connections, burst))
		a.Bytes = relimited(a.Bytes, rate.Limit(limits.Bytes), int(max(limits.Bytes, MinByteBurst)))
	}
	a.used = now
	return a
}

// accountLocked is allowanceLocked for one whose limits may not be known, since it is connected
// elsewhere. The mutex is held.
func (l *Limiter) accountLocked(principalID string) *Allowance {
	if a := l.allowances[principalID]; a != nil {
		return a
	}
	return l.allowanceLocked(&principal.Principal{ID: principalID})
}

// relimited gives a limiter another limit, negative for none. What was used stays
// used: an open websocket still says the limits that its principal had, and new
// requests say others.
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

// forgetLocked drops principals that have nothing open and whose limits have refilled, and
// tells whether there were any.
func (l *Limiter) forgetLocked(now time.Time) bool {
	n := len(l.allowances)
	for id, a := range l.allowances {
		if a.isIdle(now) {
			delete(l.allowances, id)
		}
	}
	return len(l.allowances) < n
}

// isIdle tells whether the principal would be no better off if it were unknown.
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
