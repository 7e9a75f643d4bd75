package helper

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/sandbox"
)

// entry is a policy in use: its places, as they were when they were looked up,
// and at most one helper in its life. When anything about it has to be
// different it is retired: it finishes what it has, and the pool makes a new
// one.
type entry struct {
	pool *Pool
	key  [32]byte

	resolved chan struct{} // closed when the next three are set
	err      error
	places   *sandbox.Resolved
	view     *fsops.View // of a policy with FullRead: its reads are done here

	used     atomic.Int64 // when the last request ended, in ns since 1970
	requests atomic.Int64 // that the helper got

	mu       sync.Mutex
	holds    int // requests, and a helper that is being started
	retired  bool
	idle     *time.Timer
	starting chan struct{} // nil until a helper is needed, closed when the next three are set
	worker   *worker
	started  time.Time
	startErr error
}

func newEntry(p *Pool, key [32]byte) *entry {
	e := &entry{pool: p, key: key, resolved: make(chan struct{})}
	e.used.Store(time.Now().UnixNano())
	return e
}

// resolve looks the policy's places up. It is called once.
func (e *entry) resolve(policy *sandbox.Policy) {
	e.places, e.err = policy.Resolve()
	if e.err == nil && e.places.Policy.FullRead {
		e.view, e.err = newView(e.places.Policy, os.Getpid())
	}
	e.mu.Lock()
	if e.err == nil && !e.retired {
		e.idle = time.AfterFunc(e.pool.config.Idle, e.expire)
	}
	e.mu.Unlock()
	close(e.resolved)
	if e.err != nil {
		e.retire()
	}
}

// newView is the file operations under a policy, in this process.
func newView(p *sandbox.Policy, hidden ...int) (*fsops.View, error) {
	return fsops.NewView(fsops.Rules{
		Access:     func(path string) fsops.Access { return fsops.Access(p.Access(path)) },
		DeniesFile: p.DeniesFile,
		Leads:      p.Leads,
		Bound:      p.Bound,
		HiddenPIDs: hidden,
	})
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
// request is done.
func (e *entry) retire() {
	e.pool.forget(e)
	e.mu.Lock()
	last := !e.retired && e.holds == 0
	e.retired = true
	if e.idle != nil {
		e.idle.Stop()
	}
	e.mu.Unlock()
	if last {
		e.dispose()
	}
}

// abort ends the entry and what it is doing.
func (e *entry) abort() {
	<-e.resolved
	e.retire()
	e.mu.Lock()
	w := e.worker
	e.mu.Unlock()
	if w != nil {
		w.fail(errClosed)
	}
}

// dispose lets go of all that a retired entry has, without waiting for it.
func (e *entry) dispose() {
	go func() {
		defer e.pool.disposed(e)
		<-e.resolved
		if e.worker != nil {
			e.worker.Close()
			<-e.pool.processes
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

// helper returns the entry's helper. The first request that needs it has it
// started; it is not given up when that request is.
func (e *entry) helper(ctx context.Context) (*worker, error) {
	e.mu.Lock()
	if e.starting == nil {
		e.starting = make(chan struct{})
		e.holds++
		e.pool.running.Go(e.start)
	}
	e.mu.Unlock()
	select {
	case <-e.starting:
		return e.worker, e.startErr
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// start starts the helper and, until it ends, has the entry retired by its end.
func (e *entry) start() {
	w, err := e.spawn()
	e.mu.Lock()
	e.worker, e.started = w, time.Now()
	if err != nil {
		e.startErr = &HelperError{Err: err}
	}
	e.mu.Unlock()
	close(e.starting)
	if err == nil {
		e.pool.admit(w)
		e.pool.trim(e.pool.config.Max, e, (*entry).hasHelper)
	}
	e.release()
	if err == nil {
		<-w.over
	}
	e.retire()
}

// spawn waits until one more process may run.
func (e *entry) spawn() (*worker, error) {
	select {
	case e.pool.processes <- struct{}{}:
	case <-e.pool.closing:
		return nil, errClosed
	}
	w, err := e.pool.config.spawn(e.places.Policy, e.pool.closing)
	if err != nil {
		<-e.pool.processes
		return nil, err
	}
	return w, nil
}

func (e *entry) hasHelper() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.worker != nil
}
