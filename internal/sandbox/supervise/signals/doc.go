// Package signals sends the signals of a command for it, where Landlock does not
// keep them inside (before ABI 6): to its own processes, and to nobody else.
//
// A number is not enough to say who gets a signal: while the supervisor looks at
// the process, that may end, and somebody else have its number a moment later. So
// the supervisor opens the process first (pidfd_open(2)), then looks whether it is
// one of the command's, and sends by the descriptor. The receiver sees the
// supervisor as the sender (si_pid).
//
// What a command sends to its own process the kernel goes on with, since that
// process is there for as long as its call waits. This is the most frequent kind:
// raise(3), abort(3), pthread_kill(3), and the runtime of Go.
//
// To one thread of another process nothing can be sent, since only Linux 6.9 opens
// threads. A process's first thread, which has its number, stands for the process.
//
// Linux only. All functions may run at once.
package signals
