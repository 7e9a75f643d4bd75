// Package local runs a command on this machine for agent sandbox: in a sandbox, under rules about
// commands, and with a network that is limited. It asks the user at the terminal where rules or the
// network leave a decision to the user.
//
//	Command.Run ─ rules ─ confine.Door ─ network ─ confine.Held.Run
//	                └── console.Terminal ──┘
//
// [ParseNetwork] reads the flag --network into [NetworkWords]. A network that they limit is a proxy
// (package egress) with an asker, which asks the user, and a tally, which sums up what was reached
// and refused.
package local
