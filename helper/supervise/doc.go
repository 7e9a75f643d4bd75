// Package supervise does system calls for a confined command: its filter asks a
// listener about them, and the [Notifier], in the init of the command, does
// each of them itself or refuses it. Two calls are done today, since no mount
// and no ruleset can say what they may reach: connect(2) and bind(2).
//
//	command: connect(fd, addr)  ──► filter ──► listener: Notifier.Serve
//	                                              │ take: a duplicate of fd, a copy of addr
//	                                              │ judge: connect.go, bind.go; is it the agent? local.go
//	                                              ▼
//	         errno, or 0  ◄────────────────── the call is done here, on these
//
// A call that another judge is to decide is a file beside these and a case in [Notifier]. What
// blocks goes on in a goroutine of its own, so one call waits for no other. Linux only.
package supervise
