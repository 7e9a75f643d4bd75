// Package script looks into the scripts that shells are given, and finds the commands in them.
//
// [Split] takes a script apart that is nothing but plain commands in a row; every other one is
// opaque to it. [Literal] finds in any script the commands whose words can be read there, however
// deep. What it does not find may be run all the same: a script can compute its commands.
//
// Both read Bash (docs/protocol/execpolicy.md 5 and 6). They run nothing and look at no file.
package script
