// Package confined runs a command of the user here: in a sandbox, with the network and under the
// rules that they ask for. What these leave to the user it asks at the terminal.
//
//	Command.Run ─ ruled.decide (rules) ─ Door.Enter ─ netask (network) ─ Held.Run
//	                └─────────── console.Terminal ───────────┘
package local
