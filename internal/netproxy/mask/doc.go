// Package mask lets a command use credentials that it cannot see. A [Broker], of one command,
// replaces them in the command's environment by placeholders of the same shape; the command's
// proxy asks it to put a credential back into the header of a request to a place where the
// credential belongs (network.md 8).
//
//	New ─┬─ builtin.go    GitHub and OpenAI: which variables, what values look like
//	     ├─ provider.go   what the client adds: checked, or ignored with a line in the log
//	     ├─ destination.go  where a credential may go
//	     └─ shape.go      a placeholder that a pattern matches as it does the credential
//	Environ               the command's environment, with nothing in it that could not be masked
//	Restore               one field of one request, for the proxy
//
// A placeholder means something to the one broker that made it: another command of the same
// session gains nothing by knowing it. Credentials stand in no error and in no line of a log.
package mask
