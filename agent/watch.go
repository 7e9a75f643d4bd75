package agent

import (
	"context"
	"errors"
	"sync"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/fswatch"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// watches holds the watches of one kind that a connection has, by their ids. The zero value is ready
// for use.
type watches[W interface{ end() }] struct {
	mu   sync.Mutex // guards what follows
	byID map[string]W
}

// reserve takes an id for a new watch. A connection has at most so many of this kind.
func (w *watches[W]) reserve(id string, most int, kind string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.byID[id]; taken {
		return protocol.InvalidRequest("watchId already exists: %s", id)
	}
	if len(w.byID) == most {
		return protocol.InvalidRequest("watchId: a connection has at most %d %s", most, kind)
	}
	if w.byID == nil {
		w.byID = map[string]W{}
	}
	var none W
	w.byID[id] = none
	return nil
}

func (w *watches[W]) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.byID)
}

func (w *watches[W]) set(id string, watch W) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byID[id] = watch
}

// remove frees an id and returns its watch, or nil.
func (w *watches[W]) remove(id string) W {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch := w.byID[id]
	delete(w.byID, id)
	return watch
}

// end ends all watches. None is made any more.
func (w *watches[W]) end() {
	for _, watch := range w.byID {
		watch.end()
	}
}

// teller is the goroutine that notifies the client of a watch.
type teller struct {
	peer *rpc.Peer
	ctx  context.Context // ends with the watch
	stop context.CancelFunc

	mu      sync.Mutex // guards over, so that no notification starts afterwards
	over    bool
	telling sync.WaitGroup
}

func newTeller(peer *rpc.Peer) *teller {
	t := &teller{peer: peer}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// begin starts the goroutine, unless the watch has ended.
func (t *teller) begin(tell func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.over {
		t.telling.Go(tell)
	}
}

// quit ends the goroutine and waits for it.
func (t *teller) quit() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.stop()
	t.telling.Wait()
}

// fileWatch is one watch of files.
type fileWatch struct {
	*teller
	id    string
	watch *fswatch.Watch
}

// tell sends what has changed. While a client does not read, changes wait and are merged.
func (w *fileWatch) tell() {
	for w.watch.Wait(w.ctx) == nil {
		batch := w.watch.Take()
		changed := &protocol.ChangedNotification{
			WatchID: w.id, Changes: make([]protocol.FileChange, len(batch.Changes)), Overflow: batch.Overflow,
		}
		for i, c := range batch.Changes {
			changed.Changes[i] = protocol.FileChange{Path: protocol.NewPathURI(c.Path), Kind: changeKinds[c.Kind]}
			if c.Kind == fswatch.Renamed {
				changed.Changes[i].From = new(protocol.NewPathURI(c.From))
			}
		}
		if w.peer.Notify(protocol.MethodFSChanged, changed) != nil {
			return // the connection has ended, and the watch with it
		}
	}
}

var changeKinds = map[fswatch.Kind]protocol.ChangeKind{
	fswatch.Created:  protocol.ChangeCreated,
	fswatch.Modified: protocol.ChangeModified,
	fswatch.Removed:  protocol.ChangeRemoved,
	fswatch.Renamed:  protocol.ChangeRenamed,
}

// end ends the watch and waits for its goroutines.
func (w *fileWatch) end() {
	w.quit()
	w.watch.Close()
}

// watchFilesResult lets the notifications of a watch come after the answer.
type watchFilesResult struct {
	protocol.WatchResult
	watch *fileWatch
}

func (r *watchFilesResult) Sent() { r.watch.begin(r.watch.tell) }

func (c *connection) watchFiles(ctx context.Context, p protocol.WatchParams) (*watchFilesResult, error) {
	files, asked, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	root, directory, err := fswatch.Root(ctx, files, asked)
	if err == nil {
		err = files.Watchable(root, directory)
	}
	if err != nil {
		return nil, err
	}
	options := fswatch.Options{Root: root, Recursive: p.Recursive, Owner: c.owner}
	if files != fsops.FS(fsops.Host{}) {
		options.Shown = func(path string, directory bool) bool { return files.Watchable(path, directory) == nil }
	}
	if err := c.watches.reserve(p.WatchID, protocol.MaxWatches, "watches"); err != nil {
		return nil, err
	}
	watch, err := c.agent.watcher.Watch(ctx, options)
	if err != nil {
		c.watches.remove(p.WatchID)
		if errors.Is(err, fswatch.ErrNotOrdinary) || errors.Is(err, fswatch.ErrLimit) {
			err = protocol.InvalidRequest("%v", err)
		}
		return nil, err
	}
	w := &fileWatch{newTeller(c.peer), p.WatchID, watch}
	c.watches.set(p.WatchID, w)
	return &watchFilesResult{protocol.WatchResult{Path: protocol.NewPathURI(root)}, w}, nil
}

func (c *connection) unwatchFiles(_ context.Context, p protocol.UnwatchParams) (protocol.Empty, error) {
	if watch := c.watches.remove(p.WatchID); watch != nil {
		watch.end()
	}
	return protocol.Empty{}, nil
}
