// Package supervise does system calls for a confined command. The command's filter
// passes them to a listener, and the [Notifier] in the command's init does each of
// them itself or refuses it. If namespaces confine the command, these are only
// connect(2) and bind(2), because no mount and no ruleset can limit what these two
// reach. A supervisor does all calls in the table of package calls.
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
