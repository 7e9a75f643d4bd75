// Package rendezvous is where the websockets of executors and harnesses meet, at
// one server or at two (remote.md 4). It passes frames on by their stream ids, and
// cannot read what is in them.
//
// [Routes] are what one server has: for each registration a meeting, in it a route
// for each stream. A meeting is never stored. The store knows at which server an
// executor is (its presence, whose revision tells which news is newer); all else is
// what a server sees itself or other servers tell it, and it is asked for again
// whenever letters between servers may have been lost.
//
// # Two servers
//
// Seen from one server an executor is here, there (at the server that said so last)
// or nowhere; so is the harness of a route, which is away when it is at no server
// that this one knows of. A route is known at two servers at most:
//
//	executor  harness  the route
//	here      here     from lane to lane, in the goroutine that has read the frame
//	here      there    from lane to hop; this server decides who may have the stream
//	here      away     waits Grace for a harness, if both ends acknowledge; else it ends
//	there     here     from lane to hop; the executor's server was told by open
//	there     there    known only to those two: it ends here without a word
//	there     away     the same; the executor's server waits for the harness
//	nowhere   here     waits Grace for the executor, if both ends acknowledge; else it ends
//	nowhere   there    the same; when the executor turns up elsewhere it ends here
//	nowhere   away     ends when Grace is over
//
// Ends that acknowledge repeat what was lost on the way (remote.md 8.1), so a route
// whose ends do survives everything above, and a full lane. All others lose nothing
// as long as they live, which holds up their sender, and are reset when a frame of
// theirs is lost.
//
// # Notices
//
// The executor's server is the one that the executor is here at; the harness's
// server is the one that the harness of the stream is here at. Whatever is said to
// all also shows that its sender lives.
//
//	online, to all; to one server with a leave, or as the answer to it
//		when    the store has noted the executor here
//		effect  the executor is there: an older websocket here is closed, streams
//		        that do not acknowledge are reset
//		answer  an open for each harness here
//	offline, to all
//		when    the executor's websocket here has ended
//		effect  the executor is nowhere, if that revision was the newest
//	open, to the executor's server
//		when    a harness here has opened a stream; the executor has turned up there;
//		        it may have forgotten (unknown, a new beat, a lost connection)
//		effect  the harness is there and gets what was held for it; whoever had the
//		        stream before hears moved
//		answer  refused, or absent
//	open, detached
//		when    the stream's harness is at no server
//		effect  the route waits there, unless it is known there already
//	open, revoked
//		when    the harness's principal has lost the stream while the executor was away
//		effect  the executor is sent principal_revoked, and the route is barred
//	detach, to the executor's server
//		when    the stream's harness here has gone; a frame for it has come in vain
//		effect  the harness is away
//	moved, to the harness's server
//		when    the harness has come back at another one
//		effect  the route ends here without a reset; so does a websocket without others
//	refused, to the harness's server
//		when    an open cannot be granted; a handshake was one too many
//		effect  the stream is reset. A principal whose handshakes fail also loses the
//		        websocket; an intruder loses that alone, since the stream is another's
//	absent, to the harness's server
//		when    an open, or a frame, was for an executor that is not here with that
//		        revision
//		effect  as offline; then the store is asked where the executor is
//	unknown, to the harness's server
//		when    a frame has come of a stream that is not known here
//		answer  an open, if both ends acknowledge; else the stream is reset there
//	taken, to the server that frames come from
//		when    so many bytes of a stream have gone on or were lost
//		effect  its window is open again by as many
//	beat, to all
//		when    two seconds have passed, and at the start
//		effect  if its sender is new: it may have come back and have forgotten, so all
//		        opens are said again, and executors that are nowhere looked up
//	leave, to all
//		when    the server ends
//		effect  the executors that are there are nowhere, the harnesses away
//	leave, to one
//		when    it was not heard of for too long, or letters were lost
//		effect  the same
//		answer  an online for each executor here
//
// Frames carry the revision of the presence that they are meant for, and so do open,
// offline and absent: what is late speaks of a websocket that is over, and is known
// by it.
//
// # Locks
//
// In this order: meeting.presenceMu, meeting.mu, then Routes.mu, hop.mu or the
// limiter's. None is held while a websocket or NATS is waited for, but presenceMu:
// what the store and the others are told of one registration's executor is told by
// one websocket after the other. Names of functions whose caller holds meeting.mu
// end in Locked; everything in a route belongs to that mutex, too.
package rendezvous
