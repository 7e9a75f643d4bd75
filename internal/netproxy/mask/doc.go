// Package mask lets a command use credentials that it cannot see. A [Broker], of one command,
// replaces them in the command's environment by placeholders of the same shape; the command's proxy
// asks it to put a credential back into the header of a request to a destination of that credential
// (network.md 8).
//
//	New ─┬─ builtin.go    GitHub and OpenAI: the variables, and the shape of their values
//	     ├─ provider.go   additions of the client: checked, or ignored with a line in the log
//	     ├─ destination.go  where a credential may go
//	     └─ shape.go      a placeholder that a pattern matches as it does the credential
//	Environ               the command's environment, without variables that could not be masked
//	Restore               one field of one request, for the proxy
//
// Only the broker that made a placeholder understands it: another command of the same session gains
// nothing by knowing it. No error and no log line contains a credential.
package mask
