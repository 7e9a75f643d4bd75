// Package policy says what a command may do that a person starts with agent sandbox or agent exec. [Flags] are
// the flags that both have about files and variables, and [Flags.Plan] makes a sandbox profile of them.
//
// A file in the folder profiles says what a tool needs (--profile). Secrets are hidden by default: the files of
// a table (secretFiles), and variables that look like secrets (isSecret).
//
// A plan says nothing about the network, because package local reads the words of --network.
package policy
