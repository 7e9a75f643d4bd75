// Package script finds the commands in a script for a shell.
//
// [Split] splits a script that is only a sequence of plain commands; any other script is opaque to
// it. [Literal] finds, in any script and at any depth, the commands whose words are literal. A
// script may run other commands too, because it can compute them.
//
// Both read Bash (docs/protocol/execpolicy.md 5 and 6). They run nothing and look at no file.
package script
