package client

import (
	"context"
	"errors"
	"io/fs"
	"strconv"
	"strings"
	"sync"

	"github.com/execagent/execagent/protocol"
)

// Bounds of the changes that a watch holds until they are taken. With more, it drops
// them and sets [Changes.Overflow].
const (
	maxWatchChanges = 4096
	maxWatchBytes   = 1 << 20 // of paths
)

// Watch reports changes at a path of the server. Its methods may be called concurrently. It
// outlives connections: after a reconnect it reports an overflow.
type Watch struct {
	client *Client
	params protocol.WatchParams
	path   string

	mu      sync.Mutex // guards what follows
	pending Changes
	bytes   int
	err     error         // the reason why the watch ended
	wake    chan struct{} // has one when anything above has changed
}

// Change is a change of a path.
type Change struct {
	Path string
	Kind protocol.ChangeKind
	From string // with protocol.ChangeRenamed
}

// Changes are in the order in which they happened; repeated changes of a path may be merged into
// one. A caller that applies them to its own copy of a tree has the current tree. If a rename comes
// from a name that the caller does not know, the caller must look at the new name.
type Changes struct {
	List []Change
	// Overflow: more has changed, at the path or anywhere below it. The caller must read the tree
	// again; List is useless then.
	Overflow bool
}

// Watch watches a path, which need not exist: the file there, in a directory each name, and with
// recursive everything below it. Links are followed only on the way to path. Changes after Watch
// has returned are reported, about 75 ms after the first of several changes. The caller closes the
// watch. It needs the server's fsWatch; a server watches up to 128 paths for each client.
func (f *FS) Watch(ctx context.Context, path string, recursive bool) (*Watch, error) {
	c := f.client
	if err := c.require(ctx, "watching files", func(c *protocol.Capabilities) bool { return c.FSWatch }); err != nil {
		return nil, pathError("watch", path, err)
	}
	if !strings.HasPrefix(path, "/") {
		return nil, pathError("watch", path, fs.ErrInvalid)
	}
	w := &Watch{client: c, wake: make(chan struct{}, 1), params: protocol.WatchParams{
		WatchID: "w" + strconv.FormatUint(c.nextID(), 10),
		Path:    protocol.NewPathURI(path), Recursive: recursive, Sandbox: f.sandbox,
	}}
	for {
		l, err := c.connected(ctx)
		if err != nil {
			return nil, pathError("watch", path, err)
		}
		var r protocol.WatchResult
		err = l.watch(ctx, w, &r)
		if isLoss(err) {
			continue // a watch ends with its connection
		}
		if err == nil {
			w.path, err = r.Path.Native()
		}
		if err != nil {
			if ctx.Err() != nil {
				c.begin(func() { w.unwatch(l) }) // the server may have made it
			}
			l.forget(w)
			return nil, pathError("watch", path, err)
		}
		if w.start(l) {
			return w, nil
		}
	}
}

// watch asks for w on this connection. Notifications may come at once.
func (l *connection) watch(ctx context.Context, w *Watch, r *protocol.WatchResult) error {
	l.mu.Lock()
	l.watches[w.params.WatchID] = w
	l.mu.Unlock()
	return l.called(ctx, protocol.MethodFSWatch, &w.params, r)
}

func (l *connection) forget(w *Watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.watches, w.params.WatchID)
}

// start makes the client carry w from the connection l to the next one. It returns false if the
// client has already left l.
func (w *Watch) start(l *connection) bool {
	c := w.client
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != Connected || c.current != l {
		return false
	}
	// From now on it is about this path, even if a link leads elsewhere later.
	w.params.Path = protocol.NewPathURI(w.path)
	c.watches[w] = struct{}{}
	return true
}

// resume asks for w on a new connection, and reports an overflow because changes may have been
// missed.
func (w *Watch) resume(l *connection) {
	ctx, r := w.client.ctx, protocol.WatchResult{}
	err := l.watch(ctx, w, &r)
	for errors.Is(err, ErrTooManyCalls) && sleep(ctx, pause) == nil {
		err = l.watch(ctx, w, &r)
	}
	switch {
	case isLoss(err) || ctx.Err() != nil: // the next connection resumes it, if there is one
	case err != nil:
		w.end(pathError("watch", w.path, err))
	case r.Path != w.params.Path:
		w.end(pathError("watch", w.path, errors.New("since the connection was lost, the path leads elsewhere")))
		w.unwatch(l)
	case !w.add(Changes{Overflow: true}):
		w.unwatch(l) // closed in the meantime
	}
}

// Path is the watched path: the path of the call to Watch, with its links resolved.
func (w *Watch) Path() string { return w.path }

// Next waits for changes and takes all that have come. Errors: the error of ctx; [fs.ErrClosed]
// after Close; a [ServerError] when the path could not be watched again over a new connection; the
// [DisconnectedError] of a failed client.
func (w *Watch) Next(ctx context.Context) (Changes, error) {
	for {
		w.mu.Lock()
		pending, err := w.pending, w.err
		w.pending, w.bytes = Changes{}, 0
		w.mu.Unlock()
		if len(pending.List) > 0 || pending.Overflow {
			return pending, w.check(pending)
		}
		if err != nil {
			w.signal() // for the next call
			return pending, err
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return Changes{}, context.Cause(ctx)
		}
	}
}

// check refuses changes outside the watched path.
func (w *Watch) check(changes Changes) error {
	for _, c := range changes.List {
		for _, path := range []string{c.Path, c.From} {
			if path != "" && path != w.path && !strings.HasPrefix(path, strings.TrimSuffix(w.path, "/")+"/") {
				err := pathError("watch", w.path, protocolErrorf("the server tells of %.256s", path))
				w.end(err)
				return err
			}
		}
	}
	return nil
}

// Close ends the watch, and waits up to 10 s for the server to end it too. Closing it again is no
// error, nor is closing it after the connection is gone.
func (w *Watch) Close() error {
	l, first := w.end(pathError("watch", w.path, fs.ErrClosed))
	if !first {
		return nil
	}
	return w.unwatch(l)
}

// end fails the watch, and the client forgets it. It returns the connection of the client, and
// whether this call was the first to fail the watch.
func (w *Watch) end(err error) (*connection, bool) {
	c := w.client
	c.mu.Lock()
	delete(c.watches, w)
	l := c.current
	c.mu.Unlock()
	return l, w.fail(err)
}

// unwatch ends the watch at the server.
func (w *Watch) unwatch(l *connection) error {
	l.forget(w)
	return pathError("watch", w.path, l.unwatch(protocol.MethodFSUnwatch, w.params.WatchID))
}

// unwatch ends a watch of files or of ports at the server, which a lost connection ends, too.
func (l *connection) unwatch(method, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := l.called(ctx, method, &protocol.UnwatchParams{WatchID: id}, nil); !isLoss(err) {
		return err
	}
	return nil
}

// changed takes a notification. It never waits.
func (l *connection) changed(n *protocol.ChangedNotification) error {
	l.mu.Lock()
	w := l.watches[n.WatchID]
	l.mu.Unlock()
	if w == nil {
		return nil // closed
	}
	changes := Changes{List: make([]Change, len(n.Changes)), Overflow: n.Overflow}
	for i, c := range n.Changes {
		path, err := c.Path.Native()
		changes.List[i] = Change{Path: path, Kind: c.Kind}
		if err == nil && c.From != nil {
			changes.List[i].From, err = c.From.Native()
		}
		if err != nil {
			return protocolErrorf("notification %s: %v", protocol.MethodFSChanged, err)
		}
	}
	l.useful.Store(true)
	w.add(changes)
	return nil
}

// add appends changes to the waiting ones, or drops all of them. It returns false if the watch is
// over.
func (w *Watch) add(more Changes) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return false
	}
	for _, c := range more.List {
		w.bytes += len(c.Path) + len(c.From)
	}
	w.pending.Overflow = w.pending.Overflow || more.Overflow ||
		len(w.pending.List)+len(more.List) > maxWatchChanges || w.bytes > maxWatchBytes
	if w.pending.Overflow {
		w.pending.List, w.bytes = nil, 0
	} else {
		w.pending.List = append(w.pending.List, more.List...)
	}
	w.signal()
	return true
}

// fail ends the watch, once.
func (w *Watch) fail(err error) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return false
	}
	w.err = err
	w.signal()
	return true
}

func (w *Watch) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}
