package rendezvous

import (
	"context"

	"github.com/execagent/execagent/internal/registry/store"
)

// Store is what a rendezvous needs of the state that the servers share. [store.Store] has it in
// NATS. Errors that wrap [store.ErrUnavailable] say nothing about the value; the rendezvous asks
// again then.
type Store interface {
	// Alone reports whether no other process can have websockets on the store.
	Alone() bool

	// Announce notes that a server lives, Heartbeat repeats that until ctx ends, and Withdraw
	// takes it back. Alive asks about another server.
	Announce(ctx context.Context, node string) error
	Heartbeat(ctx context.Context, self store.Server)
	Withdraw(ctx context.Context, node string) error
	Alive(ctx context.Context, node string) (bool, error)

	// OpenPost makes what carries the letters of a server to the others, and theirs to it.
	OpenPost(ctx context.Context, node string, pending int64) (store.Post, error)

	// Principal finds who may have a websocket, and WatchRevocations hears when that changes.
	Principal(ctx context.Context, id string) (p *store.Principal, found bool, err error)
	WatchRevocations(ctx context.Context) (store.Revocations, error)

	// See reads the registration that a websocket asks for. SetOnline compares it, notes where
	// the executor is, and returns the revision of that presence; SetOffline removes the
	// presence of this revision alone. Each presence has a higher revision than those before.
	See(ctx context.Context, environmentID string) (reg store.Seen, found bool, err error)
	SetOnline(ctx context.Context, p store.Presence, reg store.Seen) (revision uint64, err error)
	SetOffline(ctx context.Context, environmentID string, revision uint64) error
	// Presence returns what SetOnline has noted last, Online only that of a server that lives.
	Presence(ctx context.Context, environmentID string) (p store.Presence, revision uint64, found bool, err error)
	Online(ctx context.Context, environmentID string) (p store.Presence, online bool, err error)
}
