// Package snapshot spares commands of a login shell the startup files: the state that they
// leave is captured once, and later shells restore it (capabilities.md 4).
//
// A capture is a login shell of its own, with the directory, environment and sandbox of the
// command. It runs the startup files and then a script of ours, which prints exported
// variables, functions, aliases and options twice: what a background process prints in
// between makes the two differ, and then nothing is taken. Startup files may do whatever
// commands may do. What they cost is bounded: time, output, and how often they are tried.
//
// A shell that restores gets variables as its environment, whose values no shell reads as
// code. The rest is shell code that the shell itself has printed. It also comes in the
// environment, in variables that are unset before the first line of the command: so it
// passes every sandbox, and needs no descriptor and no file.
package snapshot
