//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package threadlog

import (
	"errors"
	"os"
	"syscall"
)

// lock takes the lock of a file, or returns ErrInUse.
func lock(f *os.File) error {
	err := flock(f, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrInUse
	}
	return os.NewSyscallError("flock", err)
}

// unlock releases the lock. Closing the file is not enough: a child that another goroutine
// is starting has the descriptor, and with it the lock, until its execve.
func unlock(f *os.File) error {
	return os.NewSyscallError("flock", flock(f, syscall.LOCK_UN))
}

func flock(f *os.File, how int) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = syscall.Flock(int(fd), how); !errors.Is(failed, syscall.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, failed)
}
