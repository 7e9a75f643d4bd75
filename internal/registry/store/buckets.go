package store

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"
)

// buckets are the key-value buckets of NATS that hold the state.
type buckets struct {
	keys          jetstream.KeyValue // key id -> keyRecord
	identities    jetstream.KeyValue // encoded runtime id -> identityRecord
	registrations jetstream.KeyValue // environment -> registration
	presence      jetstream.KeyValue // environment -> presence
	nodes         jetstream.KeyValue // node -> time of its last announcement
	secrets       jetstream.KeyValue // the shared key
	replay        jetstream.KeyValue // task -> newest timestamp
	health        jetstream.KeyValue // node -> time of its last write by Ready
	servers       jetstream.KeyValue // node -> Server
	usages        jetstream.KeyValue // key id -> time of its last use, see usage
}

// time wraps the buckets, so that each exchange with them is bounded by a timeout, and
// observed.
func (b *buckets) time(timeout time.Duration, observer *atomic.Pointer[Observer]) {
	for _, kv := range []*jetstream.KeyValue{&b.keys, &b.identities, &b.registrations, &b.presence, &b.nodes, &b.secrets, &b.replay, &b.health, &b.servers, &b.usages} {
		*kv = &timed{*kv, timeout, observer}
	}
}

// openBuckets opens the buckets, and makes the missing ones. inFolder is true for an embedded
// server. It returns only the first error, because usually all buckets fail for the same reason.
func openBuckets(ctx context.Context, nc *nats.Conn, replicas int, inFolder bool, waits *waiting) (b buckets, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return b, fmt.Errorf("opening JetStream: %w", err)
	}
	if !inFolder {
		if err := findJetStream(ctx, nc, js, waits); err != nil {
			return b, err
		}
	}
	// Presences and nodes mean nothing after the embedded server has ended, so they
	// need no file. Buckets that executors could fill without end have a bound, so
	// that room is left for keys and their revocation. In a cluster the limits of its
	// accounts are such a bound.
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
		{&b.servers, jetstream.KeyValueConfig{Bucket: "execagent_servers", TTL: nodeTTL, Storage: passing}},
		{&b.secrets, jetstream.KeyValueConfig{Bucket: "execagent_secrets"}},
		{&b.usages, jetstream.KeyValueConfig{Bucket: "execagent_usage"}},
		{&b.replay, jetstream.KeyValueConfig{Bucket: "execagent_replay", TTL: ReplayTTL, MaxBytes: filled}},
		{&b.health, jetstream.KeyValueConfig{Bucket: "execagent_health", TTL: nodeTTL}}, // always a file, because Ready tests the disk
	}
	// All buckets are opened at once, because in a cluster each new bucket first has to elect
	// a leader.
	group, ctx := errgroup.WithContext(ctx)
	for _, row := range table {
		group.Go(func() error {
			row.cfg.MaxValueSize = maxValueSize
			row.cfg.Replicas = replicas
			var err error
			if *row.to, err = openBucket(ctx, js, row.cfg, waits); err != nil {
				return fmt.Errorf("opening bucket %s: %w", row.cfg.Bucket, err)
			}
			return nil
		})
	}
	return b, group.Wait()
}

// findJetStream waits until JetStream is available. For a single server without JetStream it
// fails at once. In a cluster it waits, because the servers with JetStream may be starting.
func findJetStream(ctx context.Context, nc *nats.Conn, js jetstream.JetStream, waits *waiting) error {
	return waits.until(ctx, func(ctx context.Context) (error, bool) {
		_, err := js.AccountInfo(ctx)
		switch cause := new(noJetStream); {
		case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
			cause.account = true
			return cause, true
		case errors.Is(err, jetstream.ErrJetStreamNotEnabled):
			return cause, nc.ConnectedClusterName() == ""
		}
		return nil, false // opening the buckets reports any other error
	})
}

// openBucket finds or makes a bucket. While the cluster has no leader or too few servers,
// it tries again until ctx ends, because the cluster may be starting.
func openBucket(ctx context.Context, js jetstream.JetStream, cfg jetstream.KeyValueConfig, waits *waiting) (kv jetstream.KeyValue, err error) {
	err = waits.until(ctx, func(ctx context.Context) (error, bool) {
		kv, err = findOrMakeBucket(ctx, js, cfg)
		return bucketCause(err, cfg.Replicas)
	})
	return kv, err
}

// findOrMakeBucket finds or makes a bucket. It leaves an existing bucket unchanged, except for
// the number of replicas if cfg has one.
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
