// Package signals sends a command's signals for it where Landlock does not keep
// signals inside (before ABI 6): to the command's own processes only.
//
// A process number is not enough to address a signal: while the supervisor looks
// at the process, it may end, and another process may get its number. So the
// supervisor first opens the process (pidfd_open(2)), then checks that it belongs
// to the command, and signals through the descriptor. The receiver sees the
// supervisor as the sender (si_pid).
//
// If a command signals its own process, the kernel goes on with the call, because
// that process exists as long as its call waits. This is the most frequent kind:
// raise(3), abort(3), pthread_kill(3), and the runtime of Go.
//
// Signals to one thread of another process are not possible, because only Linux
// 6.9 opens threads. A process's first thread, which has the number of the
// process, stands for the process.
//
// Linux only. All functions may run at once.
package signals
