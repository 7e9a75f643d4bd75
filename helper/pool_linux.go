package helper

import (
	"cmp"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/sandbox"
)

// Config is how a [Pool] runs its helpers. The zero value is ready for use.
type Config struct {
	// Path is the executable that calls [FSMain] when its first argument is
	// [FSArg]; "/proc/self/exe" if empty. One that is built with cgo cannot
	// confine all its threads and refuses to serve.
	Path string
	// Argv0 is the argv[0] of the helpers; that of this process if empty.
	Argv0 string
	// Fork runs start, which forks a child, and leaves the child to the pool;
	// nil calls start. Reaped is told when the pool has waited for it.
	Fork   func(start func() (pid int, err error)) (int, error)
	Reaped func(pid int)
	// Log gets what the helpers write to stderr and what they lack; nil
	// discards it.
	Log *slog.Logger
	// Max is how many policies have a helper, 8 if zero. The least recently
	// used one goes first. Those that go finish their requests; for them there
	// is room for three times as many.
	Max int
	// Idle is how long a helper is kept without requests, 60 s if zero; Age
	// how long it gets new ones, 10 min if zero; and Requests how many it gets
	// in its life, 10,000 if zero. sandbox.md 13.1.
	Idle, Age time.Duration
	Requests  int
	// Quiet is how long a helper with requests may send nothing before it is
	// pinged, 5 s if zero; Hang how long it may take to answer that, and to
	// start, 10 s if zero.
	Quiet, Hang time.Duration
}

func (c Config) withDefaults() Config {
	c.Path = cmp.Or(c.Path, "/proc/self/exe")
	c.Argv0 = cmp.Or(c.Argv0, os.Args[0])
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Max = cmp.Or(c.Max, 8)
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.Age = cmp.Or(c.Age, 10*time.Minute)
	c.Requests = cmp.Or(c.Requests, 10_000)
	c.Quiet = cmp.Or(c.Quiet, 5*time.Second)
	c.Hang = cmp.Or(c.Hang, 10*time.Second)
	if c.Fork == nil {
		c.Fork = func(start func() (int, error)) (int, error) { return start() }
	}
	if c.Reaped == nil {
		c.Reaped = func(int) {}
	}
	return c
}

// Pool has the fs helpers of an agent: for each policy in use at most one
// process, which serves it and no other. All methods may run at once. Close
// ends it.
type Pool struct {
	config    Config
	processes chan struct{} // holds one for each helper process
	closing   chan struct{} // closed by Close
	running   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[[32]byte]*entry // what the next request of a policy gets
	live    map[*entry]struct{} // these, and those that have still to end
	told    bool                // the lack of a layer was logged
}

// NewPool returns a pool without helpers.
func NewPool(c Config) *Pool {
	c = c.withDefaults()
	return &Pool{
		config:    c,
		processes: make(chan struct{}, 4*c.Max),
		closing:   make(chan struct{}),
		entries:   map[[32]byte]*entry{},
		live:      map[*entry]struct{}{},
	}
}

// ErrUnconfined is a policy that restricts no files: it needs no helper.
var ErrUnconfined = errors.New("the policy does not restrict files")

// errClosed is what a closed pool answers.
var errClosed = errors.New("the file helpers are shut down")

// Files returns the file operations under policy, its places looked up as they
// are now. It needs no closing. Each request asks for its own, so that a place
// that has changed since the last one is noticed.
//
// No process is started before an operation needs one. Errors are
// [ErrUnconfined] and what [sandbox.Policy.Resolve] returns.
func (p *Pool) Files(policy *sandbox.Policy) (*Files, error) {
	e, err := p.entry(policy)
	if err != nil {
		return nil, err
	}
	return &Files{pool: p, asked: policy, entry: e}, nil
}

// entry finds or makes the entry of a policy.
func (p *Pool) entry(policy *sandbox.Policy) (*entry, error) {
	if !policy.Confined {
		return nil, ErrUnconfined
	}
	key := policy.Key()
	for {
		e, isNew, err := p.find(key)
		if err != nil {
			return nil, err
		}
		if isNew {
			e.resolve(policy)
		}
		<-e.resolved
		switch {
		case e.err != nil:
			return nil, e.err
		case isNew || e.fresh():
			return e, nil
		}
		e.retire()
	}
}

// find returns the entry of a key. A new one has to be resolved by the caller.
func (p *Pool) find(key [32]byte) (e *entry, isNew bool, err error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, false, errClosed
	}
	if e = p.entries[key]; e != nil {
		p.mu.Unlock()
		return e, false, nil
	}
	e = newEntry(p, key)
	p.entries[key], p.live[e] = e, struct{}{}
	p.running.Add(1) // until it is disposed of
	p.mu.Unlock()
	p.trim(4*p.config.Max, e, func(*entry) bool { return true })
	return e, true, nil
}

// trim retires the least recently used entry of some kind but for e when there
// are more than n.
func (p *Pool) trim(n int, e *entry, kind func(*entry) bool) {
	var oldest *entry
	p.mu.Lock()
	for _, other := range p.entries {
		if !kind(other) {
			continue
		}
		n--
		if other != e && (oldest == nil || other.used.Load() < oldest.used.Load()) {
			oldest = other
		}
	}
	p.mu.Unlock()
	if n < 0 && oldest != nil {
		oldest.retire()
	}
}

// forget takes e out, so that the next request of its policy makes another.
func (p *Pool) forget(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries[e.key] == e {
		delete(p.entries, e.key)
	}
}

// disposed takes note that nothing is left of e.
func (p *Pool) disposed(e *entry) {
	p.mu.Lock()
	delete(p.live, e)
	p.mu.Unlock()
	p.running.Done()
}

// admit takes note of a helper that has been started. It ends it when the pool
// was closed meanwhile, and logs, once, when a layer is missing.
func (p *Pool) admit(w *worker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		w.fail(errClosed)
	}
	if !p.told && !slices.ContainsFunc(w.layers, isLandlock) {
		p.told = true
		p.config.Log.Warn("fs helpers have no ceiling by Landlock; paths are judged as with it", "layers", w.layers)
	}
}

// Close ends all helpers, whatever they are doing, and waits for them.
func (p *Pool) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
	}
	live := slices.Collect(maps.Keys(p.live))
	p.mu.Unlock()
	for _, e := range live {
		e.abort()
	}
	p.running.Wait()
}
