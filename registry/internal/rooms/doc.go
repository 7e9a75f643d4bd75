// Package rooms joins the websockets of the direct transport (remote.md 10): those that executors
// have opened to wait, one by one with those of the harnesses that come. From then on it passes
// the messages of one on to the other, as they are, until one of them ends; then it ends the
// other. It reads nothing of the messages, but it could: nothing on this transport is encrypted
// from end to end. So operators name the environments that may use it.
//
// [Rooms] holds what one process of a registry knows: a room for each registration whose executor
// has websockets here. Processes do not pass messages to each other: both ends have to come to
// the same one.
//
//	executor ──► room.waiting ──┐
//	                            ├──► a pair: two goroutines, each reads one and writes the other
//	harness  ──► room.wanting ──┘
package rooms
