// Package relay connects executors and harnesses that cannot reach each other:
// JSON-RPC connections, end to end encrypted, through a rendezvous that both
// reach by websocket and that neither trusts. A harness that only wants a client
// uses package client/remote, which does all of this.
//
//	registry, err := relay.NewRegistry(relay.RegistryConfig{BaseURL: url, EnvironmentID: id, Tokens: auth.Bearer(key)})
//	identity, err := relay.NewIdentity()
//
//	link := relay.NewLink(relay.LinkConfig{Registry: registry, Identity: identity}) // an executor
//	go link.Run(ctx)
//	err = agent.Serve(ctx, link)
//
//	dialer := &relay.Dialer{Registry: registry, Identity: identity} // a harness
//	conn, err := dialer.Dial(ctx)
//
// A [Registry] is the client of a registry, for one environment. [Environments]
// returns the environments that a key is valid for. An [Identity] is the key
// pair of this process.
//
// The executor runs a [Link]: it registers its key, keeps one websocket to the
// rendezvous and yields every harness that completes its handshake as an
// [rpc.Conn]. A harness has a [Dialer], whose connections each use one stream on
// a websocket of their own.
//
//	Registry  HTTP: register, validate (executor), connect (harness)
//	Link      one websocket after another ── many streams
//	Dialer    one websocket after another ── one stream
//	stream    rpc.Conn: messages ↔ records ↔ data frames, in order, repeated
//	          after a loss when the peer acknowledges
//
// The registry decides which harness may connect. The handshake (Noise) keeps
// everybody else, including the registry and the rendezvous, from reading and
// writing a stream.
//
// The wire is specified in docs/protocol/remote.md. This package differs from the
// reference in two places: it acknowledges records (remote.md 8.1), and it
// reconnects at another pace (remote.md 3.5).
package relay
