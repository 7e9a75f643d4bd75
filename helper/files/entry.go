package files

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/resolve"
)

// entry is a policy in use: its places, as they were when they were looked up,
// and at most one helper in its life. When anything about it has to be
// different it is retired: it finishes what it has, and the pool makes a new
// one.
type entry struct {
	pool *Pool
	key  [32]byte

	waiting int           // callers that the pool gave it to, less those that left; Pool.mu
	begun   bool          // to be resolved; Pool.mu
	left    chan struct{} // closed when nobody waits for it to be begun

	resolved    chan struct{} // closed when the next four are set
	err         error
	places      *resolve.Resolved
	view        *fsops.View // of a policy with FullRead: its reads are done here
	descriptors int         // of places

	disposed chan struct{} // closed when nothing is left of it

	used     atomic.Int64 // when the last request ended, in ns since 1970
	requests atomic.Int64 // that the helper got

	mu       sync.Mutex
	holds    int // requests, and a helper that is being started
	retired  bool
	aborted  bool // no helper may be started
	idle     *time.Timer
	starting chan struct{} // nil until a helper is needed, closed when the next three are set
	worker   *worker
	started  time.Time
	startErr error
	ended    chan struct{} // closed when the helper is reaped, or there is none and will be none
}

func newEntry(p *Pool, key [32]byte) *entry {
	e := &entry{
		pool: p, key: key,
		left: make(chan struct{}), resolved: make(chan struct{}), disposed: make(chan struct{}), ended: make(chan struct{}),
	}
	e.used.Store(time.Now().UnixNano())
	return e
}

// resolve looks the policy's places up. It is called once.
func (e *entry) resolve(policy *sandbox.Policy) {
	e.err = e.tryLookUp(policy)
	e.mu.Lock()
	keep := e.err == nil && !e.retired
	if keep {
		e.idle = time.AfterFunc(e.pool.config.Idle, e.expire)
		e.holds++
	}
	e.mu.Unlock()
	close(e.resolved)
	switch {
	case keep:
		e.pool.fit(e)
		e.release()
	case e.err != nil:
		e.retire()
	}
}

// tryLookUp waits for its turn and looks up, a second time when others had all
// the descriptors.
func (e *entry) tryLookUp(policy *sandbox.Policy) error {
	end, err := e.pool.lookups.begin(e.left, e.pool.closing)
	if err != nil {
		return err
	}
	defer end()
	e.pool.begin(e)
	err = e.lookUp(policy)
	if exhausted(err) {
		e.pool.reclaim(e)
		err = e.lookUp(policy)
	}
	return err
}

func (e *entry) lookUp(policy *sandbox.Policy) error {
	places, err := resolve.Within(policy, e.pool.config.Descriptors/2)
	if err != nil {
		return err
	}
	if served := e.pool.config.Served; served != nil {
		if err := served.Check(places); err != nil {
			places.Close()
			return err
		}
	}
	if places.Policy.FullRead {
		if e.view, err = newView(places.Policy, os.Getpid()); err != nil {
			places.Close()
			return err
		}
	}
	e.places, e.descriptors = places, places.Descriptors()
	return nil
}

func (e *entry) isResolved() bool {
	select {
	case <-e.resolved:
		return true
	default:
		return false
	}
}

// rulesOf converts a policy's answer to the resolver's by its number. The two enumerations lie in
// packages that must not import each other: when a value of one moves, this does not compile.
var (
	_ = [1]int{}[sandbox.Hidden-sandbox.Access(fsops.Hidden)]
	_ = [1]int{}[sandbox.Denied-sandbox.Access(fsops.Denied)]
	_ = [1]int{}[sandbox.Read-sandbox.Access(fsops.Read)]
	_ = [1]int{}[sandbox.Write-sandbox.Access(fsops.Write)]
)

// newView is the file operations under a policy, in this process.
func newView(p *sandbox.Policy, hidden ...int) (*fsops.View, error) {
	rules := rulesOf(p)
	rules.HiddenPIDs = hidden
	return fsops.NewView(rules)
}

// rulesOf is what a view asks, answered by a policy.
func rulesOf(p *sandbox.Policy) fsops.Rules {
	return fsops.Rules{
		Access:     func(path string) fsops.Access { return fsops.Access(p.Access(path)) },
		DeniesFile: p.DeniesFile,
		Leads:      p.Leads,
		Bound:      p.Bound,
	}
}

// fresh tells whether the entry may get another request.
func (e *entry) fresh() bool {
	if int(e.requests.Load()) >= e.pool.config.Requests {
		return false
	}
	e.mu.Lock()
	w, started := e.worker, e.started
	e.mu.Unlock()
	if w != nil && (w.isOver() || time.Since(started) >= e.pool.config.Age) {
		return false
	}
	return e.places.Fresh()
}

// hold keeps the entry as it is until release. It tells whether it could: not
// after the entry was retired.
func (e *entry) hold() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired {
		return false
	}
	e.holds++
	return true
}

func (e *entry) release() {
	e.used.Store(time.Now().UnixNano())
	e.mu.Lock()
	e.holds--
	last := e.retired && e.holds == 0
	e.mu.Unlock()
	if last {
		e.dispose()
	}
}

// retire keeps new requests from the entry. What it has goes once the last
// request is done, and what only new ones would need goes now.
func (e *entry) retire() {
	e.pool.forget(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.retired {
		return
	}
	e.retired = true
	if e.idle != nil {
		e.idle.Stop()
	}
	if e.holds > 0 {
		e.pool.running.Go(e.places.Close)
	} else {
		e.dispose()
	}
}

// retireIdle retires the entry if it is resolved and does nothing, and tells
// whether it was so.
func (e *entry) retireIdle() bool {
	if !e.isResolved() {
		return false
	}
	e.mu.Lock()
	busy := e.holds > 0
	e.mu.Unlock()
	if !busy {
		e.retire()
	}
	return !busy
}

// abort ends the entry and what it is doing. The channel is closed once it has
// no process any more, and will have none.
func (e *entry) abort() <-chan struct{} {
	e.mu.Lock()
	if !e.aborted && e.starting == nil {
		close(e.ended)
	}
	e.aborted = true
	w := e.worker
	e.mu.Unlock()
	e.retire()
	if w != nil {
		w.fail(errClosed)
	}
	return e.ended
}

// dispose lets go of all that a retired entry has, without waiting for it.
func (e *entry) dispose() {
	go func() {
		defer e.pool.remove(e)
		<-e.resolved
		if e.worker != nil {
			e.worker.Close()
		}
		if e.starting != nil {
			<-e.ended
		}
		if e.view != nil {
			_ = e.view.Close() // descriptors without data
		}
		if e.places != nil {
			e.places.Close()
		}
	}()
}

// expire retires the entry when it was idle for long enough.
func (e *entry) expire() {
	idle := time.Since(time.Unix(0, e.used.Load()))
	e.mu.Lock()
	keep := e.holds > 0 || idle < e.pool.config.Idle
	if keep && !e.retired {
		e.idle.Reset(max(e.pool.config.Idle-idle, time.Millisecond))
	}
	e.mu.Unlock()
	if !keep {
		e.retire()
	}
}

// worth is the greater, the later the entry was used. Once only counts as if it
// had been a little earlier: who asks for new policies all the time replaces
// his own.
func (e *entry) worth() int64 {
	const little = 2 * time.Second
	used := e.used.Load()
	if e.requests.Load() <= 1 {
		used -= int64(little)
	}
	return used
}

// helpers is how many the entry has.
func (e *entry) helpers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.worker == nil {
		return 0
	}
	return 1
}

// helper returns the entry's helper. The first request that needs it has it
// started; it is not given up when that request is.
func (e *entry) helper(ctx context.Context) (*worker, error) {
	e.mu.Lock()
	if e.starting == nil {
		if e.aborted {
			e.mu.Unlock()
			return nil, errClosed
		}
		e.starting = make(chan struct{})
		e.holds++
		go e.start() // until ended
	}
	e.mu.Unlock()
	select {
	case <-e.starting:
		return e.worker, e.startErr
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start starts the helper, has the entry retired by its end, and reaps it.
func (e *entry) start() {
	defer close(e.ended)
	w, err := e.spawn()
	e.mu.Lock()
	e.worker, e.started = w, time.Now()
	if err != nil {
		e.startErr = &HelperError{Err: err}
	}
	e.mu.Unlock()
	close(e.starting)
	if err != nil {
		e.release()
		e.retire()
		return
	}
	e.pool.admit(w)
	e.pool.fit(e)
	e.release()
	<-w.over
	e.retire()
	w.Close()
	<-e.pool.processes
}

// spawn waits until one more process may run, and starts it, a second time when
// others had all the descriptors.
func (e *entry) spawn() (*worker, error) {
	if err := take(e.pool.processes, nil, e.pool.closing); err != nil {
		return nil, err
	}
	w, err := e.spawnInTurn()
	if exhausted(err) {
		e.pool.reclaim(e)
		w, err = e.spawnInTurn()
	}
	if err != nil {
		<-e.pool.processes
	}
	return w, err
}

func (e *entry) spawnInTurn() (*worker, error) {
	if err := take(e.pool.starts, nil, e.pool.closing); err != nil {
		return nil, err
	}
	defer func() { <-e.pool.starts }()
	return e.pool.config.spawn(e.places.Policy, e.pool.closing)
}
