package store

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
	// OpenTimeout bounds opening a store, bucketTimeout one attempt at a bucket:
	// a cluster that has just started takes some seconds to make one.
	OpenTimeout   = time.Minute
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
	// ReplayTTL is how long the newest assertion of a task is remembered.
	ReplayTTL = 10 * time.Minute
	// readyFresh is how long an answer about readiness holds.
	readyFresh = time.Second
	// markerTTL is how long it stays known that a key was deleted.
	markerTTL = time.Minute

	// errCodeNoPeers is JetStream's for too few servers (no suitable peers).
	errCodeNoPeers = 10005

	// casRetries bounds how often a change is tried that others get ahead of.
	casRetries = 8
)

// ErrUnavailable says that NATS does not answer. Errors that wrap it say nothing about
// the value.
var ErrUnavailable = errors.New("the store cannot be reached")

// Config says where the state of a registry is: with Dir in files of an embedded NATS
// server, with URL in a NATS cluster. One of the two has to be set.
type Config struct {
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

// Store is the state of a registry: keys, identities, registrations and who is online.
// Any number of stores may be open on the same cluster.
type Store struct {
	nc       *nats.Conn
	folder   string    // "" for a cluster
	embedded *embedded // nil for a cluster, and beside another process
	log      *slog.Logger

	buckets

	readiness readiness
}

// Open connects to NATS, and makes the buckets that are not there yet. ctx bounds
// that, as does a minute.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	ctx, cancel := context.WithTimeout(ctx, OpenTimeout)
	defer cancel()
	st := &Store{log: cfg.Logger, folder: cfg.Dir}
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
		st.buckets, err = openBuckets(ctx, st.nc, cfg.Replicas, cfg.Dir != "")
	}
	if err != nil {
		return nil, errors.Join(err, st.Close())
	}
	return st, nil
}

// openFolder starts the embedded server. If another process has the folder, it waits
// for a moment; with Shared it connects by way of that process. Both are tried again
// and again, since nothing tells that a lock is free or that a socket is there.
func (st *Store) openFolder(ctx context.Context, cfg Config) error {
	ctx, cancel := context.WithTimeout(ctx, busyTimeout)
	defer cancel()
	prepare := func(ctx context.Context, nc *nats.Conn) error {
		_, err := openBuckets(ctx, nc, 0, true)
		return err
	}
	for {
		var err error
		if st.embedded, err = startEmbedded(cfg.Dir, st.log, prepare); err == nil {
			st.nc, err = connectNATS(context.WithoutCancel(ctx), nats.DefaultURL, st.log, nats.InProcessServer(st.embedded))
			return err
		}
		if !errors.Is(err, ErrInUse) {
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

// buckets are where the state is.
type buckets struct {
	keys          jetstream.KeyValue // key id -> keyRecord
	identities    jetstream.KeyValue // encoded runtime id -> identityRecord
	registrations jetstream.KeyValue // environment -> registration
	presence      jetstream.KeyValue // environment -> presence
	nodes         jetstream.KeyValue // node -> when it last said that it lives
	secrets       jetstream.KeyValue // the shared key
	replay        jetstream.KeyValue // task -> newest timestamp
	health        jetstream.KeyValue // node -> when it last found out that it can write
}

// openBuckets makes the buckets that are not there. inFolder is true for an embedded
// server.
func openBuckets(ctx context.Context, nc *nats.Conn, replicas int, inFolder bool) (b buckets, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return b, fmt.Errorf("opening JetStream: %w", err)
	}
	// Presences and nodes mean nothing after the embedded server has ended, so they
	// need no file. Buckets that executors can fill without end must leave room
	// for keys and their revocation; in a cluster the limits of its accounts do.
	passing := jetstream.FileStorage
	var filled int64
	if inFolder {
		passing, filled = jetstream.MemoryStorage, embeddedFilled
	}
	table := []struct {
		to  *jetstream.KeyValue
		cfg jetstream.KeyValueConfig
	}{
		{&b.keys, jetstream.KeyValueConfig{Bucket: "execagent_keys"}},
		{&b.identities, jetstream.KeyValueConfig{Bucket: "execagent_identities", LimitMarkerTTL: markerTTL}},
		{&b.registrations, jetstream.KeyValueConfig{Bucket: "execagent_registrations", TTL: registrationTTL, MaxBytes: filled}},
		{&b.presence, jetstream.KeyValueConfig{Bucket: "execagent_presence", LimitMarkerTTL: markerTTL, Storage: passing}},
		{&b.nodes, jetstream.KeyValueConfig{Bucket: "execagent_nodes", TTL: nodeTTL, Storage: passing}},
		{&b.secrets, jetstream.KeyValueConfig{Bucket: "execagent_secrets"}},
		{&b.replay, jetstream.KeyValueConfig{Bucket: "execagent_replay", TTL: ReplayTTL, MaxBytes: filled}},
		{&b.health, jetstream.KeyValueConfig{Bucket: "execagent_health", TTL: nodeTTL}}, // a file, unlike that of nodes
	}
	// All at once: in a cluster each new one has to elect a leader.
	errs := make([]error, len(table))
	var wg sync.WaitGroup
	for i, row := range table {
		wg.Go(func() {
			row.cfg.MaxValueSize = maxValueSize
			row.cfg.Replicas = replicas
			var err error
			if *row.to, err = openBucket(ctx, js, row.cfg); err != nil {
				errs[i] = fmt.Errorf("opening bucket %s: %w", row.cfg.Bucket, err)
			}
		})
	}
	wg.Wait()
	return b, errors.Join(errs...)
}

// openBucket tries until ctx ends while the cluster has no leader, or too few servers:
// it may be starting just as this process is.
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

// findOrMakeBucket leaves an existing bucket as it is, except for the number of
// replicas if one was asked for.
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

// Alone tells whether no other process has websockets on the store, as with an
// embedded server. Commands of an operator beside it have none.
func (st *Store) Alone() bool { return st.embedded != nil }

// readiness is what Ready has found out last.
type readiness struct {
	mu  sync.Mutex // held while it is found out
	at  time.Time
	err error
}

// Ready writes something, and returns why that fails: reading alone shows neither that
// a disk is full nor that a cluster has no leader. Requests within readyFresh share
// one write, however many they are.
func (st *Store) Ready(ctx context.Context, node string) error {
	r := &st.readiness
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.at.IsZero() && time.Since(r.at) < readyFresh {
		return r.err
	}
	// The first request may be cancelled; the others still want the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeTimeout)
	defer cancel()
	r.err = st.tryWriting(ctx, node)
	r.at = time.Now()
	if r.err != nil {
		st.log.Warn("not ready", "error", r.err)
	}
	return r.err
}

func (st *Store) tryWriting(ctx context.Context, node string) error {
	if err := st.failing(); err != nil {
		return err
	}
	if st.embedded != nil { // its files may have some room left when the disk has none
		if err := haveRoom(st.folder, readyRoom); err != nil {
			return unavailable("writing", err)
		}
	}
	if _, err := st.health.Put(ctx, node, []byte(time.Now().UTC().Format(time.RFC3339))); err != nil {
		return unavailable("writing "+st.health.Bucket(), st.writeFailed(err))
	}
	return nil
}

// failing says why files cannot be written, as far as that is known. An attempt would
// only take its time.
func (st *Store) failing() error {
	if st.embedded == nil {
		return nil
	}
	return unavailable("writing", st.embedded.failure())
}

// writeFailed has the embedded server examined after a write has failed, and returns
// the error, with its cause if that can be found out.
func (st *Store) writeFailed(err error) error {
	switch {
	case st.folder == "":
		return err
	case st.embedded != nil:
		st.embedded.complained()
		return err
	}
	// The server does not say why it does not answer, and its log is elsewhere.
	return errors.Join(err, haveRoom(st.folder, readyRoom))
}

const sharedKeyName = "hmac"

// SharedKey returns the secret that all processes of this registry sign with. The
// first process makes it.
func (st *Store) SharedKey(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	key := make([]byte, 32)
	rand.Read(key)
	_, err := st.secrets.Create(ctx, sharedKeyName, key)
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

// put writes a value if the key still has the revision, 0 for a key without a value.
// ok is false if the revision is another one.
//
// Every write to a bucket with files asks failing first, and gives its error to
// writeFailed. The shared key alone does not ask: it is written at the start, perhaps
// beside an older process.
func (st *Store) put(ctx context.Context, kv jetstream.KeyValue, key string, value any, revision uint64) (next uint64, ok bool, err error) {
	text, err := json.Marshal(value)
	if err != nil {
		return 0, false, err
	}
	if err := st.failing(); err != nil && kv != st.presence { // that is in memory
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
		return 0, false, unavailable("writing "+kv.Bucket(), st.writeFailed(err))
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

// unavailable wraps an error of NATS that says nothing about the value; nil stays nil.
func unavailable(step string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", step, ErrUnavailable, err)
}
