// Package client drives an exec-server: the agent of this module, or any other
// that speaks the same protocol. It runs commands, works on files and makes
// HTTP requests there.
//
//	c, err := client.DialURL(ctx, "wss://worker.example:7000", client.Token(token))
//	defer c.Close()
//	r, err := c.Run(ctx, client.Spec{Argv: []string{"make", "test"}, Dir: "/srv/w"}, nil)
//	fmt.Printf("%s%d\n", r.Stdout, r.ExitCode)
//
// A [Client] is one session on a server. [DialURL] connects to a server that
// listens. [Command] connects to one that it starts, package client/remote to one
// behind a registry, [Accept] to one that connects by itself. [Connect] with a
// [Config] works on anything that yields an rpc.Conn. docs/client.md of the
// repository is a tour.
//
// # Events and pressure
//
// One goroutine reads the connection. It puts the events of each process in order by
// their sequence numbers and into a queue of at most 1 MiB and 256 events, from which
// [Process.Events], [Process.CopyOutput] or the readers [Process.Stdout] and
// [Process.Stderr] take them. Nothing is ever dropped: a full queue stops the reading,
// and with it everything else on the connection, answers included. So a caller that
// starts a process must take its events, in another goroutine if the caller has more
// to do. Or the caller says with [Process.Discard] or [Process.Close] that it does not
// want them. The same holds for streamed HTTP bodies, which end with Close.
//
// # Loss
//
// When the connection is lost, a server keeps the session for a while. The client dials
// again, at once and then every 100 ms, for up to 45 s. It resumes the session, asks
// for the events that it missed, and goes on: see [Client.State]. The holder of a
// [Process] notices only a delay.
//
//	calls not sent yet                       wait
//	Write, CloseStdin, Resize of a process   are made again; the server takes a write once
//	calls that only read                     are made again
//	Start, Signal, Terminate, Call,          fail with a DisconnectedError that says Sent: they
//	  changes of files, HTTP                 may have been carried out
//	a process whose start has failed so      is terminated as soon as that is possible
//	open files, HTTP bodies                  fail; they ended with the connection
//	Watch                                    goes on; what happened meanwhile is an overflow
//	Socket                                   goes on; its bytes are sent again where they were lost
//	a process whose output the server        fails alone, with a RecoverError around a GapError
//	  could not keep
//
// When the session cannot be resumed, the client fails for good ([Client.Done]): every
// call and every handle then returns the same [DisconnectedError], which holds the
// reason. [Retryable] reports whether a call that returned an error may be made again.
//
// [Config.ResumeSessionID] resumes a session from another program; [Client.Attach]
// then gives handles of the processes that [Client.Processes] lists.
package client
