// Package execcheck makes sure that the program which was judged is the program
// that runs. A supervisor cannot do execve(2) for another process. So the kernel
// must go on with the call, and reads the path and the arguments again, which the
// command could have changed since they were judged. A [Checker] therefore looks a
// second time: it traces the calling thread around this one call. The kernel stops
// the thread in the middle of the call, when the new image is final and has not
// run an instruction.
//
//	execve waits ─► read, find, decide ─► PTRACE_SEIZE, PTRACE_INTERRUPT ─► let the kernel go on
//	                     │ refused: errno                                     │
//	                     ▼                              stop in the exec event: compare exe and arguments
//	                                                      │ the same: PTRACE_DETACH     │ another: SIGKILL
//	                                                  a stop on the way back: it failed, PTRACE_DETACH
//
// The stretch from the mark in the checker to the end of the tracing is a window.
// Forks, threads, signals and all other calls of the command run at full speed,
// job control is not touched, and a debugger can attach to the command. If a
// debugger starts a program, it already traces the program at the call of execve:
// this is refused with EPERM.
//
// Other parts of the process must know two things. While a window is open, a wait
// for children may return a stop or the end of the traced thread, which belong to
// the window: see [Checker.Ended] and [Checker.Reaped]. And nothing else in the
// process may wait for children. Linux only. All methods may run at once.
package execcheck
