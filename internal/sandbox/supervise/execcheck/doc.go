// Package execcheck makes sure that the program which was judged is the program
// that runs. Nobody can do execve(2) for another process. So the kernel has to go
// on with it, and reads the path and the arguments again, which the command could
// have changed meanwhile. A [Checker] therefore looks a second time: it traces the
// calling thread around this one call, and the kernel stops the thread in the
// middle of it, when the new image is final and has not run an instruction.
//
//	execve waits ─► read, find, decide ─► PTRACE_SEIZE, PTRACE_INTERRUPT ─► let the kernel go on
//	                     │ refused: errno                                     │
//	                     ▼                              stop in the exec event: compare exe and arguments
//	                                                      │ the same: PTRACE_DETACH     │ another: SIGKILL
//	                                                  a stop on the way back: it failed, PTRACE_DETACH
//
// The stretch from the mark in the checker to the end of the tracing is a window.
// Forks, threads, signals and all other calls of the command run at full speed,
// job control is not touched, and a debugger can attach to the command. A debugger
// that starts a program traces it already when that calls execve: this is refused
// with EPERM.
//
// Two things that other parts of the process have to know. While a window is open,
// waiting for children may show a stop of the traced thread, or its end, which are
// the window's: see [Checker.Ended] and [Checker.Reaped]. And nothing else in the
// process may wait for children. Linux only. All methods may run at once.
package execcheck
