package registry

import (
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/execagent/execagent/relay/socket"
)

// Defaults of [Limits]. A fleet shares one key as a rule, and comes back all at
// once after an outage; the reference executor ends for good at a 429.
const (
	DefaultRequests     = 500
	DefaultRequestBurst = 5_000
	DefaultConnections  = 10_000
	DefaultStreams      = 20_000
	DefaultBytes        = 1 << 30
)

// frameCost is what a frame counts beside its length, in bytes a second: that of
// the processor. A principal that sends nothing but tiny ones may send 250,000 a
// second by default, which is most of one core.
const frameCost = 4 << 10

// maxLarge is how many messages above 1 KiB a principal's websockets may be in the
// middle of, or have read and not passed on yet, at up to 256 KiB each: honest ones
// take milliseconds.
const maxLarge = 1024

// What may wait in a process for ends that do not read, in bytes: for all, and for
// the streams of one principal, so that who fills it fills no more than that. A
// stream alone could have laneLimit, and a principal thousands of streams.
const (
	maxWaiting          = 512 << 20
	maxPrincipalWaiting = 128 << 20
)

// maxNewEnvironments is how many environments a principal may register within
// environmentsTime that have no registration yet. Each is kept for registrationTTL:
// with about 2 KiB for each, one principal alone cannot fill the store for all.
const (
	maxNewEnvironments = 10_000
	environmentsTime   = 24 * time.Hour
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

// Limits are what one principal may do at one registry process: each process
// counts for itself. Zero is the default, a negative value no limit.
type Limits struct {
	Requests     float64 `json:"requests,omitempty"`      // API requests per second, and as many questions about harnesses
	RequestBurst int     `json:"request_burst,omitempty"` // of them at once
	Connections  int     `json:"connections,omitempty"`   // open websockets
	Streams      int     `json:"streams,omitempty"`       // streams of its websockets
	Bytes        int64   `json:"bytes,omitempty"`         // relayed for it, per second; each frame counts its length plus 4 KiB
}

// or fills in what l does not say.
func (l Limits) or(other Limits) Limits {
	if l.Requests == 0 {
		l.Requests = other.Requests
	}
	if l.RequestBurst == 0 {
		l.RequestBurst = other.RequestBurst
	}
	if l.Connections == 0 {
		l.Connections = other.Connections
	}
	if l.Streams == 0 {
		l.Streams = other.Streams
	}
	if l.Bytes == 0 {
		l.Bytes = other.Bytes
	}
	return l
}

// limiter holds principals to their limits.
type limiter struct {
	defaults Limits
	waiting  *socket.Budget // for ends that do not read, of all

	mu         sync.Mutex
	allowances map[string]*allowance // by principal; at most maxAllowances
}

// allowance is what one principal has used up. Its counts belong to the
// limiter's mutex.
type allowance struct {
	limits      Limits
	requests    *rate.Limiter // nil: no limit
	validations *rate.Limiter // requests that harnesses make executors make
	upgrades    *rate.Limiter // attempts at a websocket
	created     *rate.Limiter // environments
	bytes       *rate.Limiter
	lines       *rate.Limiter  // in the log
	unsaid      int            // lines that were left out since the last one
	large       chan struct{}  // of its websockets, see [socket.Config]
	waiting     *socket.Budget // of its streams
	connections int
	kept        int // HTTP connections, see keep
	streams     int
	creating    int       // environments, at the moment
	used        time.Time // last time
}

func newLimiter(defaults Limits) *limiter {
	return &limiter{
		defaults: defaults.or(Limits{
			Requests: DefaultRequests, RequestBurst: DefaultRequestBurst,
			Connections: DefaultConnections, Streams: DefaultStreams, Bytes: DefaultBytes,
		}),
		waiting:    socket.NewBudget(maxWaiting, nil),
		allowances: make(map[string]*allowance),
	}
}

// request takes one request. Without ok the principal should come again after
// retryAfter.
func (l *limiter) request(p *principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *allowance) *rate.Limiter { return a.requests })
}

// validation is request for an executor's question about a harness. Those have an
// allowance of their own: harnesses decide how many there are, and an executor
// that may not register because of them would end.
func (l *limiter) validation(p *principal) (retryAfter time.Duration, ok bool) {
	return l.reserve(p, func(a *allowance) *rate.Limiter { return a.validations })
}

func (l *limiter) reserve(p *principal, of func(*allowance) *rate.Limiter) (retryAfter time.Duration, ok bool) {
	l.mu.Lock()
	a := l.allowance(p)
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

// connect takes a websocket, unless there are too many, or too many came and went:
// each costs some exchanges with the store. All that a principal may have may come
// at once, and then as many a second as requests. release gives it back and may be
// called once.
func (l *limiter) connect(p *principal) (release func(), ok bool) {
	if _, ok := l.reserve(p, func(a *allowance) *rate.Limiter { return a.upgrades }); !ok {
		return nil, false
	}
	return l.take(p, func(a *allowance) (*int, int) { return &a.connections, a.limits.Connections })
}

// large is shared by the websockets of a principal. The caller must have a place from
// connect; otherwise the allowance may not exist.
func (l *limiter) large(p *principal) chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.allowances[p.ID].large
}

// line tells whether a line about a principal may go into the log, and how many could
// not since the last one.
func (l *limiter) line(principalID string) (unsaid int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(principalID)
	if a == nil {
		return 0, false
	}
	if !a.lines.Allow() {
		a.unsaid++
		return 0, false
	}
	unsaid, a.unsaid = a.unsaid, 0
	return unsaid, true
}

// share is what a principal's streams may have waiting. One of too many principals
// has what all have.
func (l *limiter) share(principalID string) *socket.Budget {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.account(principalID); a != nil {
		return a.waiting
	}
	return l.waiting
}

// create takes a place for registering an environment that has no registration, as
// connect takes a websocket, of as many as may be created. Once it is registered
// created counts it, and not before: an executor tries again and again while the
// store fails.
func (l *limiter) create(p *principal) (release func(), ok bool) {
	return l.take(p, func(a *allowance) (*int, int) { return &a.creating, int(a.created.Tokens()) })
}

func (l *limiter) created(p *principal) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.allowance(p); a != nil {
		a.created.Allow()
	}
}

// keep takes an HTTP connection that stays open for further requests, of which
// there may be as many again as websockets.
func (l *limiter) keep(p *principal) (release func(), ok bool) {
	return l.take(p, func(a *allowance) (*int, int) { return &a.kept, a.limits.Connections })
}

// stream takes a stream as connect takes a websocket.
func (l *limiter) stream(p *principal) (release func(), ok bool) {
	return l.take(p, func(a *allowance) (*int, int) { return &a.streams, a.limits.Streams })
}

func (l *limiter) take(p *principal, of func(*allowance) (count *int, limit int)) (release func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.allowance(p)
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

// bytes waits until n more bytes may be relayed for the principal, or the websocket
// that has brought them is done.
func (l *limiter) bytes(done <-chan struct{}, p *principal, n int) error {
	l.mu.Lock()
	a := l.allowance(p)
	if a == nil {
		l.mu.Unlock()
		return fmt.Errorf("more than %d principals at once", maxAllowances)
	}
	bytes := a.bytes
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

// allowance finds or makes the principal's, with its limits of today; nil when
// there are too many. The mutex is held.
func (l *limiter) allowance(p *principal) *allowance {
	now := time.Now()
	limits := p.Limits.or(l.defaults)
	a := l.allowances[p.ID]
	if a == nil {
		if len(l.allowances) >= maxAllowances && !l.forget(now) {
			return nil
		}
		a = &allowance{
			created: rate.NewLimiter(rate.Every(environmentsTime/maxNewEnvironments), maxNewEnvironments),
			large:   make(chan struct{}, maxLarge),
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
		a.lines = relimited(a.lines, linesPerSecond, linesPerConnection*max(limits.Connections, burst))
		a.bytes = relimited(a.bytes, rate.Limit(limits.Bytes), int(max(limits.Bytes, minByteBurst)))
	}
	a.used = now
	return a
}

// account is allowance for one whose limits may not be known, since it is connected
// elsewhere. The mutex is held.
func (l *limiter) account(principalID string) *allowance {
	if a := l.allowances[principalID]; a != nil {
		return a
	}
	return l.allowance(&principal{ID: principalID})
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

// forget drops principals that have nothing open and whose limits have refilled, and
// tells whether there were any.
func (l *limiter) forget(now time.Time) bool {
	n := len(l.allowances)
	for id, a := range l.allowances {
		if a.isIdle(now) {
			delete(l.allowances, id)
		}
	}
	return len(l.allowances) < n
}

// isIdle tells whether the principal would be no better off if it were unknown.
func (a *allowance) isIdle(now time.Time) bool {
	if now.Sub(a.used) < idleAllowance {
		return false
	}
	if a.connections > 0 || a.kept > 0 || a.streams > 0 || a.creating > 0 || a.waiting.Used() > 0 {
		return false
	}
	for _, r := range []*rate.Limiter{a.requests, a.validations, a.upgrades, a.created, a.bytes, a.lines} {
		if r != nil && r.TokensAt(now) < float64(r.Burst()) {
			return false
		}
	}
	return true
}
