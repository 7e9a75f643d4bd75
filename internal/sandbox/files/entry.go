package files

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
)

// entry is one policy that an owner uses: its places, as they were when they were looked up,
// and at most one helper in its life. Its states have one order, and no state comes
// again. If anything about the policy has changed, the pool makes another entry.
//
//	Pool.ask ──► asked            requests wait for resolved
//	               │ resolve      looks the places up, in its turn
//	               ▼
//	             resolved         hold, release: a request is served
//	               │ start        a request needs a process; views read without one
//	               ▼
//	             serving          hold, release
//	               │ retire       for one of the reasons below, from any state
//	               ▼
//	             retired          out of the index; requests that hold it finish
//	               │ dispose      after the last of them, at once if there is none
//	               ▼
//	             gone             Pool.gone
//
// An entry is retired for these reasons:
//
//   - no caller waits for it, and its look-up has not begun (Pool.leave)
//   - the look-up or the start of the helper failed (resolve, start)
//   - a place has changed, or the helper has ended, is too old or has got enough
//     requests (Pool.entry by fresh, FS.try, start)
//   - it was idle for Config.Idle (expire)
//   - the pool has too many entries, descriptors or helpers (Pool.trim)
//   - another entry needs descriptors (retireIdle)
//   - the pool closes (abort)
//
// The arrows are functions. Only update changes the fields that mu guards. The
// pool's mutex is taken before mu. A goroutine that has one of them never waits for
// anything but a mutex.
type entry struct {
	pool *Pool
	id   id

	// Pool.mu guards these fields about the callers that find the entry in the index.
	waiting  int           // callers that asked for the entry, less the callers that left
	begun    bool          // the look-up has begun
	unwanted chan struct{} // closed when all callers have left before the look-up has begun

	resolved    chan struct{} // closed when the next four are set
	err         error
	places      *resolve.Resolved
	view        *fsops.View // for the reads of a policy with FullRead, which this process does
	descriptors int         // of places

	gone chan struct{} // closed when nothing is left of it

	used     atomic.Int64 // when the last request ended, in ns since 1970
	requests atomic.Int64 // the number of requests that the helper got

	mu        sync.Mutex
	holds     int // the requests that hold the entry, and resolve or start while they run
	retired   bool
	disposing bool // dispose runs, or has run
	aborted   bool // no helper may be started, and a helper that starts is ended
	idle      *time.Timer
	starting  chan struct{} // nil until a helper is needed, closed when the next three are set
	worker    *worker
	started   time.Time
	startErr  error
	ended     chan struct{} // closed when the helper is reaped, or when no helper can start any more
}

func newEntry(p *Pool, asked id) *entry {
	e := &entry{
		pool: p, id: asked,
		unwanted: make(chan struct{}), resolved: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{}),
	}
	e.used.Store(time.Now().UnixNano())
	return e
}

// update calls change, which changes the fields that mu guards. If the entry is then retired
// and nothing holds it, update disposes of it.
func (e *entry) update(change func()) {
	e.mu.Lock()
	change()
	dispose := e.retired && e.holds == 0 && !e.disposing
	e.disposing = e.disposing || dispose
	e.mu.Unlock()
	if dispose {
		go e.dispose()
	}
}

// resolve looks the policy's places up. It is called once. From then on the entry
// ends by itself when it is idle.
func (e *entry) resolve(policy *sandbox.Policy) {
	e.err = e.tryLookUp(policy)
	keep := false
	e.update(func() {
		if keep = e.err == nil && !e.retired; keep {
			e.idle = time.AfterFunc(e.pool.config.Idle, e.expire)
			e.holds++ // until keepBounds has returned
		}
	})
	if e.err != nil {
		e.retire() // before resolved is closed, so that a caller that asks again gets another entry
	}
	close(e.resolved)
	if keep {
		e.pool.keepBounds(e)
		e.release()
	}
}

// tryLookUp waits for its turn and looks the places up. If no descriptors were left, it has
// the pool free some and looks up once more.
func (e *entry) tryLookUp(policy *sandbox.Policy) error {
	end, err := e.pool.beginLookup(e.id.owner, e.unwanted)
	if err != nil {
		return err
	}
	defer end()
	e.pool.begin(e)
	err = e.lookUp(policy)
	if exhausted(err) {
		e.pool.freeDescriptors(e)
		err = e.lookUp(policy)
	}
	return err
}

func (e *entry) lookUp(policy *sandbox.Policy) error {
	var ceiling *sandbox.Policy
	if e.pool.config.Ceiling != nil {
		var err error
		if ceiling, err = e.pool.config.Ceiling(); err != nil {
			return err
		}
	}
	places, err := resolve.Under(ceiling, policy, e.pool.config.Descriptors/2)
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

// rulesOf converts a sandbox.Access to the fsops.Access with the same number. The two
// enumerations are in packages that must not import each other. If the number of one
// value changes, these lines do not compile.
var (
	_ = [1]int{}[sandbox.Hidden-sandbox.Access(fsops.Hidden)]
	_ = [1]int{}[sandbox.Denied-sandbox.Access(fsops.Denied)]
	_ = [1]int{}[sandbox.Read-sandbox.Access(fsops.Read)]
	_ = [1]int{}[sandbox.Write-sandbox.Access(fsops.Write)]
)

// newView returns a view, which does the file operations under a policy in this process.
func newView(p *sandbox.Policy, hidden ...int) (*fsops.View, error) {
	rules := rulesOf(p)
	rules.HiddenPIDs = hidden
	return fsops.NewView(rules)
}

// rulesOf returns the rules of a policy in the form that a view needs.
func rulesOf(p *sandbox.Policy) fsops.Rules {
	return fsops.Rules{
		Access:     func(path string) fsops.Access { return fsops.Access(p.Access(path)) },
		DeniesFile: p.DeniesFile,
		Leads:      p.Leads,
		Bound:      p.Bound,
	}
}

// fresh reports whether the entry may get another request.
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

// hold keeps the resources of the entry until release. It returns false once the entry is
// retired. The request then has to ask for another entry.
func (e *entry) hold() (ok bool) {
	e.update(func() {
		if ok = !e.retired; ok {
			e.holds++
		}
	})
	return ok
}

// release ends a hold.
func (e *entry) release() {
	e.used.Store(time.Now().UnixNano())
	e.update(func() { e.holds-- })
}

// retire keeps new requests from the entry. Its resources are freed after the last request
// that holds it. The descriptors of its places are closed at once, because only new requests
// need them. retire may be called often, in any state.
func (e *entry) retire() {
	e.pool.unlist(e)
	e.update(func() {
		if e.retired {
			return
		}
		e.retired = true
		if e.idle != nil {
			e.idle.Stop()
		}
		if e.holds > 0 {
			e.pool.running.Go(e.places.Close)
		}
	})
}

// retireIdle retires the entry if it is resolved and nothing holds it. It reports whether the
// entry was idle in this sense.
func (e *entry) retireIdle() (idle bool) {
	if !e.isResolved() {
		return false
	}
	e.update(func() { idle = e.holds == 0 })
	if idle {
		e.retire()
	}
	return idle
}

// expire retires the entry if it was idle for Config.Idle. Otherwise it sets the timer again.
// Only the timer calls it.
func (e *entry) expire() {
	idle := time.Since(time.Unix(0, e.used.Load()))
	keep := false
	e.update(func() {
		keep = e.holds > 0 || idle < e.pool.config.Idle
		if keep && !e.retired {
			e.idle.Reset(max(e.pool.config.Idle-idle, time.Millisecond))
		}
	})
	if !keep {
		e.retire()
	}
}

// abort retires the entry, and kills its helper even if the helper has requests. The result is
// closed once the helper is reaped, or at once if there is none. No helper starts after that.
func (e *entry) abort() <-chan struct{} {
	var w *worker
	e.update(func() {
		if !e.aborted && e.starting == nil {
			close(e.ended)
		}
		e.aborted = true
		w = e.worker
	})
	e.retire()
	if w != nil {
		w.fail(errClosed)
	}
	return e.ended
}

// dispose frees all resources of a retired entry. It waits for the end of a look-up that
// runs, and for the end of the helper.
func (e *entry) dispose() {
	defer e.pool.gone(e)
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
}

// worth orders entries for trim, the least recently used first. It returns the time of the
// last use, in ns since 1970. For an entry with at most one request it returns a time that is
// Pool.head earlier, so that a client that asks for ever new policies evicts its own entries.
func (e *entry) worth() int64 {
	used := e.used.Load()
	if e.requests.Load() <= 1 {
		used -= int64(e.pool.head)
	}
	return used
}

// helpers returns how many processes the entry has.
func (e *entry) helpers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.worker == nil {
		return 0
	}
	return 1
}

// isHeld reports whether requests hold the entry.
func (e *entry) isHeld() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holds > 0
}

// helper returns the entry's helper, for a request that holds the entry. The first
// request that needs a helper has it started. The start goes on even if that request
// is given up.
func (e *entry) helper(ctx context.Context) (*worker, error) {
	var err error
	e.update(func() {
		switch {
		case e.starting != nil:
		case e.aborted:
			err = errClosed
		default:
			e.starting = make(chan struct{})
			e.holds++
			go e.start() // ends when ended is closed
		}
	})
	if err != nil {
		return nil, err
	}
	select {
	case <-e.starting:
		return e.worker, e.startErr
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start starts the helper, retires the entry when the helper is over, and reaps it.
func (e *entry) start() {
	defer close(e.ended)
	w, err := e.spawn()
	aborted := false
	e.update(func() {
		e.worker, e.started = w, time.Now()
		if err != nil {
			e.startErr = &HelperError{Err: err}
		}
		aborted = e.aborted
	})
	if err != nil {
		e.retire() // before starting is closed, so that a caller that asks again gets another helper
		close(e.starting)
		e.release()
		return
	}
	close(e.starting)
	e.pool.countStart()
	if aborted { // at that time abort did not know the helper
		w.fail(errClosed)
	}
	e.pool.report(w.layers)
	e.pool.keepBounds(e)
	e.release()
	<-w.over
	e.retire()
	w.Close()
	e.pool.Processes.Give(e.id.owner, 1)
}

// spawn waits until the owner may have one more process, and starts it. If no descriptors were left, it
// has the pool free some and tries once more.
func (e *entry) spawn() (*worker, error) {
	if err := take(&e.pool.Processes, e.id.owner, nil, e.pool.closing); err != nil {
		return nil, err
	}
	w, err := e.spawnInTurn()
	if exhausted(err) {
		e.pool.freeDescriptors(e)
		w, err = e.spawnInTurn()
	}
	if err != nil {
		e.pool.Processes.Give(e.id.owner, 1)
	}
	return w, err
}

func (e *entry) spawnInTurn() (*worker, error) {
	if err := take(&e.pool.starts, e.id.owner, nil, e.pool.closing); err != nil {
		return nil, err
	}
	defer e.pool.starts.Give(e.id.owner, 1)
	return e.pool.config.spawn(e.places.Policy, e.pool.closing)
}
