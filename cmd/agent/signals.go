package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// catch sends signals to a channel: those named, and SIGHUP unless it is
// ignored, as under nohup(1).
//
// It also makes writing to a pipe that nobody reads an error: a log whose
// reader is gone must not end the agent, and a command whose output nobody
// reads can be ended. Ignoring SIGPIPE would do the same, but every command
// would inherit it.
func catch(signals chan<- os.Signal, named ...os.Signal) {
	signal.Notify(signals, named...)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
}

// dieOf ends the program by a signal, as if it had never been caught. It
// returns, with the code that shells give such an end, where the signal does
// nothing: to PID 1.
func dieOf(sig syscall.Signal) int {
	signal.Reset(sig)
	// A signal to the process itself is delivered before kill(2) returns,
	// but perhaps to another thread.
	if err := syscall.Kill(os.Getpid(), sig); err == nil && os.Getpid() != 1 {
		time.Sleep(time.Second)
	}
	return 128 + int(sig)
}
