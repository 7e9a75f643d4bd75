// Package supervise does system calls for a confined command. The command's
// filter leaves them to a listener, and the [Notifier], which runs in the
// command's init, does each of them itself or refuses it. Where namespaces confine
// the command these are two calls, connect(2) and bind(2): no mount and no ruleset
// can say what they may reach. A supervisor does all calls that package calls has.
//
//	command: connect(fd, addr)  ──► filter ──► listener: Notifier.Serve
//	                                              │ take: a duplicate of fd, a copy of addr
//	                                              │ judge: connect.go, bind.go, reach.go; is it the agent? local.go
//	                                              ▼
//	         errno, or 0  ◄────────────────── connect, on the duplicate and the copy
//
// docs/dev/recipes.md says how to add a call. A call that may block goes on in a goroutine
// of its own, so no call waits for another one. Linux only.
package supervise
