package store

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Observer is called with the duration of each exchange with the store, including failed ones.
// operation is read or write.
type Observer func(operation string, took time.Duration)

// Observe sets the observer of each exchange from now on.
func (st *Store) Observe(observer Observer) { st.observer.Store(&observer) }

// timed is a bucket whose exchanges are bounded, and observed.
type timed struct {
	jetstream.KeyValue
	timeout  time.Duration
	observer *atomic.Pointer[Observer]
}

// begin bounds an exchange. The caller calls over at its end.
func (k *timed) begin(ctx context.Context, operation string) (limited context.Context, over func()) {
	since := time.Now()
	limited, cancel := context.WithTimeout(ctx, k.timeout)
	return limited, func() {
		cancel()
		if observer := k.observer.Load(); observer != nil {
			(*observer)(operation, time.Since(since))
		}
	}
}

func (k *timed) Get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	ctx, over := k.begin(ctx, "read")
	defer over()
	return k.KeyValue.Get(ctx, key)
}

func (k *timed) Put(ctx context.Context, key string, value []byte) (uint64, error) {
	ctx, over := k.begin(ctx, "write")
	defer over()
	return k.KeyValue.Put(ctx, key, value)
}

func (k *timed) Create(ctx context.Context, key string, value []byte, options ...jetstream.KVCreateOpt) (uint64, error) {
	ctx, over := k.begin(ctx, "write")
	defer over()
	return k.KeyValue.Create(ctx, key, value, options...)
}

func (k *timed) Update(ctx context.Context, key string, value []byte, last uint64) (uint64, error) {
	ctx, over := k.begin(ctx, "write")
	defer over()
	return k.KeyValue.Update(ctx, key, value, last)
}

func (k *timed) Purge(ctx context.Context, key string, options ...jetstream.KVDeleteOpt) error {
	ctx, over := k.begin(ctx, "write")
	defer over()
	return k.KeyValue.Purge(ctx, key, options...)
}
