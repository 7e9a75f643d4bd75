// Package sockets connects to addresses for a remote client. The client may lose its connection to
// the agent for a while. The package keeps bytes from the other end until the client acknowledges
// them, and counts bytes to the other end. So a stream continues after a lost connection, with no
// byte lost or repeated. The package knows no JSON.
//
//	the other end ──► read ──► kept, up to the window ──► tell ──► Sink
//	                             ▲ Ack drops, Rewind tells again
//	the other end ◄── the kernel's buffer ◄── Write
//
// A [Set] has the sockets of one client. Each [Socket] has two goroutines: one reads while there is
// room in the window, the other passes the bytes to the [Sink]. Nothing is queued for the other
// end: [Socket.Write] returns when the kernel has the bytes.
//
// The kept bytes of all sockets count in one [Budget]. When the budget is used up, each socket
// still has room for 8 KiB, so that it continues, slowly.
package sockets
