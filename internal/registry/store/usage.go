package store

import (
	"context"
	"sync"
	"time"
)

const (
	// usageInterval bounds the age of the listed time of a key's last use. The first process
	// that finds the time older than this writes it again.
	usageInterval = time.Hour
	// usageRetry is the pause before the time of a key is written again after a failure.
	usageRetry = time.Minute
	// maxNoting is the number of keys whose times are written at once. The time of another
	// key is written when that key is used again.
	maxNoting = 8
)

// usage notes when keys are used. No request waits for the writes.
type usage struct {
	ctx  context.Context // ends with the store
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu      sync.Mutex           // protects the fields below
	due     map[string]time.Time // by key id: when the time has to be written again
	writing int                  // number of keys whose times are being written
	over    bool
}

func (u *usage) open() {
	u.ctx, u.stop = context.WithCancel(context.Background())
	u.due = make(map[string]time.Time)
}

// close cancels the running writes and waits for their end.
func (u *usage) close() {
	u.mu.Lock()
	u.over = true
	u.mu.Unlock()
	u.stop()
	u.wg.Wait()
}

// used notes that a key was used. It is called only for keys that the registry knows, so usage
// holds few of them.
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

// writeUse writes when a key was used, unless another process has done so within
// usageInterval. It returns when the time has to be written again.
func (st *Store) writeUse(ctx context.Context, id string, now time.Time) (due time.Time) {
	last, revision, found, err := get[time.Time](ctx, st.usages, id)
	if err != nil {
		return now.Add(usageRetry)
	}
	if found && now.Sub(last) < usageInterval {
		return last.Add(usageInterval)
	}
	// If another process is faster, its time is good enough.
	if _, _, err := st.put(ctx, st.usages, id, now.UTC().Truncate(time.Minute), revision); err != nil {
		return now.Add(usageRetry)
	}
	return now.Add(usageInterval)
}
