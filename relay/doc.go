// Package relay is remote mode of the executor and of the harness: JSON-RPC
// connections, end to end encrypted, through a rendezvous that both reach by
// websocket and that neither trusts.
//
// The executor runs a [Link]: it registers its key with a [Registry], keeps one
// websocket to the rendezvous and yields every harness that completes its
// handshake as an [rpc.Conn]. A harness has a [Dialer], whose connections each
// use one stream on a websocket of their own.
//
//	Registry  HTTP: register, validate (executor), connect (harness)
//	Link      one websocket after another ── many streams
//	Dialer    one websocket after another ── one stream
//	stream    rpc.Conn: messages ↔ records ↔ data frames, in order, repeated
//	          after a loss when the peer acknowledges
//
// The registry decides who may connect. The handshake of package noise sees to
// it that nobody else reads or writes a stream; a [noise.Identity] is made once
// in a process and never stored.
//
// The wire is specified in docs/protocol/remote.md. This package differs from the
// reference in two places: it acknowledges records (remote.md 8.1), and it
// reconnects at another pace (remote.md 3.5).
package relay
