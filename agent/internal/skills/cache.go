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
	"github.com/execagent/execagent/protocol"
)

const (
	// maxContexts is how many answers are remembered; the oldest goes first.
	maxContexts = 17 // one without a sandbox, 16 with
	// calm is how often an answer is made again at most, however often files change.
	calm = 10 * time.Second
)

// Config is what a Discovery works with.
type Config struct {
	// Files returns the file system that a request with this sandbox may use.
	Files func(context.Context, *protocol.Sandbox) (fsops.FS, error)
	// ErrorText is what a client reads of an error.
	ErrorText func(error) string
	// Places returns where things are installed. It is called once, when that is needed.
	Places func() discovery.Places
	// Watcher watches them. It ends after Close.
	Watcher *fswatch.Watcher
}

// Discovery finds capabilities, and remembers what is installed as long as nothing changes
// there. Its methods may be called at once, Close last. It looks at nothing before it is
// asked.
type Discovery struct {
	cfg Config

	ctx     context.Context // of the watches
	stop    context.CancelFunc
	begin   sync.Once
	places  discovery.Places // after begin
	telling sync.WaitGroup   // one for each watch

	mu      sync.Mutex // guards what follows
	watches []*fswatch.Watch
	// changes counts what the watches have told. blind: there may be changes that nobody
	// tells.
	changes uint64
	blind   bool
	entries []*cached // oldest first
}

// cached is the answer for one sandbox.
type cached struct {
	key string
	// turn is held by who reads or makes the answer; it guards what follows.
	turn    chan struct{}
	answer  Encoded // nil: none yet
	changes uint64  // of Discovery, when the answer was begun
	renewed time.Time
}

// New returns a Discovery, which the caller closes.
func New(cfg Config) *Discovery {
	d := &Discovery{cfg: cfg}
	d.ctx, d.stop = context.WithCancel(context.Background())
	return d
}

// Close ends the watches.
func (d *Discovery) Close() {
	d.stop()
	d.begin.Do(func() {}) // nobody begins to watch any more, and who has begun is done
	d.telling.Wait()
	for _, w := range d.watches {
		w.Close()
	}
}

// Installed tells what is installed for the user, as it can be read under a sandbox. After
// a change it is found out anew, but at most once in 10 seconds: the first change after
// an answer of that age or older shows at once.
func (d *Discovery) Installed(ctx context.Context, s *protocol.Sandbox) (Encoded, error) {
	d.begin.Do(d.watch)
	e, err := d.entry(s)
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
	answer, err := d.find(ctx, s)
	if err != nil {
		return nil, err
	}
	e.answer, e.changes = answer, changes
	if known {
		e.renewed = time.Now()
	}
	return answer, nil
}

// entry returns the entry of a sandbox, and makes it.
func (d *Discovery) entry(s *protocol.Sandbox) (*cached, error) {
	key := ""
	if s != nil && !s.UnrestrictedFiles() {
		text, err := json.Marshal(s)
		if err != nil {
			return nil, err
		}
		key = string(text)
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

// watch begins to watch all places. What cannot be watched makes the Discovery blind.
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

// count counts the changes that a watch tells. After an overflow there may be folders that
// are not watched, as there are too many.
func (d *Discovery) count(w *fswatch.Watch) {
	for w.Wait(d.ctx) == nil {
		overflow := w.Take().Overflow
		d.mu.Lock()
		d.changes++
		d.blind = d.blind || overflow
		d.mu.Unlock()
	}
}
