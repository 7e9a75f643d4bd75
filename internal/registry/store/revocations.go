package store

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// Revocations watch the keys and identities, and hear of each that any process changes.
type Revocations interface {
	// Run calls changed with the id of every principal whose key or identity was
	// written or removed, one after the other, until ctx or the connection to NATS
	// ends.
	Run(ctx context.Context, changed func(principalID string))
	// Stop ends a watch for which Run was not called.
	Stop() error
}

// revocations are Revocations by two watches of NATS.
type revocations struct {
	keys, identities jetstream.KeyWatcher
}

// WatchRevocations listens from now on, until ctx ends. Run or Stop must be called.
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
	defer func() { _ = r.Stop() }() // fails only when the connection has ended, and the watch with it
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
		changed(id) // and not the value of the entry, which may be out of date by now
	}
}

func (r *revocations) Stop() error { return errors.Join(r.keys.Stop(), r.identities.Stop()) }
