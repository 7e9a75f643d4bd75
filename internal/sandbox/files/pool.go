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
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/sandbox"
)

// Config is how a [Pool] runs its helpers. The zero value is ready for use.
type Config struct {
	// Path is the executable that calls [Main] when its first argument is
	// [Arg]; "/proc/self/exe" if empty. An executable that is built with cgo cannot
	// confine all its threads and refuses to serve.
	Path string
	// Argv0 is the argv[0] of the helpers; that of this process if empty.
	Argv0 string
	// Fork calls start, which forks a child. The pool reaps the child, so Fork must
	// not. nil: the pool calls start itself. The pool calls Reaped after it has reaped
	// a child.
	Fork   func(start func() (pid int, err error)) (int, error)
	Reaped func(pid int)
	// Served refuses a policy if a path of it leads through a symbolic link that an
	// earlier command could have made; nil refuses none.
	Served *resolve.Served
	// Ceiling returns the policy that no request exceeds, whatever its own policy says; nil: there is no
	// ceiling. The policy restricts files.
	Ceiling func() (*sandbox.Policy, error)
	// Log gets the lines that helpers write to stderr, and a warning if helpers run
	// without Landlock. nil discards them.
	Log *slog.Logger
	// Max is the number of policies that have a helper, 8 if zero. If there are more,
	// the least recently used policy is retired first. The helpers of retired policies
	// finish their requests. Together there are at most 4*Max helper processes, and one owner has
	// half of them at most.
	Max int
	// Descriptors bounds the descriptors that all looked-up policies hold together. A
	// single policy may hold half of them. If zero, it is the lesser of 2048 and an
	// eighth of RLIMIT_NOFILE. The least recently used policy is retired first.
	Descriptors int
	// Idle is how long a helper is kept without requests, 60 s if zero. Age is how
	// long a helper gets new requests, 10 min if zero. Requests is the number of
	// requests that a helper gets in its life, 10,000 if zero. sandbox.md 13.1.
	Idle, Age time.Duration
	Requests  int
	// Quiet is how long a helper with requests may send nothing before it is
	// pinged, 5 s if zero. Hang is how long a helper may take to answer the ping,
	// and to start, 10 s if zero.
	Quiet, Hang time.Duration

	start time.Duration // how long a helper may take to start, Hang if zero; tests set it
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

// Pool has the fs helpers of an agent. Each policy in use has at most one helper process for
// each owner of requests, which serves no other policy and no other owner. All methods may be
// called concurrently. Close ends the pool.
//
// The pool keeps the index of the policies and the bounds. The comment of entry describes
// what happens to one policy. The pool's mutex is taken before the mutex of an entry.
type Pool struct {
	// Processes are the helper processes, and Lookups the policies that are looked up, by their
	// owners. Who cannot have one more waits.
	Processes, Lookups share.Pool

	config  Config
	starts  share.Pool    // the helpers that are being started
	busy    share.Pool    // the look-ups that use a processor
	head    time.Duration // see entry.worth
	closing chan struct{} // closed by Close
	running sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	entries map[id]*entry       // the index: the entry that the next request of an owner under a policy gets
	live    map[*entry]struct{} // all entries that are not gone yet: listed or retired
	told    bool                // the lack of Landlock was logged
	stats   Stats               // only Hits, Misses and Starts are used
}

// Stats are the numbers of helpers of a pool, and counters of its work so far.
type Stats struct {
	Idle, Busy   int    // helper processes
	Hits, Misses uint64 // requests whose policy was in use, and those whose policy was looked up
	Starts       uint64 // of helper processes
}

// Stats returns the current numbers.
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
	// maxStarts is the number of helpers of one owner that are started at once, in the order in
	// which they were needed; of all owners it is twice as many. A start takes some milliseconds of
	// processor time, and the bound keeps a client that asks for many policies from delaying others
	// for long.
	maxStarts = 4
	// patience is how long a file system may take to answer. After that time Close
	// returns without the goroutines that wait for the file system. A look-up lets the
	// next look-up begin. An entry that needs descriptors stops waiting for other entries.
	patience = 2 * time.Second
)

// NewPool returns a pool without helpers.
func NewPool(c Config) *Pool {
	c = c.withDefaults()
	return &Pool{
		Processes: share.Pool{Max: int64(4 * c.Max)},
		Lookups:   share.Pool{Max: maxLookups + maxStuck},
		config:    c,
		starts:    share.Pool{Max: 2 * maxStarts},
		busy:      share.Pool{Max: maxLookups},
		head:      2 * time.Second,
		closing:   make(chan struct{}),
		entries:   map[id]*entry{},
		live:      map[*entry]struct{}{},
	}
}

// id says whose requests an entry serves, under which policy.
type id struct {
	owner string
	key   [32]byte // of the policy
}

// Keyed is a policy with its key, and whose requests it is for. The key is a hash of the whole
// policy, so a caller that often asks for one policy keeps its Keyed.
type Keyed struct {
	policy *sandbox.Policy
	id
}

// WithKey computes the key of a policy, which must not change any more. An owner has shares of the
// pool (package share).
func WithKey(policy *sandbox.Policy, owner string) *Keyed {
	return &Keyed{policy, id{owner, policy.Key()}}
}

// ErrUnconfined is the error for a policy that restricts no files: it needs no helper.
var ErrUnconfined = errors.New("the policy does not restrict files")

// errClosed is the error of a closed pool.
var errClosed = errors.New("the file helpers are shut down")

// Files returns the file operations under policy, whose places are looked up as they
// are now. The result needs no closing. Each request must call Files again, because only
// Files notices that a place has changed.
//
// No process is started before an operation needs it. The errors are [ErrUnconfined],
// the errors of [resolve.Within], and the error of ctx if it ends while the places are
// looked up. A policy that needs more than half of [Config.Descriptors] is an error of
// resolve.Within too.
func (p *Pool) Files(ctx context.Context, policy *sandbox.Policy) (*FS, error) {
	return p.FilesOf(ctx, WithKey(policy, ""))
}

// FilesOf is Files for an owner, and a policy whose key is known.
func (p *Pool) FilesOf(ctx context.Context, asked *Keyed) (*FS, error) {
	e, err := p.entry(ctx, asked)
	if err != nil {
		return nil, err
	}
	return &FS{pool: p, asked: asked, entry: e}, nil
}

// entry returns the entry of a policy, resolved and fresh. If the policy has no entry, it makes
// one. If the entry is no longer fresh, it retires the entry and makes another.
func (p *Pool) entry(ctx context.Context, asked *Keyed) (*entry, error) {
	if !asked.policy.Confined {
		return nil, ErrUnconfined
	}
	for {
		e, isNew, err := p.ask(asked.id)
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

// ask returns the entry of an owner's policy, and counts one more caller that waits for the entry.
// If isNew, the caller must have the entry resolved.
func (p *Pool) ask(asked id) (e *entry, isNew bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, false, errClosed
	}
	if e = p.entries[asked]; e != nil {
		e.waiting++
		p.stats.Hits++
		return e, false, nil
	}
	e = newEntry(p, asked)
	e.waiting++
	p.entries[asked], p.live[e] = e, struct{}{}
	p.running.Add(1) // until gone
	p.stats.Misses++
	return e, true, nil
}

// leave notes that a caller that asked for e no longer waits. If it was the last caller, and
// the look-up has not begun, leave calls the look-up off. A look-up that has begun is
// finished, because the next caller can use its result.
func (p *Pool) leave(e *entry) {
	p.mu.Lock()
	e.waiting--
	unwanted := e.waiting == 0 && !e.begun && p.entries[e.id] == e
	if unwanted {
		delete(p.entries, e.id)
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
	if p.entries[e.id] == e {
		delete(p.entries, e.id)
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

// keepBounds retires the least used entries until the numbers of policies, of their
// descriptors and of helpers are within their bounds. It never retires e, the entry that
// has just been added to them.
func (p *Pool) keepBounds(e *entry) {
	p.trim(4*p.config.Max, e, func(*entry) int { return 1 })
	p.trim(p.config.Descriptors, e, func(e *entry) int { return e.descriptors })
	p.trim(p.config.Max, e, (*entry).helpers)
}

// trim retires resolved entries other than e, the least used first, until the total weight
// of all resolved entries is at most limit. It never retires an entry of weight 0, because
// that would not lower the total.
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

// freeDescriptors frees descriptors for e after there were none left. It retires all idle
// entries other than e, and waits until they are gone, but at most for patience.
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

// report logs a warning if layers has no Landlock, once for the pool.
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
// It waits at most 2 s for the file operations of this process. On a file system that does
// not answer (nfs(5), a dead FUSE daemon) they cannot be interrupted. Their goroutines stay
// behind until the file system answers. Then they free their resources and end.
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
