// Package registry is the server side of remote mode: the registry, with which executors
// register and which harnesses ask for them, and the rendezvous, where their websockets
// meet (remote.md 1, 3, 4 and 9). It passes on what executors and harnesses have
// encrypted for each other, and has no key to read it with.
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
// URLs and authorizations are signed with one key, which the first server on a store
// makes.
//
// In this package are the API, health, and the HTTP server before them. Below it:
//
//	store       keys, identities, registrations, presence, letters between servers; NATS
//	rendezvous  websockets, streams, and what servers tell each other of them
//	limits      what each principal has used up; a log that none of them can fill
//	principal   whom the registry deals with, and what they may
//	ticket      signed URLs and authorizations
//	wire        what executors and harnesses say to a registry over HTTP
//
// A [Server] may serve any number of requests at once. No request to the API waits for
// the store for longer than apiTimeout.
package registry
