package sockfd

import (
	"errors"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxCopies bounds the copies of one command. A command that has more sockets
	// which are neither connected nor listening gets EMFILE.
	maxCopies = 1 << 14
	// firstSweep is the number of copies at which the table is swept for the first
	// time because it grows.
	firstSweep = 256
	// interval is the least time between two looks for copies that the command no longer
	// needs. If a look takes long, the time is longer, so that looks take at most a
	// hundredth of the time.
	interval = time.Second
)

// Copies are the copies of one command's sockets.
type Copies struct {
	limit    int
	mu       sync.Mutex
	byInode  map[uint64]*Copy // without the dropped copies
	sweepAt  int              // the number of copies at which the table is swept next
	timer    *time.Timer      // of the next look; nil if there is no copy
	attempts *attempts        // nil until the first attempt is watched
	closed   bool
	sweeping sync.Mutex // held during a sweep
}

// NewCopies returns an empty table. The caller closes it.
func NewCopies() *Copies {
	s := &Copies{limit: maxCopies, byInode: map[uint64]*Copy{}, sweepAt: firstSweep}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err == nil {
		s.limit = int(min(uint64(s.limit), files.Cur/2)) // the other half is for descriptors that calls of the command need
	}
	return s
}

// Copy is a copy of one socket. A caller that got it from [Copies.Make] may use it until
// the caller calls Given, which it must do once. A caller that got it from [Copies.Of] may
// use it until the caller calls Release.
type Copy struct {
	// FD is the descriptor. It belongs to the copy.
	FD int
	// Family and Kind are the domain and the type of the socket, such as AF_INET and
	// SOCK_STREAM.
	Family, Kind int
	// Questions says that the socket is one end of a pair, at whose other end a resolver answers
	// questions about names. Family and Kind are those that the command has asked for.
	Questions bool

	table *Copies
	inode uint64
	// The table's mutex guards the fields below.
	users   int            // the callers that may use FD
	dropped bool           // no longer in the table; the last user closes FD
	missed  bool           // no process had the socket open at the last look
	server  netip.AddrPort // that the command asks; of Questions
	watched bool           // FD is in the epoll set of the attempts
}

// Make makes a close-on-exec socket with the arguments of socket(2), and returns
// its copy. The error is an errno: EMFILE if there are too many copies.
func (s *Copies) Make(family, kind, protocol int) (*Copy, error) {
	if err := s.room(); err != nil {
		return nil, err
	}
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, err
	}
	c := &Copy{FD: fd, table: s, users: 1}
	c.Family, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err == nil {
		c.Kind, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return s.add(c)
}

// maxQuestions bounds the copies of sockets for questions, because each costs the resolver a
// descriptor.
const maxQuestions = 256

// MakeQuestions makes a socket for questions, with the arguments of socket(2) of a socket for
// datagrams. It returns the copy, and the other end, which the caller closes. Nothing that is sent on
// the socket can lead anywhere else, because it is one of a pair.
func (s *Copies) MakeQuestions(family, kind int) (c *Copy, other int, err error) {
	if err := s.room(); err != nil {
		return nil, -1, err
	}
	count := func() (n int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.byInode {
			if c.Questions {
				n++
			}
		}
		return n
	}
	if count() >= maxQuestions && (!s.Sweep() || count() >= maxQuestions) {
		return nil, -1, unix.EMFILE
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|kind&unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, -1, err
	}
	c, err = s.add(&Copy{FD: pair[0], table: s, users: 1, Family: family, Kind: unix.SOCK_DGRAM, Questions: true})
	if err != nil {
		unix.Close(pair[1])
		return nil, -1, err
	}
	return c, pair[1], nil
}

// add adds a copy to the table, or closes it.
func (s *Copies) add(c *Copy) (*Copy, error) {
	var st unix.Stat_t
	if err := unix.Fstat(c.FD, &st); err != nil {
		unix.Close(c.FD)
		return nil, err
	}
	c.inode = st.Ino
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		unix.Close(c.FD)
		return nil, unix.EMFILE
	}
	if before := s.byInode[c.inode]; before != nil {
		// The inode numbers of sockets have 32 bits, and the kernel has used this one again.
		before.dropLocked()
	}
	s.byInode[c.inode] = c
	if s.timer == nil {
		s.timer = time.AfterFunc(interval, s.look)
	}
	return c, nil
}

// Given says that the command has got the socket, or, if err is not nil, that it has not.
// Given must be called before the command goes on, because the command could close the
// socket and need its port for another socket.
func (c *Copy) Given(err error) {
	if err != nil {
		c.Drop()
	}
	c.Release()
}

// room sweeps the table if its size has doubled since the last sweep, or if it is full. So
// the time of all sweeps is in proportion to the number of calls. room returns EMFILE if no
// copy can be added.
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

// Release says that the caller no longer uses the copy.
func (c *Copy) Release() {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.users--
	c.endLocked()
}

// Drop says that the socket needs no copy any more. The copy is closed once all users have
// released it.
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
		// Otherwise the epoll set would keep an entry as long as the command has the
		// socket open.
		c.table.attempts.remove(c.FD)
		c.watched = false
	}
	c.endLocked()
}

// endLocked closes the copy if it is dropped and has no users.
func (c *Copy) endLocked() {
	if c.dropped && c.users == 0 {
		unix.Close(c.FD)
		c.FD = -1
	}
}

// Connects reports whether the socket is of a kind with connections. Such a socket names
// its peer once, and not with every message.
func (c *Copy) Connects() bool {
	const dccp = 6 // SOCK_DCCP
	return c.Kind == unix.SOCK_STREAM || c.Kind == unix.SOCK_SEQPACKET || c.Kind == dccp
}

// Inode returns the inode of the socket.
func (c *Copy) Inode() uint64 { return c.inode }

// SetServer notes the server that the command asks with a socket for questions.
func (c *Copy) SetServer(at netip.AddrPort) {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	c.server = at
}

// Server returns the server that the command asks; it is invalid if there is none.
func (c *Copy) Server() netip.AddrPort {
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	return c.server
}

// Attempted must be called after each connect(2) on the copy, with the result of the call. A
// connected socket needs no copy. While an attempt goes on in the kernel the copy
// stays. It is dropped once the attempt has succeeded. After a failure the copy stays,
// because the socket can be connected again.
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
			c.dropLocked() // because the peer must see the end of the connection
		}
	}
}

// hasPeer reports whether the socket is connected.
func hasPeer(fd int) bool {
	_, err := unix.Getpeername(fd)
	return err == nil
}

// Sweep drops the copies of sockets that no process of the command has open. It
// reports whether it has dropped any copy. A socket that is in flight between two processes
// (SCM_RIGHTS) counts as closed.
func (s *Copies) Sweep() bool { return s.sweep(true) }

// look drops the copies of sockets that no process had open in this look and in the
// look before, and sets the timer for the next look.
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

// sweep drops the copies whose sockets no process has open. Without atOnce it drops a copy
// only if no process had its socket open in the sweep before either.
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
		return false // after an error it is unknown which sockets are open
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

// Close drops all copies. The copies in use are closed when they are released.
func (s *Copies) Close() {
	s.sweeping.Lock() // waits for a sweep that runs
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
