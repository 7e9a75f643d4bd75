package store

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// Revocations watch the keys and identities for changes by any process.
type Revocations interface {
	// Run calls changed with the id of every principal whose key or identity was
	// written or removed, one after the other, until ctx or the connection to NATS
	// ends.
	Run(ctx context.Context, changed func(principalID string))
	// Stop ends a watch for which Run was not called.
	Stop() error
}

// revocations implements Revocations with two watches of NATS.
type revocations struct {
	keys, identities jetstream.KeyWatcher
}

// WatchRevocations watches from now on, until ctx ends. The caller must call Run or Stop.
func (st *Store) WatchRevocations(ctx context.Context) (Revocations, error) {
	keys, err := st.keys.WatchAll(ctx, jetstream.UpdatesOnly())
	if err != nil {
		return nil, unavailable("watching keys", err)
	}
	identities, err := st.identities.WatchAll(ctx, jetstream.UpdatesOnly())
	if err != nil {
		return nil, errors.Join(unavailable("watching identities", err), keys.Stop())
	}
	return &revocations{keys: keys, identities: identities}, nil
}

func (r *revocations) Run(ctx context.Context, changed func(principalID string)) {
	defer func() { _ = r.Stop() }() // fails only if the connection, and so the watch, has ended
	for {
		var id string
		select {
		case <-ctx.Done():
			return
		case entry, ok := <-r.keys.Updates():
			if !ok {
				return
			}
			id = KeyPrefix + entry.Key()
		case entry, ok := <-r.identities.Updates():
			if !ok {
				return
			}
			id = AgentPrefix + runtimeID(entry.Key())
		}
		changed(id) // without the value of the entry, because it may be out of date by now
	}
}

func (r *revocations) Stop() error { return errors.Join(r.keys.Stop(), r.identities.Stop()) }
