package sockfd

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// attempts watches attempts to connect that go on in the kernel, after connect(2)
// has returned EINPROGRESS. It is an epoll(7) set. The network poller of the runtime
// waits for the descriptor of the set, so no thread has to wait.
type attempts struct {
	set  *os.File
	fd   int           // of set
	done chan struct{} // closed when the goroutine has ended
}

// watchLocked has the copy dropped once its attempt to connect has succeeded.
func (c *Copy) watchLocked() error {
	s := c.table
	if s.closed {
		return unix.EMFILE
	}
	if s.attempts == nil {
		a, err := newAttempts()
		if err != nil {
			return err
		}
		s.attempts = a
		go a.run(s.settled)
	}
	op := unix.EPOLL_CTL_ADD
	if c.watched {
		op = unix.EPOLL_CTL_MOD
	}
	// The event has the inode, which has 32 bits, and not the descriptor, because at the
	// time of the event the descriptor's number could belong to another socket.
	event := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLONESHOT, Fd: int32(uint32(c.inode))}
	if err := unix.EpollCtl(s.attempts.fd, op, c.FD, &event); err != nil {
		return err
	}
	c.watched = true
	return nil
}

// settled is called when an attempt has ended. It drops the copy if the socket is connected.
func (s *Copies) settled(inode uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.byInode[inode]; c != nil && hasPeer(c.FD) {
		c.dropLocked()
	}
}

func newAttempts() (*attempts, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that the network poller takes it
		unix.Close(fd)
		return nil, err
	}
	return &attempts{set: os.NewFile(uintptr(fd), "attempts"), fd: fd, done: make(chan struct{})}, nil
}

// run calls settled for each attempt that has ended, until the set is closed.
func (a *attempts) run(settled func(inode uint64)) {
	defer close(a.done)
	set, err := a.set.SyscallConn()
	if err != nil {
		return // the set is closed
	}
	wait(set, settled)
}

// wait returns when set is closed.
func wait(set syscall.RawConn, settled func(inode uint64)) {
	events := make([]unix.EpollEvent, 32)
	_ = set.Read(func(fd uintptr) (done bool) {
		for {
			n, err := unix.EpollWait(int(fd), events, 0)
			if err == unix.EINTR {
				continue
			}
			if err != nil || n == 0 {
				return false
			}
			for _, e := range events[:n] {
				settled(uint64(uint32(e.Fd)))
			}
		}
	})
}

// remove stops watching a descriptor.
func (a *attempts) remove(fd int) { _ = unix.EpollCtl(a.fd, unix.EPOLL_CTL_DEL, fd, nil) }

// close ends the goroutine and waits for its end.
func (a *attempts) close() {
	_ = a.set.Close()
	<-a.done
}
