package store

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Known is an environment that is registered.
type Known struct {
	ID       string
	Since    time.Time // since when its executor is online; zero: it is offline
	Executor string    // the label of the executor's key, or the id of its principal; "" while it is offline
}

// Known returns all environments that are registered, sorted by id.
func (st *Store) Known(ctx context.Context) ([]Known, error) {
	var wg sync.WaitGroup
	var ids []string
	var keys map[string]keyRecord
	var idsErr, keysErr error
	wg.Go(func() { ids, idsErr = names(ctx, st.registrations) })
	wg.Go(func() { keys, keysErr = all[keyRecord](ctx, st.keys) })
	online, err := st.presences(ctx)
	wg.Wait()
	for _, failed := range []error{err, idsErr, keysErr} {
		if failed != nil {
			return nil, failed
		}
	}
	known := make([]Known, 0, len(ids))
	for _, id := range ids {
		k := Known{ID: id}
		at, found := slices.BinarySearchFunc(online, id, func(p Presence, id string) int { return strings.Compare(p.EnvironmentID, id) })
		if found {
			k.Since, k.Executor = online[at].Since, executorName(online[at].Principal, keys)
		}
		known = append(known, k)
	}
	return known, nil
}

// executorName returns the name of an executor for people: the label of its key, or the id of
// its principal.
func executorName(principalID string, keys map[string]keyRecord) string {
	if id, ok := strings.CutPrefix(principalID, KeyPrefix); ok && keys[id].Label != "" {
		return keys[id].Label
	}
	return principalID
}

// names returns the sorted names of the values in a bucket. It does not read the values.
func names(ctx context.Context, kv jetstream.KeyValue) (names []string, err error) {
	err = each(ctx, kv, func(entry jetstream.KeyValueEntry) error {
		names = append(names, entry.Key())
		return nil
	}, jetstream.MetaOnly())
	slices.Sort(names)
	return slices.Compact(names), err // a value that was written meanwhile is listed twice
}
