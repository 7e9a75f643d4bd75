// Package procs runs processes over pipes and pseudo-terminals and turns what
// they do into one ordered sequence of events. It knows neither JSON nor RPC.
// Linux only.
//
// # One process
//
//	child ── stdout ──► pump ─┐                  ┌─► log   (Read, Wait)
//	      ── stderr ──► pump ─┼─► emit: number, ─┤
//	      ── pidfd ───► wait ─┘   keep, announce └─► Sink  (may block)
//	child ◄─ stdin ◄─ Write, or the writer while there is a backlog
//
// Output, exit and close share one counter from 1 without gaps. [Exited]
// follows everything the leader itself wrote, [Closed] is the last event and
// follows the end of all output; other members of the group may write between
// the two.
//
// A Sink that blocks stops the pumps of its own process, hence the process,
// and nothing else: reading, writing and signalling do not pass through it.
//
// # Goroutines
//
// A running process has a waiter and one pump for each stream, all parked in
// the runtime's poller without a thread or a buffer, and a stdin writer while
// the child does not read what was written. One with a [Stage] has another
// until that takes signals. [Process.Close] waits for them.
//
// # Locks
//
// In the order in which they nest: stream.mu (one read and its delivery),
// Process.deliver (one event), then log.mu, stdin.mu, leash.mu, group.mu or
// Budget.mu, none of which is held while another is taken.
//
//	p, err := procs.Start(procs.Spec{
//		Argv: []string{"make", "test"}, Dir: "/srv/w", Env: env,
//		Sink: func(ev procs.Event) { ... },
//	})
//	...              // tell the client that it runs
//	p.Begin()        // from here on events arrive
//	<-p.Done()
//	p.Close()
package procs
