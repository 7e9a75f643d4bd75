// Package judge decides about every program that a command executes, by rules (execpolicy.md 8.3).
// A [Judge] runs in the process that watches the command, and has the rules there. What they
// leave to a client it asks the agent about, where [Serve] has it answered.
//
//	the command: execve ──► execcheck ──► Judge.Decide ─ rules ─► allowed, or EPERM
//	                                           │ prompt
//	                                           ▼ socket
//	                                      agent: Serve ──► whoever is asked
//
// Linux only.
package judge
