// Package sockets connects to addresses for a remote client, which may be away for a while. It
// keeps bytes from the other end until the client acknowledges them, and counts bytes to the other
// end. So after a lost connection a stream goes on, with no byte lost or repeated. It knows no
// JSON.
//
//	the other end ──► read ──► kept, up to the window ──► tell ──► Sink
//	                             ▲ Ack drops, Rewind tells again
//	the other end ◄── the kernel's buffer ◄── Write
//
// A [Set] has the sockets of one client. Each [Socket] has two goroutines: one reads while there is
// room in the window, the other tells the [Sink] what was read. Nothing is queued for the other
// end: [Socket.Write] returns when the kernel has the bytes.
//
// The kept bytes of all sockets count in one [Budget]. When the budget is used up, each socket
// still has room for 8 KiB, so that it goes on, slowly.
package sockets
