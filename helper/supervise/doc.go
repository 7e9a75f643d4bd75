// Package supervise does system calls for a confined command. The command's
// filter leaves them to a listener, and the [Notifier], which runs in the
// command's init, does each of them itself or refuses it. Today it does two
// calls, connect(2) and bind(2): no mount and no ruleset can say what they may
// reach.
//
//	command: connect(fd, addr)  ──► filter ──► listener: Notifier.Serve
//	                                              │ take: a duplicate of fd, a copy of addr
//	                                              │ judge: connect.go, bind.go; is it the agent? local.go
//	                                              ▼
//	         errno, or 0  ◄────────────────── connect, on the duplicate and the copy
//
// To do another call, add an entry with the action Notify to the tables of
// sandbox/enforce/internal/seccomp, a file beside connect.go and bind.go, and a
// case in Notifier.answer. Notifier.take reads the arguments of a call that has
// a socket and an address; a call with other arguments needs its own. A call
// that may block goes on in a goroutine of its own, so no call waits for
// another one. Linux only.
package supervise
