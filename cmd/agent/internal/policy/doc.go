// Package policy makes the policy of a command that a person starts from the words of the command line:
// [Flags], and profiles, which are files of such words with a name. It hides secrets by default: the files of
// a table, and variables that look like secrets.
//
// [Flags.Plan] does not look at the network, whose words package local reads.
package policy
