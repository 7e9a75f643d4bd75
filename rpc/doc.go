// Package rpc is the engine between a connection and the methods: it moves
// whole messages, runs requests and writes the answers. A client cannot tell
// the order in which requests run from the order in which they arrived. It
// knows no methods, no sockets and no files.
//
//	transport ─► Conn ─► Peer ─► Order ─► Handler          an agent
//	             │        │      which of the requests     answers
//	             │        │      may run now
//	             │        └─► Config.Notification, in the read loop
//	             │        └─► Call, Notify: the other way   a client
//	             └ one message a Read, one a Write
//
// [Conn] is what a transport provides, and [Pipe] a pair of them in memory. [Peer] serves a [Table]
// of methods on one Conn; agent and client are both peers; a client's table is empty. The [Order]
// of a method says which other requests its requests may run beside: the requests of one queue keep
// their order of arrival, the rest is free.
//
// A bounded number of requests runs at once, each in a goroutine that ends with
// its answer. When more requests have come than may wait, the Peer stops
// reading, and the transport pushes back. A handler that will only wait from
// now on calls [Leave] or [Block] to give back its slot.
//
//	peer := rpc.NewPeer(conn, rpc.Config{Table: rpc.Table{
//		"environment/status": {
//			Handle: rpc.Handle(func(context.Context, protocol.EmptyParams) (*protocol.StatusResult, error) {
//				return &protocol.StatusResult{Status: protocol.StatusReady}, nil
//			}),
//			Order: rpc.Order{Urgent: true},
//		},
//	}})
//	err := peer.Serve(ctx) // until the connection or ctx ends; then no handler runs any more
//
// A [Budget] bounds the memory of the messages of many connections, from the
// first byte until they are served; each Conn takes from it through an [Intake].
//
// Messages live in pooled memory, so neither params nor slices of them outlive their
// handler.
package rpc
