package sockfd

import (
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxCopies bounds the copies of one command. A command that has more sockets
	// which are neither connected nor listening gets EMFILE.
	maxCopies = 1 << 14
	// firstSweep is how many copies there are when the table is swept for the
	// first time because it grows.
	firstSweep = 256
	// interval is the time between two looks for copies that nobody needs. Where a
	// look takes long it is longer, so that looking takes a hundredth of the time.
	interval = time.Second
)

// Copies are the copies of one command's sockets.
type Copies struct {
	limit    int
	mu       sync.Mutex
	byInode  map[uint64]*Copy // without those that were dropped
	sweepAt  int              // how many copies there may be before the next sweep
	timer    *time.Timer      // nil: nobody looks, since there is no copy
	attempts *attempts        // nil before the first one that is watched
	closed   bool
	sweeping sync.Mutex // held during a sweep
}

// NewCopies returns an empty table. The caller closes it.
func NewCopies() *Copies {
	s := &Copies{limit: maxCopies, byInode: map[uint64]*Copy{}, sweepAt: firstSweep}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		s.limit = int(min(uint64(s.limit), files.Cur/2)) // the other half is for what the calls open
	}
	return s
}

// Copy is a copy of one socket. Whoever got it from [Copies.Make] uses it until he
// calls Given, once, and whoever got it from [Copies.Of] until he calls Release.
type Copy struct {
	// FD is the descriptor. It belongs to the copy.
	FD int
	// Family and Kind are those of the socket, such as AF_INET and SOCK_STREAM.
	Family, Kind int

	table *Copies
	inode uint64
	// The rest is guarded by the table's mutex.
	users   int
	dropped bool // no longer in the table; the last user closes FD
	missed  bool // no process had the socket open when somebody last looked
	watched bool // FD is in the epoll set of the attempts
}

// Make makes a socket with the arguments of socket(2), close-on-exec, and returns
// its copy. The error is an errno: EMFILE when there are too many copies.
func (s *Copies) Make(family, kind, protocol int) (*Copy, error) {
	if err := s.room(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	c := &Copy{FD: fd, table: s, users: 1}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		c.inode = st.Ino
		c.Family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	}
	if err == nil {
		c.Kind, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		unix.Close(fd)
		return nil, unix.EMFILE
	}
	if before := s.byInode[c.inode]; before != nil {
		// The kernel numbers sockets with 32 bits and has begun anew.
		before.dropLocked()
	}
	s.byInode[c.inode] = c
	if s.timer == nil {
		s.timer = time.AfterFunc(interval, s.look)
	}
	return c, nil
}

// Given says that the command has the socket, or that it has not, because of err.
// The command has to wait for that before it goes on: it could close the socket,
// and need the port for another one.
func (c *Copy) Given(err error) {
	if err != nil {
		c.Drop()
	}
	c.Release()
}

// room sweeps the table if it has grown since the last sweep to twice its size, or
// is full. So the sweeps take a time in proportion to the number of calls. It
// returns EMFILE if no copy can be added.
func (s *Copies) room() error {
	s.mu.Lock()
	n, sweepAt := len(s.byInode), s.sweepAt
	s.mu.Unlock()
	if n < min(sweepAt, s.limit) {
		return nil
	}
	s.Sweep()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepAt = max(firstSweep, 2*len(s.byInode))
	if len(s.byInode) >= s.limit {
		return unix.EMFILE
	}
	return nil
}

// Of returns the copy of the socket with that inode, or nil if there is none.
func (s *Copies) Of(inode uint64) *Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.byInode[inode]
	if c != nil {
		c.users++
	}
	return c
}

// Release says that the caller does not use the copy any more.
func (c *Copy) Release() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.users--
	c.endLocked()
}

// Drop says that the socket needs no copy any more. Once all users have released it
// the copy is closed.
func (c *Copy) Drop() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.dropLocked()
}

func (c *Copy) dropLocked() {
	if c.dropped {
		return
	}
	c.dropped = true
	delete(c.table.byInode, c.inode)
	if c.watched {
		// The epoll set would keep an entry for as long as the command has the
		// socket open.
		c.table.attempts.remove(c.FD)
		c.watched = false
	}
	c.endLocked()
}

// endLocked closes the copy if nobody will use it.
func (c *Copy) endLocked() {
	if c.dropped && c.users == 0 {
		unix.Close(c.FD)
		c.FD = -1
	}
}

// Connects reports whether the socket is for connections, and so names its peer
// once and not with every message.
func (c *Copy) Connects() bool {
	const dccp = 6 // SOCK_DCCP
	return c.Kind == unix.SOCK_STREAM || c.Kind == unix.SOCK_SEQPACKET || c.Kind == dccp
}

// Attempted is called after each connect(2) on the copy, with its result. A socket
// that is connected needs no copy. While an attempt goes on in the kernel the copy
// stays, and is dropped once the attempt has succeeded. After a failure the socket
// can be connected again, so the copy stays too.
func (c *Copy) Attempted(err error) {
	if !c.Connects() {
		return
	}
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	switch {
	case c.dropped:
	case err == nil || hasPeer(c.FD):
		c.dropLocked()
	case errors.Is(err, unix.EINPROGRESS):
		if c.watchLocked() != nil {
			c.dropLocked() // the end of the connection has to be seen by the peer
		}
	}
}

// hasPeer reports whether the socket is connected.
func hasPeer(fd int) bool {
	_, err := unix.Getpeername(fd)
	return err == nil
}

// Sweep drops the copies of sockets that no process of the command has open. It
// reports whether it has dropped any. A socket that is under way in a message between
// two processes (SCM_RIGHTS) counts as closed.
func (s *Copies) Sweep() bool { return s.sweep(true) }

// look drops the copies of sockets that no process had open in this look and in the
// one before, and sets the timer for the next look.
func (s *Copies) look() {
	begun := time.Now()
	s.sweep(false)
	took := time.Since(begun)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.byInode) == 0 {
		s.timer = nil
		return
	}
	s.timer.Reset(max(interval, 100*took))
}

// sweep drops the copies whose sockets no process has open; without atOnce, only
// if that was so the time before as well.
func (s *Copies) sweep(atOnce bool) (dropped bool) {
	s.sweeping.Lock()
	defer s.sweeping.Unlock()
	closed := map[uint64]bool{}
	s.mu.Lock()
	for inode, c := range s.byInode {
		if c.users == 0 {
			closed[inode] = true
		}
	}
	s.mu.Unlock()
	if len(closed) == 0 || findOpen(closed) != nil {
		return false // of what nobody could find out nothing is dropped
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for inode, c := range s.byInode {
		switch {
		case c.users > 0 || !closed[inode]:
			c.missed = false
		case c.missed || atOnce:
			c.dropLocked()
			dropped = true
		default:
			c.missed = true
		}
	}
	return dropped
}

// Close drops all copies. Those in use are closed when they are released.
func (s *Copies) Close() {
	s.sweeping.Lock() // one that is under way has ended then
	defer s.sweeping.Unlock()
	s.mu.Lock()
	s.closed = true
	for _, c := range s.byInode {
		c.dropLocked()
	}
	attempts := s.attempts
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	if attempts != nil {
		attempts.close()
	}
}
