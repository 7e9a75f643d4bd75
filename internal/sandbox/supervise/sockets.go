package supervise

import (
	"errors"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
)

// A supervisor may not be allowed to take a descriptor out of another process. So
// it makes the sockets of the command, and keeps a copy of each for as long as the
// command could need it to connect, bind or send (package sockfd). A call names
// its socket by a number; the copy is found by the inode that the number leads to.
// If another thread puts another socket there meanwhile, the call is done on the
// one that was found, as if it had been made a moment earlier.
//
// Sockets that the command has otherwise have no copy: both ends of a pair, what
// accept(2) returns, what is connected or listens. They need none: their peer is
// settled.

// errNoCopy is the error for a socket without a copy.
var errNoCopy = errors.New("the supervisor has no copy of the socket")

// socket makes a socket for the caller, and keeps a copy.
func (r *request) socket() callResult {
	const typeMask = 0xf // the bits of the type; flags are above them
	family, kind := r.int(0), r.int(1)
	if kind&^(typeMask|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK) != 0 {
		return fail(unix.EINVAL)
	}
	if err := r.n.mayReach(family, kind&typeMask, nil); err != nil {
		return fail(err)
	}
	var c *sockfd.Copy
	var err error
	if r.n.config.Holder != nil && kind&typeMask == unix.SOCK_DGRAM {
		c, err = r.openQuestions(family, kind)
	} else {
		c, err = r.n.sockets.Make(family, kind, r.int(2))
	}
	if err != nil {
		return fail(err)
	}
	if r.n.config.Holder != nil {
		r.n.config.Holder.Forget(c.Inode())
	}
	own, err := unix.FcntlInt(uintptr(c.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		c.Given(err)
		return fail(err)
	}
	a := give(own, kind&unix.SOCK_CLOEXEC != 0)
	a.alone, a.after = true, c.Given // the copy is then the only descriptor here
	return a
}

// copyOf returns the copy of the caller's socket fd, which the caller of copyOf
// releases. An object without a copy is errNoCopy.
func (r *request) copyOf(fd int) (*sockfd.Copy, error) {
	inode, err := r.socketInode(fd)
	if err != nil {
		return nil, err
	}
	if c := r.n.sockets.Of(inode); c != nil {
		return c, nil
	}
	return nil, errNoCopy
}

// socketInode returns the inode of the caller's socket fd.
func (r *request) socketInode(fd int) (uint64, error) {
	var text [64]byte
	n, err := unix.Readlink("/proc/"+strconv.Itoa(r.thread())+"/fd/"+strconv.Itoa(fd), text[:])
	if err == unix.ENOENT {
		err = unix.EBADF
	}
	if err = r.there(err); err != nil {
		return 0, err
	}
	inode, ok := sockfd.Inode(string(text[:n]))
	if !ok {
		return 0, unix.ENOTSOCK
	}
	return inode, nil
}

// listen does listen(2) on the copy. After that the socket can make no connection,
// so it needs no copy, which would continue to listen after the command has closed
// its own. bind already decided whether a socket may listen. So the kernel
// continues a call on a socket without a copy, such as one that already listens.
func (r *request) listen() callResult {
	c, err := r.copyOf(r.int(0))
	if err == errNoCopy && r.n.config.Proxy == nil {
		return proceed()
	}
	if err == errNoCopy {
		return fail(unix.EINVAL)
	}
	if err != nil {
		return fail(err)
	}
	defer c.Release()
	if r.n.config.Proxy != nil && c.Family != unix.AF_UNIX {
		return fail(unix.EPERM) // everybody on the host could connect
	}
	if err := unix.Listen(c.FD, r.int(1)); err != nil {
		return fail(err)
	}
	c.Drop()
	return callResult{}
}
