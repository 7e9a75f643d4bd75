package registry

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go/jetstream"
)

// revocations hear of changed keys and identities, by whichever process.
type revocations struct {
	store            *Store
	keys, identities jetstream.KeyWatcher
}

// watchRevocations listens from now on, until ctx ends; run or stop must
// be called.
func (st *Store) watchRevocations(ctx context.Context) (*revocations, error) {
	keys, err := st.keys.WatchAll(ctx, jetstream.UpdatesOnly())
	if err != nil {
		return nil, unavailable("watching keys", err)
	}
	identities, err := st.identities.WatchAll(ctx, jetstream.UpdatesOnly())
	if err != nil {
		return nil, errors.Join(unavailable("watching identities", err), keys.Stop())
	}
	return &revocations{store: st, keys: keys, identities: identities}, nil
}

// run calls gone with the id of every principal that is revoked or removed, one
// after the other, until ctx or the connection to NATS ends.
func (r *revocations) run(ctx context.Context, gone func(principalID string)) {
	defer func() { _ = r.stop() }() // fails only when the connection has ended, and the watch with it
	for {
		var id string
		select {
		case <-ctx.Done():
			return
		case entry, ok := <-r.keys.Updates():
			if !ok {
				return
			}
			id = keyPrincipal + entry.Key()
		case entry, ok := <-r.identities.Updates():
			if !ok {
				return
			}
			id = agentPrincipal + runtimeID(entry.Key())
		}
		// What the entry said may be old by now. Where the store cannot be asked the
		// websockets stay; what they ask for next is refused.
		if _, found, err := r.store.principal(ctx, id); err == nil && !found {
			gone(id)
		}
	}
}

// stop is for a watch that does not run.
func (r *revocations) stop() error { return errors.Join(r.keys.Stop(), r.identities.Stop()) }
