// Package registry is the server side of remote mode (remote.md 1, 3, 4 and 9).
// Executors register at the registry, and harnesses ask the registry for executors.
// Their websockets meet at the rendezvous. It passes on messages that executors and
// harnesses encrypt for each other, and has no key to read them.
//
//	store, err := registry.OpenStore(ctx, registry.StoreConfig{Dir: "/var/lib/registry"})
//	text, key, err := store.CreateKey(ctx, registry.Key{Role: "executor", Environments: "build-*"})
//	...
//	server, err := registry.New(ctx, registry.Config{Store: store})
//	...
//	err = registry.NewFront(server, listener, nil).Serve()
//
// A [Store] has all state: in a folder, or in a NATS cluster. Keys are made and revoked
// there. [New] makes a [Server] on it, which is an http.Handler. A [Front] is the HTTP
// server in front of it, which strangers may reach: it gives strangers few connections
// and keeps the connections of principals.
//
// Requests share state only through the store, so any number of servers on one
// store are one registry. Each request reads its principal from the store too, so
// a revocation counts at once.
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
// In this package are the API, health, and the HTTP server before them. The store, the
// rendezvous, the limits of principals, and the signed URLs and authorizations are in
// internal packages.
//
// A [Server] may serve any number of requests at once. No request to the API waits for
// the store for longer than apiTimeout.
package registry
