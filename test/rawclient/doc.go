// Package rawclient is the other end of a connection in tests of the messages on the wire, which
// [rpc.Peer] and the product's client would hide.
//
// A [Client] sends any text over any connection and returns each message unchanged, whatever it is.
// A [WebSocket] is such a connection to a program that listens; its user decides how its socket
// ends. A [Peer] is one level below: it writes and reads frames, including frames that a WebSocket
// must not send.
//
// A Client reads in its own goroutine; other goroutines may send, and take the messages that came.
package rawclient
