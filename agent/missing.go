package agent

import (
	"context"
	"errors"
	"strings"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

func (c *connection) watchMissing(ctx context.Context, p protocol.WatchMissingParams) (*watchResult, error) {
	files, err := c.agent.filesUnder(ctx, p.Sandbox, &c.policies)
	if err != nil {
		return nil, err
	}
	missing := make([]string, len(p.Missing))
	for i, uri := range p.Missing {
		if missing[i], err = watchable(files, uri); err != nil {
			return nil, err
		}
	}
	var present string
	if p.Present != nil {
		if present, err = watchable(files, *p.Present); err != nil {
			return nil, err
		}
	}

	// Every call ends the watch before it, also a call that sets none (rpc.md
	// 5.6).
	c.setWatch(nil, 0)
	c.mu.Lock()
	fresh := p.WatchID > c.watchIDs
	c.watchIDs = max(c.watchIDs, p.WatchID)
	c.mu.Unlock()
	if !fresh {
		return &watchResult{}, nil
	}
	dirs := int64(strings.Count(present, "/"))
	for _, path := range missing {
		dirs += int64(strings.Count(path, "/"))
	}
	if c.agent.watcher.Dirs.Take(c.owner, dirs) != nil {
		return &watchResult{}, nil
	}
	watch, err := fsops.WatchMissing(&c.agent.inotify, missing, present)
	if err != nil {
		c.agent.watcher.Dirs.Give(c.owner, dirs)
	}
	if errors.Is(err, fsops.ErrNotWatchable) {
		return &watchResult{}, nil
	}
	if err != nil {
		return nil, err
	}
	c.setWatch(watch, dirs)
	return &watchResult{protocol.WatchMissingResult{Watching: true}, func() {
		c.notifiers.Go(func() { c.announceChange(watch, p.WatchID) })
	}}, nil
}

// watchable returns the path of uri, or an error with the reason why the request may not watch it.
func watchable(files fsops.FS, uri protocol.PathURI) (string, error) {
	path, err := uri.Native()
	if err != nil {
		return "", err
	}
	return path, files.Watchable(path, false)
}

// watchResult lets the notification of a change come after the answer.
type watchResult struct {
	protocol.WatchMissingResult
	announce func()
}

func (r *watchResult) Sent() {
	if r.announce != nil {
		r.announce()
	}
}

// announceChange waits for the end of a watch and tells the client of a change.
// A watch that was cancelled ends without a change.
func (c *connection) announceChange(watch *fsops.Watch, id uint64) {
	<-watch.Done()
	select {
	case <-watch.Changed():
		// An error means that the connection is gone, and the watch with it.
		_ = c.peer.Notify(protocol.MethodFSMissingChanged, &protocol.MissingChangedNotification{WatchID: id})
	default:
	}
}

// setWatch replaces the connection's watch, which counts as so many directories.
func (c *connection) setWatch(w *fsops.Watch, dirs int64) {
	c.mu.Lock()
	old, before := c.watch, c.watched
	c.watch, c.watched = w, dirs
	c.mu.Unlock()
	if old != nil {
		old.Close()
		c.agent.watcher.Dirs.Give(c.owner, before)
	}
}
