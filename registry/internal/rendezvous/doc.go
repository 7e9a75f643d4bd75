// Package rendezvous joins the websockets of executors and harnesses (remote.md 4).
// It passes the frames of a stream from the websocket of one end to the websocket of
// the other end. That end is at this server or at another server of the same store.
// The package routes a frame by its stream id, and cannot read the frame's content.
//
// [Routes] has the state of one server: a meeting for each registration, and in the
// meeting a route for each stream. Neither is ever stored. The store only knows the
// server that an executor is connected to: the executor's presence. The revision of
// the presence grows with each websocket of the executor. So of two notices about an
// executor, the notice with the higher revision is newer. Everything else a server
// observes itself or learns from other servers. It asks them again whenever letters
// between servers may have been lost.
//
// A restarted server remembers no route. So an executor names, when it connects, the
// owners of the streams that it resumes (wire.StreamOwners), and no harness of another
// principal gets these streams.
//
// # Two servers
//
// A meeting is in one of three states: its executor is here (meeting.executor is
// set), there (at the server meeting.node, which has said so), or nowhere. The harness
// of a route is here, there, or away, which means at no known server. At most two
// servers know a route: the servers of its two ends.
//
// In this table "waits" means: if both ends acknowledge, the route waits for Grace; if
// not, the route ends at once.
//
//	executor  harness  the route
//	here      here     leads from lane to lane: the reader of one websocket puts a frame
//	                   into the route's lane of the other websocket
//	here      there    leads from lane to hop; this server decides who may have the stream
//	here      away     waits for a harness
//	there     here     leads from lane to hop; an open has told the executor's server
//	there     there    ends here without a notice: the servers of the two ends know it
//	there     away     ends here with a detach, or an open that says detached: from then
//	                   on the executor's server waits for the harness
//	nowhere   here     waits for the executor
//	nowhere   there    waits for the executor; ends here when the executor is at another server
//	nowhere   away     waits for both
//
// Ends that acknowledge repeat lost frames (remote.md 8.1). So the route of such a
// stream outlives every change of this table, and a full lane may lose its frames. A
// stream that does not acknowledge must not lose a frame. A full lane delays its
// sender, and if a frame is lost nevertheless, the stream is reset. A full lane of a
// harness delays the executor only while no other harness has a stream of this executor.
// Otherwise the frames wait in the route (late.go), so that a harness delays only its
// own streams.
//
// # Notices
//
// Servers tell each other of changes by notices, to all servers or to one. Below,
// "when" is the event at the sender, "effect" is the action of the receiver, and
// "answer" is the notice that the receiver sends back. Without an "answer" it sends
// nothing. The executor's server is the server that has the executor's websocket. The
// harness's server is the server that has the websocket of the stream's harness. Every
// notice to all servers except leave also shows that its sender lives.
//
//	online, to all; to one server after a leave, and as the answer to a leave
//		when    the store has noted an executor of the sender
//		effect  the executor is at the sender, unless the receiver knows of a newer
//		        presence. An older websocket at the receiver is closed, streams that
//		        do not acknowledge are reset. The first online of a registration
//		        names its environment: the streams of other registrations of the
//		        environment, whose executors are nowhere, end
//		answer  an open for each stream that acknowledges. If its harness is at another
//		        server than the receiver, that other server sends the open
//	offline, to all
//		when    the executor's websocket at the sender has ended
//		effect  the executor is nowhere, if the revision is the newest one known
//	open, to the executor's server
//		when    a harness at the sender has opened a stream; the executor has connected
//		        to the receiver; or the receiver may have forgotten the stream (it has
//		        sent an unknown, a server has sent its first beat, or the connection
//		        was lost)
//		effect  the harness is at the sender, and gets the frames that were held for it.
//		        A harness that had the stream before loses it. If that harness is at a
//		        third server, this server is sent a moved
//		answer  absent, if the executor is not at the receiver; refused, if the
//		        harness may not have the stream
//	open that says detached
//		when    as open, but the stream's harness is away
//		effect  the receiver waits for the harness, unless a harness has had the stream
//		        there
//	open that says revoked
//		when    as open, but the harness's principal may not have the stream any more
//		effect  the executor is sent the reset principal_revoked and the route is
//		        barred, unless a harness has had the stream there
//	detach, to the executor's server
//		when    the stream's harness has left the sender; or a frame has come for a
//		        harness that the sender does not have
//		effect  the harness is away, if the receiver took it to be at the sender
//	moved, to the harness's server
//		when    the harness has connected again at another server
//		effect  the route ends without a reset, and so does the harness's old websocket
//		        if it has no other stream
//	refused, to the harness's server
//		when    the sender does not grant an open; or too many handshakes of the
//		        harness's principal have failed
//		effect  the stream is reset. If handshakes have failed, the harness's websocket
//		        is closed, too. An intruder is a harness that asked for the stream of
//		        another harness. It is sent no reset, only its websocket is closed
//	absent, to the server that an open or a frame for the executor has come from
//		when    the executor is not at the sender; or, by the revision of the frame, it
//		        is meant for a websocket of the executor that has ended
//		effect  as offline; then the store is asked where the executor is
//	unknown, to the harness's server
//		when    a frame has come for the executor, but the sender does not know the
//		        stream, or believes its harness to be at another server
//		effect  the stream is reset at the harness, unless it acknowledges
//		answer  an open, if the stream acknowledges
//	taken, to the server that frames come from
//		when    the sender has passed on or lost a number of bytes of a stream
//		effect  the stream's window is open again for the same number of bytes
//	beat, to all
//		when    the sender has started, and every two seconds
//		effect  if the receiver did not know the sender, the sender may have restarted
//		        and forgotten everything. The receiver sends all its opens again, and
//		        asks the store for executors that are nowhere
//	leave, to all
//		when    the sender ends
//		effect  the executors at the sender are nowhere, the harnesses there are away
//	leave, to one
//		when    the sender has not heard of the receiver for too long, or letters were
//		        lost
//		effect  the same
//		answer  an online for each executor at the receiver
//
// A frame for an executor carries the revision of the presence that it is meant for.
// The notices online, offline, open and absent carry a revision, too. A late letter is
// about a websocket that has ended, and is recognized by its lower revision. The
// revision of an open is not compared: it only comes back in the answer absent.
//
// # Locks
//
// Mutexes are taken in this order: meeting.presenceMu, then meeting.mu, then one of
// Routes.mu, hop.mu and the limiter's mutex. meeting.mu protects the meeting and all
// fields of its routes, claims and harnesses. A function whose caller must hold
// meeting.mu has a name that ends in Locked.
//
// No mutex is held during a wait for a websocket or NATS, except presenceMu. It makes
// two websockets of one executor tell the store and the other servers one after the
// other, so that the newer websocket has the last word.
package rendezvous
