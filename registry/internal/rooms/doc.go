// Package rooms joins the websockets of the direct transport (remote.md 10): each waiting websocket
// of an executor with one of a harness. It then passes messages between the two, unchanged, until
// one of them ends; then it ends the other. It does not read the messages, but it could, because
// this transport has no encryption from end to end. So operators name the environments that may use
// it.
//
// [Rooms] holds what one process of a registry knows: a room for each registration whose executor
// has websockets here. Processes do not pass messages to each other: both ends have to come to
// the same one.
//
//	executor ──► room.waiting ──┐
//	                            ├──► a pair: two goroutines, each reads one and writes the other
//	harness  ──► room.wanting ──┘
package rooms
