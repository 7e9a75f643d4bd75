// Package rooms joins the websockets of the direct transport (remote.md 10): each waiting websocket
// of an executor with a websocket of a harness. It then passes messages between the two, unchanged.
// When one of them ends, it ends the other. It does not read the messages, but it could, because
// this transport has no encryption from end to end. So operators name the environments that may use
// the transport.
//
// [Rooms] has the state of one process of a registry: a room for each registration whose executor
// has websockets here. Processes do not pass messages to each other, so both ends have to connect to
// the same process.
//
//	executor ──► room.waiting ──┐
//	                            ├──► a pair: two goroutines, each reads one and writes the other
//	harness  ──► room.wanting ──┘
package rooms
