package files

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
)

// Config is how a [Pool] runs its helpers. The zero value is ready for use.
type Config struct {
	// Path is the executable that calls [Main] when its first argument is
	// [Arg]; "/proc/self/exe" if empty. One that is built with cgo cannot
	// confine all its threads and refuses to serve.
	Path string
	// Argv0 is the argv[0] of the helpers; that of this process if empty.
	Argv0 string
	// Fork runs start, which forks a child, and leaves the child to the pool;
	// nil calls start. Reaped is told when the pool has waited for it.
	Fork   func(start func() (pid int, err error)) (int, error)
	Reaped func(pid int)
	// Served refuses policies by what earlier commands could have done to their
	// paths; nil refuses none.
	Served *resolve.Served
	// Log gets what the helpers write to stderr and what they lack; nil
	// discards it.
	Log *slog.Logger
	// Max is how many policies have a helper, 8 if zero. The least recently
	// used one goes first. Those that go finish their requests; for them there
	// is room for three times as many.
	Max int
	// Descriptors is how many of them the policies that are looked up hold in
	// all, a single one half of that; the lesser of 2048 and an eighth of
	// RLIMIT_NOFILE if zero. The least recently used one lets go first.
	Descriptors int
	// Idle is how long a helper is kept without requests, 60 s if zero; Age
	// how long it gets new ones, 10 min if zero; and Requests how many it gets
	// in its life, 10,000 if zero. sandbox.md 13.1.
	Idle, Age time.Duration
	Requests  int
	// Quiet is how long a helper with requests may send nothing before it is
	// pinged, 5 s if zero; Hang how long it may take to answer that, and to
	// start, 10 s if zero.
	Quiet, Hang time.Duration

	start time.Duration // how long it may take to start, Hang if zero; tests set it
}

func (c Config) withDefaults() Config {
	c.Path = cmp.Or(c.Path, "/proc/self/exe")
	c.Argv0 = cmp.Or(c.Argv0, os.Args[0])
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	c.Max = cmp.Or(c.Max, 8)
	c.Descriptors = cmp.Or(c.Descriptors, defaultDescriptors())
	c.Idle = cmp.Or(c.Idle, time.Minute)
	c.Age = cmp.Or(c.Age, 10*time.Minute)
	c.Requests = cmp.Or(c.Requests, 10_000)
	c.Quiet = cmp.Or(c.Quiet, 5*time.Second)
	c.Hang = cmp.Or(c.Hang, 10*time.Second)
	c.start = cmp.Or(c.start, c.Hang)
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
//
// The pool keeps the index and the bounds; what happens to one policy is told
// at entry. Its mutex is taken before that of an entry.
type Pool struct {
	config    Config
	processes chan struct{} // holds one for each helper process
	starts    chan struct{} // and for each that is being started
	lookups   *lookups
	head      time.Duration // see entry.worth
	closing   chan struct{} // closed by Close
	running   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[[32]byte]*entry // what the next request of a policy gets
	live    map[*entry]struct{} // these, and those that are retired and not gone yet
	told    bool                // the lack of a layer was logged
	stats   Stats               // its counts
}

// Stats says what a pool has, and what it has done so far.
type Stats struct {
	Idle, Busy   int    // helper processes
	Hits, Misses uint64 // requests whose policy was in use, and those whose policy was looked up
	Starts       uint64 // of helper processes
}

// Stats returns how things are now.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.stats
	for e := range p.live {
		if e.helpers() > 0 {
			if e.isHeld() {
				s.Busy++
			} else {
				s.Idle++
			}
		}
	}
	return s
}

// countStart counts a helper process.
func (p *Pool) countStart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.Starts++
}

const (
	// maxStarts is how many helpers are started at once, in the order in which
	// they were needed: one takes some milliseconds of a processor, and a
	// client that asks for many policies at once delays others by so many only.
	maxStarts = 4
	// patience is how long a file system may take to answer: then Close goes
	// without what waits for it, a look-up lets the next one begin, and an entry
	// that needs descriptors waits no longer for those that others give up.
	patience = 2 * time.Second
)

// NewPool returns a pool without helpers.
func NewPool(c Config) *Pool {
	c = c.withDefaults()
	return &Pool{
		config:    c,
		processes: make(chan struct{}, 4*c.Max),
		starts:    make(chan struct{}, maxStarts),
		lookups:   newLookups(),
		head:      2 * time.Second,
		closing:   make(chan struct{}),
		entries:   map[[32]byte]*entry{},
		live:      map[*entry]struct{}{},
	}
}

// Keyed is a policy with its key. The key is a hash of the whole policy, so whoever asks for one
// policy often keeps this.
type Keyed struct {
	policy *sandbox.Policy
	key    [32]byte
}

// WithKey computes the key of a policy, which must not change any more.
func WithKey(policy *sandbox.Policy) *Keyed { return &Keyed{policy, policy.Key()} }

// ErrUnconfined is a policy that restricts no files: it needs no helper.
var ErrUnconfined = errors.New("the policy does not restrict files")

// errClosed is what a closed pool answers.
var errClosed = errors.New("the file helpers are shut down")

// Files returns the file operations under policy, its places looked up as they
// are now. It needs no closing. Each request asks for its own, because only then
// a place that has changed since the last one is noticed.
//
// No process is started before an operation needs one. Errors are
// [ErrUnconfined], what [resolve.Within] returns, also of a policy that
// needs more than half of [Config.Descriptors], and that of ctx when it ends
// while the places are looked up.
func (p *Pool) Files(ctx context.Context, policy *sandbox.Policy) (*FS, error) {
	return p.FilesOf(ctx, WithKey(policy))
}

// FilesOf does what Files does.
func (p *Pool) FilesOf(ctx context.Context, asked *Keyed) (*FS, error) {
	e, err := p.entry(ctx, asked)
	if err != nil {
		return nil, err
	}
	return &FS{pool: p, asked: asked, entry: e}, nil
}

// entry returns the entry of a policy, resolved and fresh. It makes one where
// there is none, and retires one that something has changed about.
func (p *Pool) entry(ctx context.Context, asked *Keyed) (*entry, error) {
	if !asked.policy.Confined {
		return nil, ErrUnconfined
	}
	for {
		e, isNew, err := p.ask(asked.key)
		if err != nil {
			return nil, err
		}
		if isNew {
			go e.resolve(asked.policy) // running counts the entry until it is gone
		}
		select {
		case <-e.resolved:
		case <-p.closing:
			return nil, errClosed
		case <-ctx.Done():
			p.leave(e)
			return nil, ctx.Err()
		}
		switch {
		case e.err != nil:
			return nil, e.err
		case isNew || e.fresh():
			return e, nil
		}
		e.retire()
	}
}

// ask returns the entry of a key, for one more caller that waits for it. A new one
// has to be resolved by that caller.
func (p *Pool) ask(key [32]byte) (e *entry, isNew bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errClosed
	}
	if e = p.entries[key]; e != nil {
		e.waiting++
		p.stats.Hits++
		return e, false, nil
	}
	e = newEntry(p, key)
	e.waiting++
	p.entries[key], p.live[e] = e, struct{}{}
	p.running.Add(1) // until gone
	p.stats.Misses++
	return e, true, nil
}

// leave takes one caller away that has asked for e. If it was the last one, and
// the look-up has not begun, there will be none. A look-up that has begun is
// finished: the next caller has its result.
func (p *Pool) leave(e *entry) {
	p.mu.Lock()
	e.waiting--
	unwanted := e.waiting == 0 && !e.begun && p.entries[e.key] == e
	if unwanted {
		delete(p.entries, e.key)
		close(e.unwanted)
	}
	p.mu.Unlock()
	if unwanted {
		e.retire()
	}
}

// begin notes that the look-up of e has begun, so that leave does not call it off.
func (p *Pool) begin(e *entry) {
	p.mu.Lock()
	e.begun = true
	p.mu.Unlock()
}

// unlist takes e out of the index: the next request of its policy makes another
// entry.
func (p *Pool) unlist(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries[e.key] == e {
		delete(p.entries, e.key)
	}
}

// gone notes that nothing is left of e.
func (p *Pool) gone(e *entry) {
	p.mu.Lock()
	delete(p.live, e)
	p.mu.Unlock()
	close(e.gone)
	p.running.Done()
}

// keepBounds retires the least used entries until neither policies, nor the
// descriptors that they hold, nor helpers are too many. It never retires e, which
// has just become one more of them.
func (p *Pool) keepBounds(e *entry) {
	p.trim(4*p.config.Max, e, func(*entry) int { return 1 })
	p.trim(p.config.Descriptors, e, func(e *entry) int { return e.descriptors })
	p.trim(p.config.Max, e, (*entry).helpers)
}

// trim retires resolved entries other than e, the least used first, until what all
// of them weigh is within limit. One that weighs nothing is of no use to that.
func (p *Pool) trim(limit int, e *entry, weigh func(*entry) int) {
	for {
		total := 0
		var least *entry
		p.mu.Lock()
		for _, other := range p.entries {
			if !other.isResolved() {
				continue
			}
			weight := weigh(other)
			total += weight
			if weight > 0 && other != e && (least == nil || other.worth() < least.worth()) {
				least = other
			}
		}
		p.mu.Unlock()
		if total <= limit || least == nil {
			return
		}
		least.retire()
	}
}

// freeDescriptors retires all entries other than e that do nothing, and waits
// until they are gone, for patience at most: e needs descriptors, and there were
// none.
func (p *Pool) freeDescriptors(e *entry) {
	p.mu.Lock()
	live := slices.Collect(maps.Keys(p.live))
	p.mu.Unlock()
	live = slices.DeleteFunc(live, func(other *entry) bool { return other == e || !other.retireIdle() })
	late := time.NewTimer(patience)
	defer late.Stop()
	for _, other := range live {
		select {
		case <-other.gone:
		case <-p.closing:
			return
		case <-late.C:
			return
		}
	}
}

// report logs, once, that helpers lack a layer.
func (p *Pool) report(layers []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.told && !slices.ContainsFunc(layers, isLandlock) {
		p.told = true
		p.config.Log.Warn("fs helpers have no ceiling by Landlock; paths are judged as with it", "layers", layers)
	}
}

// Close ends all helpers, whatever they are doing, and waits for them.
//
// It waits 2 s at most for what this process does itself: a file system that
// does not answer (nfs(5), a dead FUSE daemon) cannot be interrupted. Goroutines
// that look something up there stay behind until it does; then they let go of
// what they have and end.
func (p *Pool) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.closing)
	}
	live := slices.Collect(maps.Keys(p.live))
	p.mu.Unlock()
	var helpers []<-chan struct{}
	for _, e := range live {
		helpers = append(helpers, e.abort())
	}
	for _, ended := range helpers {
		<-ended
	}
	all := make(chan struct{})
	go func() {
		p.running.Wait()
		close(all)
	}()
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case <-all:
	case <-late.C:
		p.config.Log.Warn("a file system does not answer; what waits for it is left behind")
	}
}
