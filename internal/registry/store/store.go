package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// storeTimeout bounds one exchange with NATS. An executor waits 10 s for the answer
	// to a request, which takes several exchanges.
	storeTimeout = 2 * time.Second
	// OpenTimeout bounds opening a store.
	OpenTimeout = time.Minute
	// listTimeout bounds reading a whole bucket.
	listTimeout = 20 * time.Second
	// busyTimeout is the least time that opening a data folder waits while another process
	// has the folder. The commands of an operator have it for a moment.
	busyTimeout = 3 * time.Second
	busyRetry   = 100 * time.Millisecond

	// maxValueSize bounds a value, in bytes. A registration has 2 KiB.
	maxValueSize = 16 << 10

	// registrationTTL is how long an environment stays registered after its executor was
	// last registered or online, see [Store.sweep].
	registrationTTL = 30 * 24 * time.Hour
	// nodeTTL is how long a server counts as alive after its last announcement.
	nodeTTL = 15 * time.Second
	// ReplayTTL is how long the time of the newest assertion of a task is remembered.
	ReplayTTL = 10 * time.Minute
	// readyFresh is how long Ready repeats an answer before it tries again.
	readyFresh = time.Second
	// markerTTL is how long NATS keeps the marker of a deleted key for watches.
	markerTTL = time.Minute

	// casRetries is the number of times that a change is tried, because another server may
	// change the value first.
	casRetries = 8
)

// ErrUnavailable says that NATS does not answer, or cannot write. Errors that wrap it say
// nothing about the value: after a write the store may have the old or the new value.
var ErrUnavailable = errors.New("the store cannot be reached")

// Config says where the state of a registry is. With Dir it is in files of an embedded NATS
// server, with URL in a NATS cluster. Exactly one of the two has to be set.
type Config struct {
	Dir string

	// Shared makes Open connect to the process that has Dir open, if there is one.
	// Without Shared, Open fails in this case. The commands of an operator use it
	// beside a registry.
	Shared bool

	// URL names one or more NATS servers, separated by commas; they need
	// JetStream and version 2.11.
	URL string
	// CredentialsFile is a NATS credentials file for these servers, if they need one.
	CredentialsFile string
	// Replicas is the number of servers of the cluster that keep each value. Zero leaves
	// the number of an existing store unchanged; a new store gets 1.
	Replicas int

	// Wait makes Open wait if no NATS server answers. Without Wait, Open fails in this
	// case. Open always waits for a cluster that is starting.
	Wait bool
	// Waiting is called with the reason when Open has to wait, and again when the reason
	// changes. It may be nil.
	Waiting func(reason string)

	Timeout time.Duration // of one exchange with NATS; zero: 2 s
	Logger  *slog.Logger  // nil: nothing is logged
}

// Place returns the place of the state: the folder, or the servers without users and
// passwords.
func (cfg Config) Place() string {
	if cfg.URL == "" {
		return cfg.Dir
	}
	return redacted(cfg.URL)
}

// Store gives access to the state of a registry: keys, identities, registrations and
// presences. Any number of stores may be open on the same cluster. All methods may be called
// concurrently. Close must be called last.
type Store struct {
	nc       *nats.Conn
	folder   string    // the data folder; "" for a cluster
	embedded *embedded // nil for a cluster, and beside another process
	timeout  time.Duration
	log      *slog.Logger

	buckets
	observer atomic.Pointer[Observer]

	readiness readiness
	usage     usage
}

// Open connects to NATS and makes the missing buckets. For a folder, it starts the server that
// it connects to. It must succeed before ctx ends and within OpenTimeout. The error wraps
// errInUse if another process has the folder; with Shared, only if Open cannot connect to that
// process. The caller closes the store.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	st := &Store{log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)), folder: cfg.Dir, timeout: cmp.Or(cfg.Timeout, storeTimeout)}
	st.usage.open()
	waits := &waiting{tell: cfg.Waiting}
	var err error
	switch {
	case (cfg.Dir == "") == (cfg.URL == ""):
		return nil, errors.New("a store needs either a data folder or the URL of a NATS cluster")
	case cfg.URL != "":
		st.nc, err = connectCluster(ctx, cfg, st.log, waits)
	default:
		err = st.openFolder(ctx, cfg)
	}
	if err == nil {
		st.buckets, err = openBuckets(ctx, st.nc, cfg.Replicas, cfg.Dir != "", waits)
		st.buckets.time(st.timeout, &st.observer)
	}
	if err != nil {
		if cfg.URL != "" {
			err = fmt.Errorf("NATS at %s: %w", redacted(cfg.URL), err)
		}
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// openFolder starts the embedded server. If another process has the folder, openFolder
// waits for the folder, usually up to busyTimeout; with Shared it connects to that process.
// It tries both every busyRetry, because no event tells that the lock is free or that the
// socket exists.
func (st *Store) openFolder(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, max(busyTimeout, st.timeout))
	defer cancel()
	prepare := func(ctx context.Context, nc *nats.Conn) error {
		_, err := openBuckets(ctx, nc, 0, true, &waiting{})
		return err
	}
	for {
		var err error
		if st.embedded, err = startEmbedded(cfg.Dir, st.log, prepare); err == nil {
			if st.nc, err = connectNATS(context.WithoutCancel(ctx), nats.DefaultURL, st.log, nats.InProcessServer(st.embedded)); err != nil {
				err = fmt.Errorf("connecting to the embedded NATS server: %w", err)
			}
			return err
		}
		if !errors.Is(err, errInUse) {
			return err
		}
		if cfg.Shared {
			var connectErr error
			st.nc, connectErr = connectNATS(ctx, nats.DefaultURL, st.log, nats.InProcessServer(neighbour{cfg.Dir}))
			if connectErr == nil {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyRetry):
		}
	}
}

// Close ends the connection and the embedded server, and waits for the server's end.
func (st *Store) Close() error {
	st.usage.close()
	if st.nc != nil {
		st.nc.Close()
	}
	if st.embedded != nil {
		return st.embedded.close()
	}
	return nil
}

// Alone reports whether no other process can have websockets on the store. This is true
// with an embedded server, because the commands of an operator beside it have no websockets.
func (st *Store) Alone() bool { return st.embedded != nil }

// readiness is the last answer of Ready.
type readiness struct {
	mu   sync.Mutex // protects the fields below; held while Ready tries to write
	at   time.Time
	err  error
	said string // the text of the error that was logged last; "" after it was over
}

// Ready tries to write, and returns the error of the attempt. It writes because a read shows
// neither that a disk is full nor that a cluster has no leader. It logs an error that differs
// from the last one, and the end of the error. All calls within readyFresh share one attempt.
func (st *Store) Ready(ctx context.Context, node string) error {
	r := &st.readiness
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < readyFresh {
		return r.err
	}
	// The attempt ignores the end of ctx, because other requests need the answer too.
	r.err = st.tryWriting(context.WithoutCancel(ctx), node)
	r.at = time.Now()
	switch text := fmt.Sprint(r.err); {
	case r.err == nil && r.said != "":
		st.log.Info("ready again")
		r.said = ""
	case r.err != nil && r.said != text:
		st.log.Warn("not ready", "error", r.err)
		r.said = text
	}
	return r.err
}

// tryWriting writes the node's value in the bucket health, see Ready.
func (st *Store) tryWriting(ctx context.Context, node string) error {
	if err := st.failing(); err != nil {
		return err
	}
	if st.embedded != nil { // NATS may find room in its files when the disk has none left
		if err := haveRoom(st.folder, readyRoom); err != nil {
			return unavailable("writing", err)
		}
	}
	if _, err := st.health.Put(ctx, node, []byte(time.Now().UTC().Format(time.RFC3339))); err != nil {
		return unavailable("writing "+st.health.Bucket(), st.writeFailed(err))
	}
	return nil
}

// failing returns the error of an embedded server that is known to be unable to write its
// files, or nil. A caller that asks it before a write need not wait for the timeout.
func (st *Store) failing() error {
	if st.embedded == nil {
		return nil
	}
	return unavailable("writing", st.embedded.failure())
}

// writeFailed makes the embedded server look for the cause after a write has failed. It
// returns err. Beside another process it adds the cause to err, if the disk is full.
func (st *Store) writeFailed(err error) error {
	switch {
	case st.folder == "":
		return err
	case st.embedded != nil:
		st.embedded.complained()
		return err
	}
	// The server in the other process does not report why it does not answer, and its
	// log is in that process.
	return errors.Join(err, haveRoom(st.folder, readyRoom))
}

const sharedKeyName = "hmac"

// SharedKey returns the secret that all processes of this registry sign with. The
// first process makes the secret.
func (st *Store) SharedKey(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, st.timeout)
	defer cancel()
	key := make([]byte, 32)
	rand.Read(key)
	_, err := st.answered(ctx, func() (uint64, error) { return st.secrets.Create(ctx, sharedKeyName, key) })
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return nil, unavailable("making the shared key", st.writeFailed(err))
	}
	entry, err := st.secrets.Get(ctx, sharedKeyName)
	if err != nil {
		return nil, unavailable("reading the shared key", err)
	}
	if len(entry.Value()) != len(key) {
		return nil, fmt.Errorf("the shared key has %d bytes, not %d", len(entry.Value()), len(key))
	}
	return entry.Value(), nil
}

// get reads the value of a key. found is false if the key has no value.
func get[T any](ctx context.Context, kv jetstream.KeyValue, key string) (value T, revision uint64, found bool, err error) {
	entry, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return value, 0, false, nil
	}
	if err != nil {
		return value, 0, false, unavailable("reading "+kv.Bucket(), err)
	}
	if err := json.Unmarshal(entry.Value(), &value); err != nil {
		return value, 0, false, fmt.Errorf("decoding a value of %s: %w", kv.Bucket(), err)
	}
	return value, entry.Revision(), true, nil
}

// put writes a value if the key still has the revision. The revision is 0 for a key without
// a value. ok is false if the key has another revision.
//
// Every write to a bucket with files calls failing first, and writeFailed with its error.
// Only SharedKey does not call failing: it writes at the start, perhaps beside an older
// process.
func (st *Store) put(ctx context.Context, kv jetstream.KeyValue, key string, value any, revision uint64) (next uint64, ok bool, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return 0, false, err
	}
	if err := st.failing(); err != nil && kv != st.presence { // presences are in memory
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, st.timeout)
	defer cancel()
	next, err = st.answered(ctx, func() (uint64, error) {
		if revision == 0 {
			return kv.Create(ctx, key, text)
		}
		return kv.Update(ctx, key, text, revision)
	})
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, unavailable("writing "+kv.Bucket(), st.writeFailed(err))
	}
	return next, true, nil
}

// answered calls write again, until ctx ends, while no server of a cluster answers for the
// bucket. The bucket then elects a leader, as each new bucket does, and nothing was written.
func (st *Store) answered(ctx context.Context, write func() (revision uint64, err error)) (revision uint64, err error) {
	for {
		revision, err = write()
		if st.folder != "" || !errors.Is(err, jetstream.ErrNoStreamResponse) {
			return revision, err
		}
		select {
		case <-ctx.Done():
			return revision, err
		case <-time.After(busyRetry):
		}
	}
}

// all reads a whole bucket, in no order.
func all[T any](ctx context.Context, kv jetstream.KeyValue) (map[string]T, error) {
	values := make(map[string]T)
	err := each(ctx, kv, func(entry jetstream.KeyValueEntry) error {
		var value T
		if err := json.Unmarshal(entry.Value(), &value); err != nil {
			return fmt.Errorf("decoding a value of %s: %w", kv.Bucket(), err)
		}
		values[entry.Key()] = value
		return nil
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// each calls visit with each entry of a bucket, in no order.
func each(ctx context.Context, kv jetstream.KeyValue, visit func(jetstream.KeyValueEntry) error, options ...jetstream.WatchOpt) (err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	w, err := kv.WatchAll(ctx, append(options, jetstream.IgnoreDeletes())...)
	if err != nil {
		return unavailable("reading "+kv.Bucket(), err)
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	for {
		select {
		case <-ctx.Done():
			return unavailable("reading "+kv.Bucket(), ctx.Err())
		case entry, ok := <-w.Updates():
			if !ok {
				return unavailable("reading "+kv.Bucket(), errors.New("the watch has ended"))
			}
			if entry == nil { // marks the end of the entries that existed before the watch
				return nil
			}
			if err := visit(entry); err != nil {
				return err
			}
		}
	}
}

// unavailable wraps an error of NATS that says nothing about the value; nil stays nil.
func unavailable(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", step, ErrUnavailable, named(err))
}
