// Package mask lets a command use credentials that it cannot see. A [Broker] serves one command. It
// replaces credentials in the command's environment by placeholders of the same shape. When the
// command sends a request to a destination of a credential, the command's proxy asks the broker to
// put the credential back into the header (network.md 8).
//
//	New ─┬─ builtin.go    GitHub and OpenAI: the variables, and the shape of their values
//	     ├─ provider.go   additions of the client: checked, or ignored with a line in the log
//	     ├─ destination.go  where a credential may go
//	     └─ shape.go      a placeholder that a pattern matches as it does the credential
//	Environ               the command's environment, without variables that could not be masked
//	Restore               one field of one request, for the proxy
//
// Only the broker that made a placeholder can restore its credential: another command of the same
// session gains nothing by knowing the placeholder. No error and no log line contains a credential.
package mask
