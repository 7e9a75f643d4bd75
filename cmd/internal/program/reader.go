package program

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// WhileRead returns a context that also ends when the reader of a pipe, a socket or a terminal is
// gone. Its cause is EPIPE then. The caller calls stop.
func WhileRead(ctx context.Context, file *os.File) (while context.Context, stop func(), err error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, nil, os.NewSyscallError("eventfd", err)
	}
	while, cancel := context.WithCancelCause(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		// The kernel always reports an error or a hangup; files report neither.
		fds := []unix.PollFd{{Fd: int32(wake), Events: unix.POLLIN}, {Fd: int32(file.Fd())}}
		for {
			_, err := unix.Poll(fds, -1)
			switch {
			case err == unix.EINTR:
				continue
			case err == nil && fds[0].Revents == 0 && fds[1].Revents&(unix.POLLERR|unix.POLLHUP) != 0:
				cancel(syscall.EPIPE)
			}
			return
		}
	}()
	return while, func() {
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0}) // there is room for it
		<-ended
		unix.Close(wake)
		cancel(nil)
	}, nil
}
