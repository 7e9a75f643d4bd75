package agent

import (
	"context"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

func (c *connection) watchMissing(_ context.Context, p protocol.WatchMissingParams) (*protocol.WatchMissingResult, error) {
	missing := make([]string, len(p.Missing))
	for i, uri := range p.Missing {
		path, err := nativePath(uri, p.Sandbox)
		if err != nil {
			return nil, err
		}
		missing[i] = path
	}
	var present string
	if p.Present != nil {
		var err error
		if present, err = nativePath(*p.Present, p.Sandbox); err != nil {
			return nil, err
		}
	}

	// Every call ends the previous watch, also one that sets none (rpc.md 5.6).
	c.setWatch(nil)
	c.mu.Lock()
	fresh := p.WatchID > c.watchIDs
	c.watchIDs = max(c.watchIDs, p.WatchID)
	c.mu.Unlock()
	if !fresh {
		return &protocol.WatchMissingResult{}, nil
	}
	watch, err := fsops.WatchMissing(missing, present)
	if err != nil || watch == nil {
		return &protocol.WatchMissingResult{}, err
	}
	c.setWatch(watch)
	c.notifiers.Go(func() {
		select {
		case <-watch.Changed():
			_ = c.peer.Notify(protocol.MethodMissingChanged, &protocol.MissingChangedNotification{WatchID: p.WatchID})
			_ = watch.Close()
		case <-watch.Done():
		}
	})
	return &protocol.WatchMissingResult{Watching: true}, nil
}

// setWatch replaces the connection's watch.
func (c *connection) setWatch(w *fsops.Watch) {
	c.mu.Lock()
	old := c.watch
	c.watch = w
	c.mu.Unlock()
	if old != nil {
		_ = old.Close()
	}
}
