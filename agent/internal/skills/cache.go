package skills

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/discovery"
	"github.com/execagent/execagent/internal/fswatch"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

const (
	// maxContexts is the number of answers that are cached. The oldest is dropped first.
	maxContexts = 17 // one without a sandbox, 16 with
	// calm is the shortest time between two renewals of an answer, however often files change.
	calm = 10 * time.Second
	// maxDetailed is the number of calls of WithDetails that run at once. One owner has half of them.
	maxDetailed = 2
)

// Config configures a Discovery.
type Config struct {
	// Files returns the file system that a request of an owner with this sandbox may use.
	Files func(ctx context.Context, owner string, s *protocol.Sandbox) (fsops.FS, error)
	// Hold takes n bytes of memory for what a request of an owner reads, until release is called.
	Hold func(ctx context.Context, owner string, n int64) (release func(), err error)
	// ErrorText returns the text of an error for a client.
	ErrorText func(error) string
	// Places returns the places where skills and plugins are installed. It is called once, at the
	// first request that needs it.
	Places func() discovery.Places
	// Watcher watches these places. The caller closes it after Discovery.Close.
	Watcher *fswatch.Watcher
}

// Discovery finds capabilities. It caches the list of installed capabilities as long as no file
// there changes. Its methods may be called concurrently, except that Close must be the last call.
// It reads nothing before the first request.
type Discovery struct {
	// Details are the calls of WithDetails that run: each may take long.
	Details share.Pool
	cfg     Config

	ctx     context.Context // context of the watches
	stop    context.CancelFunc
	begin   sync.Once
	places  discovery.Places // set by begin
	telling sync.WaitGroup   // one goroutine for each watch

	mu      sync.Mutex // guards the fields below
	watches []*fswatch.Watch
	// changes counts the changes that the watches report. blind is true if there may be changes that
	// no watch reports.
	changes uint64
	blind   bool
	entries []*cached // oldest first
}

// cached is the cached answer for one sandbox.
type cached struct {
	key string
	// turn is held by the goroutine that reads or makes the answer. It guards the fields below.
	turn    chan struct{}
	answer  Encoded // nil: none yet
	changes uint64  // value of Discovery.changes when the answer was begun
	renewed time.Time
}

// New returns a Discovery. The caller must close it.
func New(cfg Config) *Discovery {
	d := &Discovery{cfg: cfg, Details: share.Pool{What: "runs with details", Max: maxDetailed}}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Close ends the watches.
func (d *Discovery) Close() {
	d.stop()
	d.begin.Do(func() {}) // after this, no watches are begun, and a running begin has ended
	d.telling.Wait()
	for _, w := range d.watches {
		w.Close()
	}
}

// Installed returns the capabilities that are installed for the user and that can be read under a
// sandbox of an owner. After a change the list is made again, but at most once in 10 seconds. If the answer is
// at least 10 seconds old, the first change shows immediately.
func (d *Discovery) Installed(ctx context.Context, owner string, s *protocol.Sandbox) (Encoded, error) {
	d.begin.Do(d.watch)
	e, err := d.entry(owner, s)
	if err != nil {
		return nil, err
	}
	select {
	case e.turn <- struct{}{}:
		defer func() { <-e.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	d.mu.Lock()
	changes, blind := d.changes, d.blind
	d.mu.Unlock()
	known := e.answer != nil
	if known && (!blind && e.changes == changes || time.Since(e.renewed) < calm) {
		return e.answer, nil
	}
	answer, err := d.find(ctx, owner, s)
	if err != nil {
		return nil, err
	}
	e.answer, e.changes = answer, changes
	if known {
		e.renewed = time.Now()
	}
	return answer, nil
}

// entry returns the entry of a sandbox. It makes the entry if there is none. Owners share the answer
// without a sandbox alone, so that none waits for the helpers of another one.
func (d *Discovery) entry(owner string, s *protocol.Sandbox) (*cached, error) {
	key := ""
	if s != nil && !s.UnrestrictedFiles() {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		key = string(text) + owner // JSON has an end
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.IndexFunc(d.entries, func(e *cached) bool { return e.key == key }); i >= 0 {
		return d.entries[i], nil
	}
	if len(d.entries) == maxContexts {
		d.entries = slices.Delete(d.entries, 0, 1)
	}
	e := &cached{key: key, turn: make(chan struct{}, 1)}
	d.entries = append(d.entries, e)
	return e, nil
}

// watch begins to watch all places. If a place cannot be watched, the Discovery is blind.
func (d *Discovery) watch() {
	d.places = d.cfg.Places()
	folders := []string{}
	if plugins := d.places.Plugins(); plugins != "" {
		folders = append(folders, plugins)
	}
	for _, l := range d.places.Skills() {
		folders = append(folders, l.Path)
	}
	for _, folder := range folders {
		root, _, err := fswatch.Root(d.ctx, fsops.Host{}, folder)
		var w *fswatch.Watch
		if err == nil {
			w, err = d.cfg.Watcher.Watch(d.ctx, fswatch.Options{Root: root, Recursive: true})
		}
		if err != nil {
			d.mu.Lock()
			d.blind = true
			d.mu.Unlock()
			continue
		}
		d.watches = append(d.watches, w)
		d.telling.Go(func() { d.count(w) })
	}
}

// count counts the changes that a watch reports. After an overflow the Discovery is blind, because
// there may be too many folders to watch them all.
func (d *Discovery) count(w *fswatch.Watch) {
	for w.Wait(d.ctx) == nil {
		overflow := w.Take().Overflow
		d.mu.Lock()
		d.changes++
		d.blind = d.blind || overflow
		d.mu.Unlock()
	}
}
