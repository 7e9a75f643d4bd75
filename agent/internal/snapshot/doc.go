// Package snapshot lets commands of a login shell skip the startup files: the state after these
// files is captured once, and later shells restore it (capabilities.md 4).
//
// A capture is a separate login shell with the directory, environment and sandbox of the command.
// It runs the startup files and then a script of this package. The script prints exported
// variables, functions, aliases and options twice. If a background process prints at the same time,
// the two copies differ, and the state is not used. Startup files may do whatever commands may do.
// Their time, their output and the number of attempts are bounded.
//
// A shell that restores gets the captured variables as its environment, because no shell executes
// values there as code. The rest is shell code that the shell itself printed. The code also comes
// in the environment, in variables that are unset before the first line of the command. So
// restoring works in every sandbox and needs no descriptor and no file.
package snapshot
