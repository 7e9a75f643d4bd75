// Package registry is the other side of remote mode: the registry, where
// executors say where they are and harnesses ask for them, and the rendezvous,
// where their websockets meet (remote.md 1, 3, 4 and 9). It passes on what they
// have encrypted for each other, and has no key to read it with.
//
//	st, err := store.Open(ctx, store.Config{Dir: "/var/lib/registry"})
//	...
//	server, err := registry.New(ctx, registry.Config{Store: st})
//	...
//	err = registry.NewFront(server, listener, nil).Serve()
//
// All state is in the store, and everything that one request leaves for another is
// read from there: any number of servers on one store are one registry. Each
// request finds its principal there, too, so that a revocation counts at once.
//
//	executor ── register ──► key and environment allowed? ─ registration ─► signed URL, a day
//	executor ── websocket ─► signature, registration still this one ──────► presence
//	harness ─── connect ───► online? ─ executor's key, signed URL, authorization, a minute
//	harness ─── websocket ─► signature, a route for each stream
//	executor ── validate ──► is the authorization of this harness key and registration?
//
// What is signed is signed with one key that the first server on a store makes.
//
// Here are the API, health, and the HTTP server before them. The rooms below:
//
//	store       keys, identities, registrations, presence, letters between servers; NATS
//	rendezvous  websockets, streams, and what servers tell each other of them
//	limits      what each principal has used up; the log in which none fills all
//	principal   who asks, and what they may
//	ticket      signed URLs and authorizations
//	wire        what executors and harnesses say to a registry over HTTP
//
// A [Server] may serve any number of requests at once. Whatever waits for a store
// is bounded, by apiTimeout at most.
package registry
