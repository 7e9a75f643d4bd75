// Package procs runs processes over pipes and pseudo-terminals and turns what
// they do into one ordered sequence of events. It knows neither JSON nor RPC.
// Linux only.
//
//	p, err := procs.Start(procs.Spec{
//		Argv: []string{"make", "test"}, Dir: "/srv/w", Env: env,
//		Sink: func(ev procs.Event) { ... },
//	})
//	...              // tell the client that it runs
//	p.Begin()        // from here on events arrive
//	<-p.Done()
//	p.Close()
//
// A [Spec] says what to start, and [Start] starts a [Process]. [Spec.Sink] gets
// each event of the process, and output is kept for [Process.Read].
// [Process.Write] writes its input; [Process.Signal] and [Process.KillGroup] end
// it. Several processes can share a [Budget] for the output that is kept. A
// [Guard] kills them when this program dies. A [Reaper] reaps the orphans that
// they leave. [Cgroups] give each a control group. A [Stage] is a program that
// is executed in place of a command, such as a sandbox.
//
// # One process
//
//	child ── stdout ──► pump ─┐                  ┌─► log   (Read, Wait)
//	      ── stderr ──► pump ─┼─► emit: number, ─┤
//	      ── pidfd ───► wait ─┘   keep, announce └─► Sink  (may block)
//	child ◄─ stdin ◄─ Write, or the writer while there is a backlog
//
// Output, exit and close share one counter, from 1 without gaps. [Exited] comes
// after all output of the leader itself. [Closed] is the last event and comes
// after the end of all output: other members of the group may write between the
// two.
//
// A Sink that blocks stops only the pumps of its own process, and so that
// process. Reading, writing and signalling go on, because they do not pass
// through the Sink.
//
// # Goroutines
//
// A running process has a waiter and one pump for each stream. All are parked in
// the poller of the runtime, without a thread or a buffer. While the child has not
// read all its input, there is a writer of stdin. With a [Stage] there is a
// deliverer of signals until the stage takes them. With a time limit there is a clock. [Process.Close] waits for all
// of these goroutines.
//
// # Locks
//
// In the order in which they nest: stream.mu (one read and its delivery), then
// Process.deliver (one event), then one of log.mu, stdin.mu, leash.mu, group.mu
// and Budget.mu. No goroutine holds two of the last five.
package procs
