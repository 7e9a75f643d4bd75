package store

import (
	"context"
	"sync"
	"time"
)

const (
	// usageInterval is how old the time may be at which a key is listed as last used: it
	// is written once in so long, by whichever process finds it older.
	usageInterval = time.Hour
	// usageRetry is how long a key is not written again after that has failed.
	usageRetry = time.Minute
	// maxNoting is how many keys are written at once. For others it is done when they are
	// used again.
	maxNoting = 8
)

// usage notes when keys are used. Nobody waits for that.
type usage struct {
	ctx  context.Context // ends with the store
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex           // protects the fields below
	due     map[string]time.Time // by key id: when it has to be written again
	writing int                  // that are being written
	over    bool
}

func (u *usage) open() {
	u.ctx, u.stop = context.WithCancel(context.Background())
	u.due = make(map[string]time.Time)
}

// close ends what is under way and waits for it.
func (u *usage) close() {
	u.mu.Lock()
	u.over = true
	u.mu.Unlock()
	u.stop()
	u.wg.Wait()
}

// used notes that a key was used. The keys are known ones, so there are few.
func (st *Store) used(id string) {
	u, now := &st.usage, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	if now.Before(u.due[id]) || u.writing == maxNoting || u.over {
		return
	}
	u.due[id] = now.Add(usageInterval)
	u.writing++
	u.wg.Go(func() {
		due := st.writeUse(u.ctx, id, now)
		u.mu.Lock()
		defer u.mu.Unlock()
		u.due[id] = due
		u.writing--
	})
}

// writeUse writes when a key was used, unless another process has done so within the hour,
// and returns when it has to be written again.
func (st *Store) writeUse(ctx context.Context, id string, now time.Time) (due time.Time) {
	last, revision, found, err := get[time.Time](ctx, st.usages, id)
	if err != nil {
		return now.Add(usageRetry)
	}
	if found && now.Sub(last) < usageInterval {
		return last.Add(usageInterval)
	}
	// If another process is faster, its time will do.
	if _, _, err := st.put(ctx, st.usages, id, now.UTC().Truncate(time.Minute), revision); err != nil {
		return now.Add(usageRetry)
	}
	return now.Add(usageInterval)
}
