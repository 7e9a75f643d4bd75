package registry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// storeTimeout bounds one exchange with NATS. An executor waits 10 s for an
	// answer, in which there are several.
	storeTimeout = 2 * time.Second
	// openTimeout bounds opening a store, bucketTimeout one attempt at a bucket:
	// a cluster that has just started takes some seconds to make one.
	openTimeout   = time.Minute
	bucketTimeout = 5 * time.Second
	// listTimeout bounds reading a whole bucket.
	listTimeout = 20 * time.Second
	// busyTimeout is how long another process may keep the data folder to itself,
	// as the commands of an operator do for a moment.
	busyTimeout = 3 * time.Second
	busyRetry   = 100 * time.Millisecond

	// maxValueSize is in bytes: that of a registration is 2 KiB.
	maxValueSize = 16 << 10

	// registrationTTL is when an environment that nobody comes for is forgotten,
	// see [Store.sweep].
	registrationTTL = 30 * 24 * time.Hour
	// nodeTTL is when a server that was not heard of is dead.
	nodeTTL = 15 * time.Second
	// replayTTL is how long the newest assertion of a task is remembered.
	replayTTL = 10 * time.Minute
	// markerTTL is how long it stays known that a key was deleted.
	markerTTL = time.Minute

	// errCodeNoPeers is JetStream's for too few servers (no suitable peers).
	errCodeNoPeers = 10005

	// casRetries bounds how often a change is tried that others get ahead of.
	casRetries = 8
)

// errUnavailable is that NATS does not answer.
var errUnavailable = errors.New("the store cannot be reached")

// StoreConfig says where the state of a registry is: with Dir in an embedded NATS
// server whose files are there, with URL in an existing cluster.
type StoreConfig struct {
	Dir string

	// Shared opens a Dir that another process has open by way of that process,
	// as the commands of an operator do beside a registry.
	Shared bool

	// URL names one or more NATS servers, separated by commas; they need
	// JetStream and version 2.11.
	URL string
	// CredentialsFile is a NATS credentials file for them, if any.
	CredentialsFile string
	// Replicas is in how many servers of the cluster each value is. Zero leaves
	// what is there, one at first.
	Replicas int

	Logger *slog.Logger
}

// Store is the state of a registry: keys, identities, registrations and who is
// online. All of it is in NATS (D14); any number of stores may be open on the
// same cluster. Its methods may run at once.
type Store struct {
	nc       *nats.Conn
	embedded *embedded // nil for a cluster
	log      *slog.Logger

	keys          jetstream.KeyValue // key id -> keyRecord
	identities    jetstream.KeyValue // encoded runtime id -> identityRecord
	registrations jetstream.KeyValue // environment -> registration
	presence      jetstream.KeyValue // environment -> presence
	nodes         jetstream.KeyValue // node -> when it last said that it lives
	secrets       jetstream.KeyValue // the shared key
	replay        jetstream.KeyValue // task -> newest timestamp
}

// OpenStore connects, and makes what is not there yet.
func OpenStore(ctx context.Context, cfg StoreConfig) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	st := &Store{log: cfg.Logger}
	if st.log == nil {
		st.log = slog.New(slog.DiscardHandler)
	}
	var err error
	switch {
	case (cfg.Dir == "") == (cfg.URL == ""):
		return nil, errors.New("a store needs either a data folder or the URL of a NATS cluster")
	case cfg.URL != "":
		var options []nats.Option
		if cfg.CredentialsFile != "" {
			options = append(options, nats.UserCredentials(cfg.CredentialsFile))
		}
		st.nc, err = connectNATS(ctx, cfg.URL, st.log, options...)
	default:
		err = st.openFolder(ctx, cfg)
	}
	if err == nil {
		err = st.openBuckets(ctx, cfg.Replicas)
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// openFolder starts the embedded server or, for a shared store, connects to the
// one of the process that has the folder. There is no event for a lock to wait
// for, and none that says that an address is about to be written.
func (st *Store) openFolder(ctx context.Context, cfg StoreConfig) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	for {
		var err error
		if st.embedded, err = startEmbedded(cfg.Dir, st.log); err == nil {
			st.nc, err = connectNATS(context.WithoutCancel(ctx), st.embedded.server.ClientURL(), st.log,
				nats.InProcessServer(st.embedded.server), nats.Token(st.embedded.token))
			return err
		}
		if !errors.Is(err, ErrInUse) {
			return err
		}
		if cfg.Shared {
			if a, readErr := readAddress(cfg.Dir); readErr == nil {
				st.nc, readErr = connectNATS(ctx, a.URL, st.log, nats.Token(a.Token))
				if readErr == nil {
					return nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyRetry):
		}
	}
}

// openBuckets makes those that are not there.
func (st *Store) openBuckets(ctx context.Context, replicas int) error {
	js, err := jetstream.New(st.nc)
	if err != nil {
		return fmt.Errorf("opening JetStream: %w", err)
	}
	// What does not outlive the embedded server needs no file. What executors can
	// fill without end must leave room for keys and their revocation; in a cluster
	// that is up to the limits of its accounts.
	passing := jetstream.FileStorage
	var filled int64
	if st.embedded != nil {
		passing, filled = jetstream.MemoryStorage, embeddedFilled
	}
	buckets := []struct {
		to  *jetstream.KeyValue
		cfg jetstream.KeyValueConfig
	}{
		{&st.keys, jetstream.KeyValueConfig{Bucket: "execagent_keys"}},
		{&st.identities, jetstream.KeyValueConfig{Bucket: "execagent_identities", LimitMarkerTTL: markerTTL}},
		{&st.registrations, jetstream.KeyValueConfig{Bucket: "execagent_registrations", TTL: registrationTTL, MaxBytes: filled}},
		{&st.presence, jetstream.KeyValueConfig{Bucket: "execagent_presence", LimitMarkerTTL: markerTTL, Storage: passing}},
		{&st.nodes, jetstream.KeyValueConfig{Bucket: "execagent_nodes", TTL: nodeTTL, Storage: passing}},
		{&st.secrets, jetstream.KeyValueConfig{Bucket: "execagent_secrets"}},
		{&st.replay, jetstream.KeyValueConfig{Bucket: "execagent_replay", TTL: replayTTL, MaxBytes: filled}},
	}
	// All at once: in a cluster each new one has to elect a leader.
	errs := make([]error, len(buckets))
	var wg sync.WaitGroup
	for i, b := range buckets {
		wg.Go(func() {
			b.cfg.MaxValueSize = maxValueSize
			b.cfg.Replicas = replicas
			var err error
			if *b.to, err = openBucket(ctx, js, b.cfg); err != nil {
				errs[i] = fmt.Errorf("opening bucket %s: %w", b.cfg.Bucket, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// openBucket tries until ctx ends while the cluster has no leader yet, or too
// few servers: it may be starting just as this process is.
func openBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	for {
		attempt, cancel := context.WithTimeout(ctx, bucketTimeout)
		kv, err := findOrMakeBucket(attempt, js, cfg)
		cancel()
		if err == nil {
			return kv, nil
		}
		refused, ok := errors.AsType[*jetstream.APIError](err)
		if ok && refused.Code != http.StatusServiceUnavailable && refused.ErrorCode != errCodeNoPeers {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(busyRetry):
		}
	}
}

// findOrMakeBucket leaves an existing bucket as it is, but for a number of
// replicas that was asked for.
func findOrMakeBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig) (jetstream.KeyValue, error) {
	kv, err := js.KeyValue(ctx, cfg.Bucket)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = js.CreateKeyValue(ctx, cfg)
		if errors.Is(err, jetstream.ErrBucketExists) { // another process was faster
			kv, err = js.KeyValue(ctx, cfg.Bucket)
		}
	}
	if err != nil || cfg.Replicas == 0 {
		return kv, err
	}
	status, err := kv.Status(ctx)
	if err != nil {
		return nil, err
	}
	if status.Config().Replicas != cfg.Replicas {
		return js.UpdateKeyValue(ctx, cfg)
	}
	return kv, nil
}

// Close ends the connection and the embedded server, and waits for it.
func (st *Store) Close() error {
	if st.nc != nil {
		st.nc.Close()
	}
	if st.embedded != nil {
		return st.embedded.close()
	}
	return nil
}

// conn is the connection to NATS, for what is not state.
func (st *Store) conn() *nats.Conn { return st.nc }

// reachable asks NATS for something.
func (st *Store) reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	_, err := st.secrets.Get(ctx, sharedKeyName)
	return unavailable("asking for the shared key", err)
}

const sharedKeyName = "hmac"

// sharedKey is the secret that all processes of this registry sign with. The
// first one makes it.
func (st *Store) sharedKey(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	key := make([]byte, 32)
	rand.Read(key)
	_, err := st.secrets.Create(ctx, sharedKeyName, key)
	if err == nil {
		return key, nil
	}
	if !errors.Is(err, jetstream.ErrKeyExists) {
		return nil, unavailable("making the shared key", err)
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

// get reads the value of a key. found is false when there is none.
func get[T any](ctx context.Context, kv jetstream.KeyValue, key string) (value T, revision uint64, found bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
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

// put writes a value if the key still has the revision, 0 for none at all; ok
// is false when it has not.
func put(ctx context.Context, kv jetstream.KeyValue, key string, value any, revision uint64) (next uint64, ok bool, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return 0, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if revision == 0 {
		next, err = kv.Create(ctx, key, text)
	} else {
		next, err = kv.Update(ctx, key, text, revision)
	}
	if errors.Is(err, jetstream.ErrKeyExists) || errors.Is(err, jetstream.ErrKeyRevisionMismatch) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, unavailable("writing "+kv.Bucket(), err)
	}
	return next, true, nil
}

// all reads a whole bucket, in no order.
func all[T any](ctx context.Context, kv jetstream.KeyValue) (values map[string]T, err error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	w, err := kv.WatchAll(ctx, jetstream.IgnoreDeletes())
	if err != nil {
		return nil, unavailable("reading "+kv.Bucket(), err)
	}
	defer func() { err = errors.Join(err, w.Stop()) }()
	values = make(map[string]T)
	for {
		select {
		case <-ctx.Done():
			return nil, unavailable("reading "+kv.Bucket(), ctx.Err())
		case entry, ok := <-w.Updates():
			if !ok {
				return nil, unavailable("reading "+kv.Bucket(), errors.New("the watch has ended"))
			}
			if entry == nil { // that was all
				return values, nil
			}
			var value T
			if err := json.Unmarshal(entry.Value(), &value); err != nil {
				return nil, fmt.Errorf("decoding a value of %s: %w", kv.Bucket(), err)
			}
			values[entry.Key()] = value
		}
	}
}

// unavailable wraps an error of NATS that says nothing about the value.
func unavailable(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", step, errUnavailable, err)
}
