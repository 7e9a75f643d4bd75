// Package local runs a command on this machine for agent sandbox: in a sandbox, under rules about
// commands, and with a network that is limited. It asks the user at the terminal where rules or the
// network leave a decision to the user.
//
//	Command.Run ─ rules ─ confine.Door ─ network ─ confine.Held.Run
//	                └────── questions ─────┘
//
// A command whose questions the user answers must not share the user's terminal, because it could
// type the answers. [AtConsole] gives it another one:
//
//	the user's terminal ─ AtConsole ─ console.Console        asks
//	                        │  ▲ questions
//	        orders, reports ▼  │
//	pty ─ terminal-session, leads the session ─ sandbox-job ─ Command.Run
//
// The session is there so that the job can stop: it is the parent of the job's process group in
// another group of the same session. When the job stops, the session says so, and AtConsole stops
// itself, so that the user's shell sees a job that has stopped.
//
// [ParseNetwork] reads the flag --network into [NetworkWords]. A network that they limit is a proxy
// (package egress) with an asker, which asks the user, and a tally, which sums up what was reached
// and refused.
package local
