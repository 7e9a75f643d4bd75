// Package client drives an exec-server: the agent of this module, or any other
// that speaks the same protocol. It runs commands, works on files and makes
// HTTP requests there.
//
//	c, err := client.DialURL(ctx, "wss://worker.example:7000", client.Token(token))
//	defer c.Close()
//	r, err := c.Run(ctx, client.Spec{Argv: []string{"make", "test"}, Dir: "/srv/w"}, nil)
//	fmt.Printf("%s%d\n", r.Stdout, r.ExitCode)
//
// A [Client] is one session on a server. [DialURL] reaches a server that listens,
// [Command] one that is started for it, package client/remote one behind a registry,
// [Accept] one that connects by itself, and [Connect] with a [Config] anything that
// yields an rpc.Conn. docs/client.md of the repository is a tour.
//
// # Events and pressure
//
// One goroutine reads the connection. It puts the events of each process in order
// by their sequence numbers and into a queue of at most 1 MiB and 256 events, from
// which [Process.Events], [Process.CopyOutput] or the readers [Process.Stdout] and
// [Process.Stderr] take them. Nothing is ever dropped: a full queue stops the reading,
// and with it everything else of the connection, answers included. So a caller that
// starts a process takes its events, in a goroutine of their own if it has more to do
// meanwhile, or says with [Process.Discard] or [Process.Close] that it will not. The
// same holds for streamed HTTP bodies, which end with Close.
//
// # Loss
//
// A server keeps a session for a while when its connection is gone. When that happens
// the client dials again, at once and then every 100 ms, for up to 45 s; it resumes the
// session, asks for the events that it has missed, and goes on: see [Client.State].
// Whoever holds a [Process] notices a delay.
//
//	calls not sent yet                       wait
//	Write, CloseStdin, Resize of a process   are made again; the server takes a write once
//	what only reads                          is made again
//	Start, Signal, Terminate, Call,          fail with a DisconnectedError that says Sent: they
//	  changes of files, HTTP                 may have been carried out
//	a process whose start has failed so      is terminated as soon as that is possible
//	open files, HTTP bodies                  fail; they ended with the connection
//	Watch                                    goes on; what happened meanwhile is an overflow
//	Socket                                   goes on; its bytes are sent again where they were lost
//	a process whose output the server        fails alone, with a RecoverError around a GapError
//	  could not keep
//
// When there is no way back, the client fails for good ([Client.Done]): every call and
// every handle then gives the same [DisconnectedError], which tells why. [Retryable]
// tells for any error whether the same call may be made again.
//
// [Config.ResumeSessionID] comes back to a session in another program; [Client.Attach]
// then gives handles of the processes that [Client.Processes] lists.
package client
