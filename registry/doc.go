// Package registry is the other side of remote mode: the registry, where
// executors say where they are and harnesses ask for them, and the rendezvous,
// where their websockets meet (remote.md 1, 3, 4 and 9). It passes on what they
// have encrypted for each other, and has no key to read it with.
//
//	store, err := registry.OpenStore(ctx, registry.StoreConfig{Dir: "/var/lib/registry"})
//	...
//	server, err := registry.New(ctx, registry.Config{Store: store})
//	...
//	err = registry.NewFront(server, listener, nil).Serve()
//
// All state is in NATS, embedded or a cluster, and everything that one
// request leaves for another is read from there: any number of servers on one
// store are one registry. A request finds its principal there, too, each time, so
// that a revocation counts at once.
//
//	executor ── register ──► key and environment allowed? ── registration ──► signed URL, a day
//	executor ── websocket ─► signature, registration still this one ───────► presence
//	harness ─── connect ───► online? ── executor's key, signed URL and authorization, a minute
//	harness ─── websocket ─► signature, a route for each stream
//	executor ── validate ──► the authorization is of this harness key, environment, registration
//
// What is signed is signed with one key that the first server on a store makes.
package registry
