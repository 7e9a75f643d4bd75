package registry

import (
	"context"

	"github.com/execagent/execagent/internal/registry/store"
)

// Store has all state of a registry: keys, identities, registrations, which executors are online.
// Any number of stores may be open on one cluster. For who runs a registry there are:
//
//	CreateKey, RotateKey, RevokeKey, Keys          API keys
//	AddIdentity, RemoveIdentity, Identities        agents that sign in with assertions
//	Environments, Known, Servers                   what is online, registered, serving
//	Backup                                         all that is to outlive the registry
//
// The other methods are for a [Server]. All may run concurrently; Close comes last.
type Store = store.Store

// StoreConfig says where the state is: with Dir in files of a server that this process runs, with
// URL in a NATS cluster. One of the two has to be set.
type StoreConfig = store.Config

// Key is an API key: its Label, its Role, executor or harness, the pattern of Environments that it
// is for, when it Expires, and its Limits. The text of the key is not in it.
type Key = store.Key

// Identity is an agent that signs in with assertions instead of a key.
type Identity = store.Identity

// Limits say how much one principal may do at one server: Requests per second and RequestBurst,
// Connections, Streams, relayed Bytes per second. Zero stands for the default, a negative value for
// no limit.
type Limits = store.Limits

// OpenStore opens a store, and makes it if needed. The caller closes it.
func OpenStore(ctx context.Context, cfg StoreConfig) (*Store, error) { return store.Open(ctx, cfg) }
