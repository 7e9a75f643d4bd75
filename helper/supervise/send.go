package supervise

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/helper/supervise/sockets"
)

// A socket for datagrams can name another peer with each message. So the supervisor
// sends such a message itself, on its copy of the socket, to an address that it has
// read once. It sends no other message: a socket for connections has its peer from
// connect(2), and the kernel ignores or refuses any name there. With such a socket
// the kernel goes on.
//
// That leaves a race. While the kernel goes on, another thread of the command can
// put a socket for datagrams under the number, with dup2(2), and write a name into
// the message: the supervisor has judged neither. So mayReach may not let a command
// have sockets for datagrams, and keep some of their addresses from it.

// Bounds of what is read of the caller for one message. Every datagram of the
// network is smaller.
const (
	maxData     = 1 << 20
	maxControl  = 64 << 10
	maxVectors  = 1024 // UIO_MAXIOV, for the parts of a message and for messages
	sizeMsghdr  = 56   // struct msghdr
	sizeMmsghdr = 64   // struct mmsghdr
	sizeIovec   = 16   // struct iovec
)

// message is a copy of what the command sends in one datagram.
type message struct {
	name, data, control []byte
}

// sendto does sendto(2) with an address.
func (r *request) sendto() answer {
	flags := r.int(3)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	var m message
	if r.pointer(2) > maxData {
		err = unix.EMSGSIZE
	} else if m.data, err = r.memory(r.pointer(1), int(r.pointer(2))); err == nil {
		m.name, err = r.takeSockaddr(r.pointer(4), r.int(5))
	}
	size, err := r.try(c, flags, &m, err)
	return r.sent(c, flags, &m, size, err, func(size int) answer { return answer{value: int64(size)} })
}

// sendmsg does sendmsg(2) on a socket for datagrams.
func (r *request) sendmsg() answer {
	flags := r.int(2)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	m, err := r.takeMessage(r.pointer(1))
	size, err := r.try(c, flags, &m, err)
	return r.sent(c, flags, &m, size, err, func(size int) answer { return answer{value: int64(size)} })
}

// sendmmsg does sendmmsg(2) on a socket for datagrams. It may send fewer messages
// than it was given, and waits only where it has sent none.
func (r *request) sendmmsg() answer {
	flags := r.int(3)
	c, err := r.datagrams(flags)
	if err == errNoCopy {
		return proceed()
	}
	if err != nil {
		return fail(err)
	}
	var m message
	var size int
	list := r.pointer(1)
	count := min(uint64(uint32(r.pointer(2))), maxVectors)
	done := uint64(0)
	for ; done < count && err == nil; done++ {
		at := list + done*sizeMmsghdr
		m, err = r.takeMessage(at)
		if size, err = r.try(c, flags, &m, err); err == nil {
			err = r.tell(at, size)
		}
		if err != nil {
			break
		}
	}
	if done > 0 || count == 0 {
		c.Release()
		return answer{value: int64(done)}
	}
	return r.sent(c, flags, &m, size, err, func(size int) answer {
		if err := r.tell(list, size); err != nil {
			return fail(err)
		}
		return answer{value: 1}
	})
}

// tell writes the size of the message that was sent into its struct mmsghdr.
func (r *request) tell(at uint64, size int) error {
	return r.store(at+sizeMsghdr, binary.NativeEndian.AppendUint32(nil, uint32(size)))
}

// datagrams returns the copy of the caller's socket if that is one for datagrams,
// and otherwise errNoCopy. flags are those of the call.
//
// TCP Fast Open is refused, although a send that opens a connection could be taken
// for a connect. Every program falls back: the error is the one of a host on which
// Fast Open is switched off. The filter refuses these flags too.
func (r *request) datagrams(flags int) (*sockets.Copy, error) {
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
	// The error is that of a host where too much memory is locked for that.
	if flags&unix.MSG_ZEROCOPY != 0 {
		c.Release()
		return nil, unix.ENOBUFS
	}
	return c, nil
}

// takeMessage reads a struct msghdr and what it points to.
func (r *request) takeMessage(addr uint64) (m message, err error) {
	head, err := r.memory(addr, sizeMsghdr)
	if err != nil {
		return m, err
	}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(head[at:]) }
	name, nameLen := word(0), int(int32(binary.NativeEndian.Uint32(head[8:])))
	vector, parts := word(16), word(24)
	control, controlLen := word(32), word(40)
	switch {
	case name != 0 && nameLen < 0:
		return m, unix.EINVAL
	case parts > maxVectors:
		return m, unix.EMSGSIZE
	case control != 0 && controlLen > maxControl:
		return m, unix.ENOBUFS
	}
	if name != 0 {
		if m.name, err = r.memory(name, min(nameLen, maxSockaddr)); err != nil {
			return m, err
		}
	}
	if control != 0 {
		if m.control, err = r.memory(control, int(controlLen)); err != nil {
			return m, err
		}
	}
	m.data, err = r.takeParts(vector, int(parts))
	return m, err
}

// takeParts reads the array of struct iovec at addr, and returns what all of them
// point to, one after the other.
func (r *request) takeParts(addr uint64, parts int) ([]byte, error) {
	list, err := r.memory(addr, parts*sizeIovec)
	if err != nil {
		return nil, err
	}
	var data []byte
	for ; len(list) > 0; list = list[sizeIovec:] {
		base, size := binary.NativeEndian.Uint64(list), binary.NativeEndian.Uint64(list[8:])
		if size > maxData-uint64(len(data)) {
			return nil, unix.EMSGSIZE
		}
		part, err := r.memory(base, int(size))
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
	}
	return data, nil
}

// try sends m if it may be sent, and err, which reading m gave, is nil. Where the
// socket is full the error is EAGAIN.
func (r *request) try(c *sockets.Copy, flags int, m *message, err error) (size int, _ error) {
	if err = r.judgeSend(c, m, err); err != nil {
		return 0, err
	}
	return m.send(c.FD, flags|unix.MSG_DONTWAIT)
}

// sent ends the call with what try has returned: with success's answer for the size,
// or with the error. Where the socket is full and the caller would wait, it waits
// apart. It releases the copy.
func (r *request) sent(c *sockets.Copy, flags int, m *message, size int, err error, success func(size int) answer) answer {
	if err != unix.EAGAIN || flags&unix.MSG_DONTWAIT != 0 || isNonblocking(c.FD) {
		c.Release()
		if err != nil {
			return fail(err)
		}
		return success(size)
	}
	return r.apart(func(*request) answer {
		defer c.Release()
		size, err := m.send(c.FD, flags)
		if err != nil {
			return fail(err)
		}
		return success(size)
	}, c.Release)
}

// judgeSend tells why m may not be sent, or nil. err is what reading m gave.
func (r *request) judgeSend(c *sockets.Copy, m *message, err error) error {
	if err = r.there(err); err != nil {
		return err
	}
	if passesDescriptors(m.control) {
		return unix.EINVAL // their numbers would be those of this process
	}
	if len(m.name) == 0 {
		return nil // the peer is that of connect
	}
	return r.n.mayReach(c.Family, c.Kind, m.name)
}

// passesDescriptors tells whether there are descriptors among the control messages,
// or the kernel would not understand these.
func passesDescriptors(control []byte) bool {
	if len(control) == 0 {
		return false
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return true
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_RIGHTS {
			return true
		}
	}
	return false
}

// send sends the message on the socket.
func (m *message) send(fd, flags int) (size int, err error) {
	var head unix.Msghdr
	var part unix.Iovec
	if len(m.name) > 0 {
		head.Name, head.Namelen = &m.name[0], uint32(len(m.name))
	}
	if len(m.data) > 0 {
		part.Base = &m.data[0]
	}
	part.SetLen(len(m.data))
	head.Iov = &part
	head.SetIovlen(1)
	if len(m.control) > 0 {
		head.Control = &m.control[0]
	}
	head.SetControllen(len(m.control))
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&head)), uintptr(flags|unix.MSG_NOSIGNAL))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
