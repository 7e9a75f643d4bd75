// Package policy says what a command of agent sandbox or agent exec may do. [Flags] are the flags that both have
// about files and variables, and [Flags.Plan] makes a sandbox profile of them.
//
// A file in the folder profiles lists the needs of a tool (--profile). Secrets are hidden by default: the files of
// a table (secretFiles, histories), and variables that look like secrets (isSecret).
//
// A plan says nothing about the network, because package local reads the words of --network.
package policy
