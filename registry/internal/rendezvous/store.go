package rendezvous

import (
	"context"

	"github.com/execagent/execagent/internal/registry/store"
)

// Store is the part of the servers' shared state that a rendezvous needs. [store.Store] has it in
// NATS. An error that wraps [store.ErrUnavailable] says nothing about the value. After such an
// error the rendezvous asks again.
type Store interface {
	// Alone reports whether no other process can have websockets on the store.
	Alone() bool

	// Announce notes that a server lives, Heartbeat repeats the note until ctx ends, and
	// Withdraw removes it. Alive reports whether another server lives.
	Announce(ctx context.Context, node string) error
	Heartbeat(ctx context.Context, self store.Server)
	Withdraw(ctx context.Context, node string) error
	Alive(ctx context.Context, node string) (bool, error)

	// OpenPost makes the post of a server, which carries letters to and from the other servers.
	OpenPost(ctx context.Context, node string, pending int64) (store.Post, error)

	// Principal returns the principal with an id and its rights. WatchRevocations reports changes
	// of these rights.
	Principal(ctx context.Context, id string) (p *store.Principal, found bool, err error)
	WatchRevocations(ctx context.Context) (store.Revocations, error)

	// See reads the registration that a websocket asks for. SetOnline compares it with the
	// stored one, notes where the executor is, and returns the revision of this presence.
	// SetOffline removes the presence only if it has this revision. Each presence has a higher
	// revision than all presences before it.
	See(ctx context.Context, environmentID string) (reg store.Seen, found bool, err error)
	SetOnline(ctx context.Context, p store.Presence, reg store.Seen) (revision uint64, err error)
	SetOffline(ctx context.Context, environmentID string, revision uint64) error
	// Presence returns the presence that SetOnline has noted last. Online returns it only if its
	// server lives.
	Presence(ctx context.Context, environmentID string) (p store.Presence, revision uint64, found bool, err error)
	Online(ctx context.Context, environmentID string) (p store.Presence, online bool, err error)
}
