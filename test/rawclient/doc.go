// Package rawclient is the other end of a connection in tests that look at messages as they are
// on the wire, which [rpc.Peer] and the product's client would hide.
//
// A [Client] sends any text over any connection and hands over each message as it came, whatever
// it is. A [WebSocket] is such a connection to a program that listens; its user decides how its
// socket ends. A [Peer] is one level below: it writes and reads frames, also such as no WebSocket
// may send.
//
// A Client reads in a goroutine of its own; sending, and taking what came, are safe beside it.
package rawclient
