// Package signals sends the signals of a command if Landlock does not keep signals
// inside (before ABI 6). It sends them to the command's own processes only.
//
// A process id is not enough to address a signal: while the supervisor checks the
// process, the process may end, and another process may get its id. So the
// supervisor first opens the process (pidfd_open(2)), then checks that the process
// belongs to the command, and signals through the descriptor. The receiver sees the
// supervisor as the sender (si_pid).
//
// If a process of the command signals itself, the kernel goes on with the call, because
// that process exists as long as its call waits. Such signals are the most frequent:
// raise(3), abort(3), pthread_kill(3), and the runtime of Go.
//
// Signals to one thread of another process are not possible, because pidfd_open(2)
// opens threads only since Linux 6.9. A process's first thread, which has the id of the
// process, stands for the process.
//
// Linux only. All functions may be called concurrently.
package signals
