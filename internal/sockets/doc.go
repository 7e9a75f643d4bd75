// Package sockets connects to addresses for somebody who is elsewhere, and may be away for a
// while: what has come from the other end is kept until it is acknowledged, and what is to go
// there is counted, so that a stream of bytes goes on after a lost connection with nothing
// lost and nothing twice. It knows no JSON.
//
//	the other end ──► read ──► kept, up to the window ──► tell ──► Sink
//	                             ▲ Ack drops, Rewind tells again
//	the other end ◄── the kernel's buffer ◄── Write
//
// A [Set] has the sockets of one client. Each [Socket] has two goroutines: one reads while
// there is room in the window, the other tells the [Sink] what was read. Nothing is queued on
// the way out: [Socket.Write] returns when the kernel has the bytes.
//
// What is kept of all sockets takes from one [Budget]. When that is used up, a socket still has
// room for 8 KiB, so that it goes on, slowly.
package sockets
