// Package snapshot lets commands of a login shell skip the startup files: the state after
// these files is captured once, and later shells restore it (capabilities.md 4).
//
// A capture is a login shell of its own, with the directory, environment and sandbox of the
// command. It runs the startup files and then a script of ours, which prints exported
// variables, functions, aliases and options twice. If a background process prints in
// between, the two differ, and nothing is taken. Startup files may do whatever commands may
// do. Their time, their output and the number of attempts are bounded.
//
// A shell that restores gets the captured variables as its environment, because no shell
// reads values there as code. The rest is shell code that the shell itself printed. It
// also comes in the environment, in variables that are unset before the first line of the
// command. So it passes every sandbox and needs no descriptor and no file.
package snapshot
