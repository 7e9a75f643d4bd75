// Package rendezvous joins the websockets of executors and harnesses (remote.md 4).
// It passes the frames of a stream from the websocket of one end to that of the
// other, which is at this server or at another one of the same store. It routes a
// frame by its stream id, and cannot read what is in the frame.
//
// [Routes] holds what one server knows: a meeting for each registration, and in the
// meeting a route for each stream. Neither is ever stored. The store only knows which
// server an executor is connected to: the executor's presence. Its revision grows
// with each websocket of the executor, so of two notices about an executor the one
// with the higher revision is the newer. All else a server sees itself or hears from
// other servers, and it asks again whenever letters between servers may have been
// lost.
//
// A server that was started anew remembers no route. The executor says as it comes whose
// the streams are that it resumes (wire.StreamOwners), so that no harness of another
// principal gets them.
//
// # Two servers
//
// A meeting is in one of three states: its executor is here (meeting.executor is
// set), there (meeting.node names the server that last said so), or nowhere. The
// harness of a route is here, there, or away: at no server that this one knows of. A
// route is known at two servers at most, those of its two ends.
//
// "Waits" says in this table that the route waits for Grace, if both ends
// acknowledge; if not, it ends at once.
//
//	executor  harness  the route
//	here      here     leads from lane to lane: whoever reads a frame from one websocket
//	                   puts it into the route's lane of the other
//	here      there    leads from lane to hop; this server decides who may have the stream
//	here      away     waits for a harness
//	there     here     leads from lane to hop; an open has told the executor's server
//	there     there    ends here without a notice: the servers of the two ends know it
//	there     away     ends here with a detach, or an open that says detached: from then
//	                   on the executor's server waits for the harness
//	nowhere   here     waits for the executor
//	nowhere   there    waits for the executor; ends here when that is at another server
//	nowhere   away     waits for each of them
//
// Ends that acknowledge repeat what was lost on the way (remote.md 8.1). So the route
// of such a stream outlives every change of this table, and a full lane loses frames
// of it. A stream that does not acknowledge must not lose a frame: a full lane holds
// up its sender, and when a frame is lost all the same the stream is reset. A full lane
// of a harness holds up its executor only as long as no other harness has a stream there;
// else the frames wait in the route (late.go), so that a harness delays its own streams
// alone.
//
// # Notices
//
// Servers tell each other of changes by notices, to all servers or to one. Below,
// "when" tells what has happened at the sender, "effect" what the receiver does, and
// "answer" what the receiver sends back; where there is no "answer" it sends nothing.
// The executor's server is the one that the executor's websocket is at, the harness's
// server the one that the websocket of the stream's harness is at. A notice to all,
// other than leave, also shows that its sender lives.
//
//	online, to all; to one server after a leave, and as the answer to a leave
//		when    the store has noted an executor of the sender
//		effect  the executor is at the sender, unless the receiver knows of a newer
//		        presence. An older websocket at the receiver is closed, streams that
//		        do not acknowledge are reset
//		answer  an open for each stream that acknowledges, unless its harness is at
//		        another server than the receiver: that server sends one
//	offline, to all
//		when    the executor's websocket at the sender has ended
//		effect  the executor is nowhere, if the revision is the newest one known
//	open, to the executor's server
//		when    a harness at the sender has opened a stream; the executor has turned
//		        up at the receiver; or the receiver may have forgotten the stream (it
//		        has sent an unknown, a server has beaten for the first time, or the
//		        connection was lost)
//		effect  the harness is at the sender, and gets what was held for it. A harness
//		        that had the stream before loses it; if that is at a third server, it
//		        is sent a moved
//		answer  absent, if the executor is not at the receiver; refused, if the
//		        harness may not have the stream
//	open that says detached
//		when    as open, but the stream's harness is away
//		effect  the receiver waits for the harness, unless one has had the stream there
//	open that says revoked
//		when    as open, but the harness's principal may not have the stream any more
//		effect  the executor is sent the reset principal_revoked and the route is
//		        barred, unless a harness has had the stream there
//	detach, to the executor's server
//		when    the stream's harness has left the sender; or a frame has come for a
//		        harness that the sender does not have
//		effect  the harness is away, if the receiver took it to be at the sender
//	moved, to the harness's server
//		when    the harness has come back at another server
//		effect  the route ends without a reset, and so does the harness's old websocket
//		        if it has no other stream
//	refused, to the harness's server
//		when    the sender does not grant an open; or too many handshakes of the
//		        harness's principal have failed
//		effect  the stream is reset. If handshakes have failed, the harness's websocket
//		        is closed, too. An intruder, who asked for the stream of another
//		        harness, is sent no reset: only the websocket is closed
//	absent, to the server that an open or a frame for the executor has come from
//		when    the executor is not at the sender; or the frame is meant for a websocket
//		        of the executor that is over, by its revision
//		effect  as offline; then the store is asked where the executor is
//	unknown, to the harness's server
//		when    a frame has come for the executor, of a stream that the sender does not
//		        know, or whose harness it takes to be at another server
//		effect  the stream is reset at the harness, unless it acknowledges
//		answer  an open, if the stream acknowledges
//	taken, to the server that frames come from
//		when    the sender has passed on or lost so many bytes of a stream
//		effect  the stream's window is open again by as many
//	beat, to all
//		when    the sender has started, and every two seconds
//		effect  if the receiver did not know the sender, that may have come back and
//		        have forgotten everything: the receiver says all its opens again, and
//		        asks the store for executors that are nowhere
//	leave, to all
//		when    the sender ends
//		effect  the executors at the sender are nowhere, the harnesses there away
//	leave, to one
//		when    the receiver was not heard of for too long, or letters were lost
//		effect  the same
//		answer  an online for each executor at the receiver
//
// A frame for an executor carries the revision of the presence that it is meant for;
// online, offline, open and absent carry one, too. A late letter speaks of a websocket
// that is over, and is recognized by its lower revision. The revision of an open is
// not compared: it comes back in the answer absent.
//
// # Locks
//
// They are taken in this order: meeting.presenceMu, then meeting.mu, then one of
// Routes.mu, hop.mu and the limiter's. meeting.mu protects the meeting and all that
// is in its routes, claims and harnesses; a function whose caller holds it has a name
// that ends in Locked.
//
// No lock is held during a wait for a websocket or NATS, except presenceMu: two
// websockets of one executor tell the store and the other servers one after the
// other, so that the newer one has the last word.
package rendezvous
