// Package approval applies the policies about commands to what a client starts: that of the
// operator, and that of the client in the request (execpolicy.md 8). What they leave to the client
// it is asked about.
//
//	Desk.Decide ─► Plan ─ Desk.Open ─► Process, one for each process that is started
//	                         │            │ questions, in their order, each closed before the process has exited
//	                         ▼            ▼
//	                    the client of a session, whichever is attached
//
// What becomes of a command that was not simply allowed is noted ([Desk].Note) for who operates the
// agent.
package approval
