package registry

import (
	"context"

	"github.com/execagent/execagent/internal/registry/store"
)

// Store has all state of a registry: keys, identities, registrations, which executors are online.
// Any number of stores may be open on one cluster. For operators of a registry there are:
//
//	CreateKey, RotateKey, RevokeKey, Keys          API keys
//	AddIdentity, RemoveIdentity, Identities        agents that sign in with assertions
//	Environments, Known, Servers                   environments online and registered; running servers
//	Backup                                         everything that must outlive the registry
//
// The other methods are for a [Server]. All may run concurrently; Close comes last.
type Store = store.Store

// StoreConfig says where the state is: with Dir in files of a NATS server in this process, with URL
// in a NATS cluster. One of the two must be set.
type StoreConfig = store.Config

// Key is an API key without its text: its Label, its Role, executor or harness, the pattern of its
// Environments, when it Expires, and its Limits.
type Key = store.Key

// Identity is an agent that signs in with assertions instead of a key.
type Identity = store.Identity

// Limits bound one principal at one server: Requests per second and RequestBurst, Connections,
// Streams, relayed Bytes per second. Zero means the default, a negative value no limit.
type Limits = store.Limits

// OpenStore opens a store, and creates it if necessary. The caller closes it.
func OpenStore(ctx context.Context, cfg StoreConfig) (*Store, error) { return store.Open(ctx, cfg) }
