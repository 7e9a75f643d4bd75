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

// watches holds the watches that fs/watch made for a connection, by their ids. The zero value is
// ready for use.
type watches struct {
	mu   sync.Mutex // guards what follows
	byID map[string]*fileWatch
}

// reserve takes an id for a new watch.
func (w *watches) reserve(id string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, taken := w.byID[id]; taken {
		return protocol.InvalidRequest("watchId already exists: %s", id)
	}
	if len(w.byID) == protocol.MaxWatches {
		return protocol.InvalidRequest("watchId: a connection has at most %d watches", protocol.MaxWatches)
	}
	if w.byID == nil {
		w.byID = map[string]*fileWatch{}
	}
	w.byID[id] = nil
	return nil
}

func (w *watches) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.byID)
}

func (w *watches) set(id string, watch *fileWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byID[id] = watch
}

// remove frees an id and returns its watch, or nil.
func (w *watches) remove(id string) *fileWatch {
	w.mu.Lock()
	defer w.mu.Unlock()
	watch := w.byID[id]
	delete(w.byID, id)
	return watch
}

// end ends all watches. None is made any more.
func (w *watches) end() {
	for _, watch := range w.byID {
		watch.end()
	}
}

// fileWatch is one watch, and the goroutine that notifies its client.
type fileWatch struct {
	id    string
	watch *fswatch.Watch
	peer  *rpc.Peer
	ctx   context.Context // ends with the watch
	stop  context.CancelFunc

	mu      sync.Mutex // guards over, so that no notification starts afterwards
	over    bool
	telling sync.WaitGroup
}

// begin starts to tell the client of changes.
func (w *fileWatch) begin() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.over {
		w.telling.Go(w.tell)
	}
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
	w.mu.Lock()
	w.over = true
	w.mu.Unlock()
	w.stop()
	w.watch.Close()
	w.telling.Wait()
}

// watchFilesResult lets the notifications of a watch come after the answer.
type watchFilesResult struct {
	protocol.WatchResult
	watch *fileWatch
}

func (r *watchFilesResult) Sent() { r.watch.begin() }

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
	if err := c.watches.reserve(p.WatchID); err != nil {
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
	w := &fileWatch{id: p.WatchID, watch: watch, peer: c.peer}
	w.ctx, w.stop = context.WithCancel(context.Background())
	c.watches.set(p.WatchID, w)
	return &watchFilesResult{protocol.WatchResult{Path: protocol.NewPathURI(root)}, w}, nil
}

func (c *connection) unwatchFiles(_ context.Context, p protocol.UnwatchParams) (protocol.Empty, error) {
	if watch := c.watches.remove(p.WatchID); watch != nil {
		watch.end()
	}
	return protocol.Empty{}, nil
}
