package files

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// packetReader receives packets from a socket that is in the poller. Only one
// goroutine may use it.
type packetReader struct {
	raw     syscall.RawConn
	buf     []byte
	control [64]byte // room for more descriptors than a packet may have
}

// next waits for a packet. The packet is valid until the next call. fd is the descriptor
// that came with the packet, or -1, and belongs to the caller. At the end of the connection
// the error is io.EOF. A packet that is larger than the buffer is an error, and so is a
// packet with more than one descriptor.
func (p *packetReader) next() (packet []byte, fd int, err error) {
	var n, controls, flags int
	closed := p.raw.Read(func(s uintptr) bool {
		for {
			n, controls, flags, _, err = unix.Recvmsg(int(s), p.buf, p.control[:], unix.MSG_CMSG_CLOEXEC)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if closed != nil {
		return nil, -1, closed
	}
	if err != nil {
		return nil, -1, os.NewSyscallError("recvmsg", err)
	}
	fds, err := descriptors(p.control[:controls])
	if err == nil && (flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1) {
		err = fmt.Errorf("packet with flags %#x and %d descriptors: %w", flags, len(fds), pack.ErrMalformed)
	}
	if err == nil && n == 0 {
		err = io.EOF
	}
	if err != nil {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, -1, err
	}
	if len(fds) == 1 {
		return p.buf[:n], fds[0], nil
	}
	return p.buf[:n], -1, nil
}

// descriptors returns the descriptors in the control messages of a packet. It returns the
// descriptors that it found with an error too, because the caller has to close them.
func descriptors(control []byte) ([]int, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	var fds []int
	for _, m := range messages {
		some, err := unix.ParseUnixRights(&m)
		if err != nil {
			return fds, errors.Join(pack.ErrMalformed, err)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}
