// Package netask is the network of a command that a user runs confined: what the flag says of
// it, questions at the user's terminal, and what was reached and refused in the end.
//
//	Parse ─ Words ─ Start ─ Network ┬ egress.Network   the proxy of the command
//	                                ├ asker            at the terminal, one question at a time
//	                                └ tally            of verdicts, for Summary
package local
