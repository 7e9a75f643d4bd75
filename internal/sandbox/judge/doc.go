// Package judge decides about every program that a command executes, by rules (execpolicy.md 8.3).
// A [Judge] runs in the process that watches the command, and has the rules there. Where the rules
// leave a decision to a client, it asks the agent, which answers with [Questions].
//
//	the command: execve ──► execcheck ──► Judge.Decide ─ rules ─► allowed, or EPERM
//	                                           │ prompt
//	                                           ▼ Event, by a socket
//	                                      agent: Questions.Serve ──► the caller of Serve
//
// Linux only.
package judge
