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

// Defaults of [principal.Limits]. As a rule a whole fleet shares one key and comes back
// at once after an outage, and the reference executor ends for good at a 429.
const (
	DefaultRequests     = 500
	DefaultRequestBurst = 5_000
	DefaultConnections  = 10_000
	DefaultStreams      = 20_000
	DefaultBytes        = 1 << 30
)

// FrameCost is what a frame counts beside its length, in bytes a second, for the
// processor's work. By default a principal may send 250,000 tiny frames a second,
// which takes most of one core.
const FrameCost = 4 << 10

// maxLarge is how many messages above 1 KiB the websockets of a principal may be
// reading, or have read and not passed on yet, at up to 256 KiB each. Honest ones take
// milliseconds.
const maxLarge = 1024

// What may wait in a process for ends that do not read, in bytes: for all, and for
// the streams of one principal, so that who fills it fills no more than that. A
// Stream alone could have laneLimit, and a principal thousands of streams.
const (
	maxWaiting          = 512 << 20
	maxPrincipalWaiting = 128 << 20
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
	linesPerConnection = 3
	linesPerSecond     = 20
)

// minByteBurst lets the largest message through whatever the rate is.
const minByteBurst = 1 << 20

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

// Request takes one request. If ok is false the principal should come again after
// retryAfter.
func (l *Limiter) Request(p *principal.Principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *Allowance) *rate.Limiter { return a.requests })
}

// Validation takes an executor's question about a harness. Those have an allowance of
// their own: harnesses decide how many there are, and an executor that may not
// register because of them would end.
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

// Connect takes a websocket, unless the principal has too many, or too many came and
// went: each costs some exchanges with the store. All that a principal may have may
// come at once, and then as many a second as requests. release gives the place back
// and may be called once.
func (l *Limiter) Connect(p *principal.Principal) (release func(), ok bool) {
	if _, ok := l.reserve(p, func(a *Allowance) *rate.Limiter { return a.upgrades }); !ok {
		return nil, false
	}
	return l.take(p, func(a *Allowance) (*int, int) { return &a.connections, a.limits.Connections })
}

// Large is shared by the websockets of a principal, see [socket.Config]. The caller
// must have a place from Connect, without which there may be no allowance.
func (l *Limiter) Large(p *principal.Principal) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allowances[p.ID].Large
}

// line tells whether a line about a principal may go into the log, and how many were
// left out since the last one.
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

// Share returns what counts the bytes that wait for a principal's streams. If there
// are too many principals, it counts for all of them alone.
func (l *Limiter) Share(principalID string) *socket.Budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.accountLocked(principalID); a != nil {
		return a.waiting
	}
	return l.waiting
}

// Create takes a place for registering an environment that has no registration, as
// Connect takes a websocket, of as many as may be created. It counts as created only
// with Created: while the store fails an executor tries again and again.
func (l *Limiter) Create(p *principal.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.creating, int(a.Created.Tokens()) })
}

// Created counts an environment for which Create gave a place, after it was
// registered.
func (l *Limiter) Created(p *principal.Principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.allowanceLocked(p); a != nil {
		a.Created.Allow()
	}
}

// Keep takes an HTTP connection that stays open for further requests. A principal may
// have as many as websockets, beside those.
func (l *Limiter) Keep(p *principal.Principal) (release func(), ok bool) {
	return l.take(p, func(a *Allowance) (*int, int) { return &a.kept, a.limits.Connections })
}

// Stream takes a stream as Connect takes a websocket.
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

// Bytes waits until n more bytes may be relayed for the principal, and returns an
// error if the websocket that has brought them is done before.
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

// allowanceLocked finds or makes the principal's allowance, with its limits of today.
// It returns nil if there are too many.
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
			Large:   make(chan struct{}, maxLarge),
			waiting: socket.NewBudget(maxPrincipalWaiting, l.waiting),
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

// accountLocked is allowanceLocked for a principal that is connected elsewhere, so
// that its limits may be unknown here.
func (l *Limiter) accountLocked(principalID string) *Allowance {
	if a := l.allowances[principalID]; a != nil {
		return a
	}
	return l.allowanceLocked(&principal.Principal{ID: principalID})
}

// relimited changes a limiter, negative for none, and keeps what is spent. Calls may
// alternate between old and new limits: a websocket keeps those that it was opened
// with.
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

// forgetLocked drops allowances that hold nothing and were idle: a fresh one would
// grant the same. It reports whether there were any.
func (l *Limiter) forgetLocked(now time.Time) bool {
	n := len(l.allowances)
	for id, a := range l.allowances {
		if a.isIdle(now) {
			delete(l.allowances, id)
		}
	}
	return len(l.allowances) < n
}

// isIdle tells whether a fresh allowance would grant as much.
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
