package supervise

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
)

// A socket for datagrams can name another peer with each message. So the supervisor
// sends such a message itself, on its copy of the socket, to an address that it
// reads only once. It sends no other messages: a socket for connections has its
// peer from connect(2), and the kernel ignores or refuses any name there. For such
// a socket the kernel continues the call.
//
// That leaves a race. While the kernel continues, another thread of the command can
// put a datagram socket under the number, with dup2(2), and write a name into the
// message: the supervisor has judged neither. So mayReach has two choices for a
// family: its datagram sockets may reach every address, or socket(2) refuses such
// sockets.

// sendto does sendto(2) with an address.
func (r *request) sendto() callResult {
	flags := r.int(3)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	if c.Questions {
		defer c.Release()
		return r.sendQuestion(c)
	}
	var m sockfd.Message
	if r.pointer(2) > sockfd.MaxData {
		err = unix.EMSGSIZE
	} else if m.Data, err = r.memory(r.pointer(1), int(r.pointer(2))); err == nil {
		m.Name, err = r.takeSockaddr(r.pointer(4), r.int(5))
	}
	size, err := r.try(c, flags, &m, err)
	return r.sent(c, flags, &m, size, err, (*request).sentBytes)
}

// sendmsg does sendmsg(2) on a socket for datagrams.
func (r *request) sendmsg() callResult {
	flags := r.int(2)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	if c.Questions {
		defer c.Release()
		return r.sendQuestions(c, r.pointer(1), 1, 0)
	}
	m, err := sockfd.ReadMessage(r.memory, r.pointer(1))
	size, err := r.try(c, flags, &m, err)
	return r.sent(c, flags, &m, size, err, (*request).sentBytes)
}

// sendmmsg does sendmmsg(2) on a socket for datagrams. It may send fewer messages
// than it was given, and waits only if it has sent none.
func (r *request) sendmmsg() callResult {
	flags := r.int(3)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	var m sockfd.Message
	var size int
	list := r.pointer(1)
	count := min(uint64(uint32(r.pointer(2))), sockfd.MaxVectors)
	if c.Questions {
		defer c.Release()
		return r.sendQuestions(c, list, int(count), sockfd.SizeMmsghdr)
	}
	done := uint64(0)
	for ; done < count && err == nil; done++ {
		at := list + done*sockfd.SizeMmsghdr
		m, err = sockfd.ReadMessage(r.memory, at)
		if size, err = r.try(c, flags, &m, err); err == nil {
			err = r.tell(at, size)
		}
		if err != nil {
			break
		}
	}
	if done > 0 || count == 0 {
		c.Release()
		return callResult{value: int64(done)}
	}
	return r.sent(c, flags, &m, size, err, (*request).sentOne)
}

// sentBytes ends a call that returns the number of sent bytes.
func (*request) sentBytes(size int) callResult { return callResult{value: int64(size)} }

// sentOne ends a call of sendmmsg that has sent one message.
func (r *request) sentOne(size int) callResult {
	if err := r.tell(r.pointer(1), size); err != nil {
		return fail(err)
	}
	return callResult{value: 1}
}

// tell writes the size of the message that was sent into its struct mmsghdr.
func (r *request) tell(at uint64, size int) error {
	return r.store(at+sockfd.SizeOfSent, binary.NativeEndian.AppendUint32(nil, uint32(size)))
}

// datagrams returns the copy of the caller's socket if it is a datagram socket,
// and otherwise errNoCopy. flags are the flags of the call.
//
// TCP Fast Open is refused. A send that opens a connection could be judged like
// connect, but the supervisor would have to send its data too, on a socket for
// connections. A host may switch Fast Open off, with this same error, so every
// program falls back to connect. The filter refuses these flags too.
func (r *request) datagrams(flags int) (*sockfd.Copy, error) {
	if flags&unix.MSG_FASTOPEN != 0 {
		return nil, unix.EOPNOTSUPP
	}
	c, err := r.copyOf(r.int(0))
	if err != nil {
		return nil, err
	}
	if c.Connects() {
		c.Release()
		return nil, errNoCopy
	}
	// The kernel would send from the memory of this process, long after the call.
	// The error is the same as on a host where too much memory is locked.
	if flags&unix.MSG_ZEROCOPY != 0 {
		c.Release()
		return nil, unix.ENOBUFS
	}
	return c, nil
}

// try sends m if m may be sent and err, the error of reading m, is nil. If the
// socket is full, the error is EAGAIN.
func (r *request) try(c *sockfd.Copy, flags int, m *sockfd.Message, err error) (size int, _ error) {
	if err = r.judgeSend(c, m, err); err != nil {
		return 0, err
	}
	return m.Send(c.FD, flags|unix.MSG_DONTWAIT)
}

// sent ends the call with the result of try: with success(size), or with the error. If
// the socket is full and the caller would wait, it waits apart. It releases the copy.
func (r *request) sent(c *sockfd.Copy, flags int, m *sockfd.Message, size int, err error, success func(*request, int) callResult) callResult {
	if err != unix.EAGAIN || flags&unix.MSG_DONTWAIT != 0 || isNonblocking(c.FD) {
		c.Release()
		if err != nil {
			return fail(err)
		}
		return success(r, size)
	}
	return r.apart(func(r *request) callResult {
		defer c.Release()
		size, err := m.Send(c.FD, flags)
		if err != nil {
			return fail(err)
		}
		return success(r, size)
	}, c.Release)
}

// judgeSend returns the reason why m may not be sent, or nil. err is the error of reading m.
func (r *request) judgeSend(c *sockfd.Copy, m *sockfd.Message, err error) error {
	if err = r.there(err); err != nil {
		return err
	}
	if m.PassesDescriptors() {
		return unix.EINVAL // their numbers would be descriptors of this process
	}
	if len(m.Name) == 0 {
		return nil // the peer comes from connect
	}
	return r.n.mayReach(c.Family, c.Kind, m.Name)
}
