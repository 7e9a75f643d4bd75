// Package rules judges by name and address what a command may reach. It works on values: it
// resolves no name and opens no socket. The caller resolves names, and passes the results to the
// next step.
//
// A [Hosts] is compiled from the [Rules] that a client sends. It may have a ceiling, the [Hosts] of
// the operator: then both judge each request, and the stricter answer is the verdict. A request
// goes through the steps of network.md 3.1 in this order:
//
//	Judge           requests that the mode forbids, denied names, local literals, the lists
//	                (the caller asks the client, if the verdict is Ask)
//	JudgeAddresses  the addresses of the name: none local, unless that is allowed
//	JudgeMethod     the methods allowed in limited mode
//	JudgeDial       the address that is dialled in the end
//
// The caller passes every name through [Host] first. Names are ASCII on the wire. A pattern with
// other letters is converted to its A-label, so letters that only look alike do not match.
package rules
