package sockfd

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds, in bytes, of the parts of one message that are read from a process. Every datagram
// of the network is smaller than MaxData.
const (
	MaxData    = 1 << 20
	maxControl = 64 << 10
	maxName    = 128 // struct sockaddr_storage
)

// MaxVectors is UIO_MAXIOV: the largest number of parts of a message, and of messages in a
// call of sendmmsg(2).
const MaxVectors = 1024

// Sizes, in bytes, of the structs that programs pass, on both architectures.
const (
	sizeMsghdr  = 56 // struct msghdr
	sizeIovec   = 16 // struct iovec
	SizeMmsghdr = 64 // struct mmsghdr
	// SizeOfSent is the offset of msg_len in struct mmsghdr. There the kernel writes the
	// number of bytes of the message that it has sent, as an unsigned int.
	SizeOfSent = sizeMsghdr
)

// Message is a copy of a message that a process sends.
type Message struct {
	Name    []byte // the address; empty: none
	Data    []byte
	Control []byte // cmsg(3)
}

// ReadMessage returns a copy of the message whose struct msghdr is at addr. read returns n
// bytes of the memory of the process. The errors are errnos of sendmsg(2) and errors of read.
func ReadMessage(read func(addr uint64, n int) ([]byte, error), addr uint64) (m Message, err error) {
	head, err := read(addr, sizeMsghdr)
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
	case parts > MaxVectors:
		return m, unix.EMSGSIZE
	case control != 0 && controlLen > maxControl:
		return m, unix.ENOBUFS
	}
	if name != 0 {
		if m.Name, err = read(name, min(nameLen, maxName)); err != nil {
			return m, err
		}
	}
	if control != 0 {
		if m.Control, err = read(control, int(controlLen)); err != nil {
			return m, err
		}
	}
	m.Data, err = readParts(read, vector, int(parts))
	return m, err
}

// Offsets in struct msghdr, where the kernel writes when it receives a message.
const (
	NameSizeAt    = 8  // int
	ControlSizeAt = 40 // size_t
	FlagsAt       = 48 // int
)

// ReadName returns the address in the struct msghdr at addr; nil if there is none.
func ReadName(read func(addr uint64, n int) ([]byte, error), addr uint64) ([]byte, error) {
	head, err := read(addr, sizeMsghdr)
	if err != nil {
		return nil, err
	}
	name, size := binary.NativeEndian.Uint64(head), int(int32(binary.NativeEndian.Uint32(head[NameSizeAt:])))
	switch {
	case name == 0 || size == 0:
		return nil, nil
	case size < 0:
		return nil, unix.EINVAL
	}
	return read(name, min(size, maxName))
}

// Buffers are the places where a process wants a message.
type Buffers struct {
	Name     uint64 // of the address; 0: it is not wanted
	NameRoom int
	Vectors  []Vector
}

// Vector is a part of memory.
type Vector struct{ Base, Size uint64 }

// ReadBuffers returns the places in the struct msghdr at addr.
func ReadBuffers(read func(addr uint64, n int) ([]byte, error), addr uint64) (b Buffers, err error) {
	head, err := read(addr, sizeMsghdr)
	if err != nil {
		return b, err
	}
	b.Name, b.NameRoom = binary.NativeEndian.Uint64(head), int(int32(binary.NativeEndian.Uint32(head[NameSizeAt:])))
	if b.Name != 0 && b.NameRoom < 0 {
		return b, unix.EINVAL
	}
	parts := binary.NativeEndian.Uint64(head[24:])
	if parts > MaxVectors {
		return b, unix.EMSGSIZE
	}
	list, err := read(binary.NativeEndian.Uint64(head[16:]), int(parts)*sizeIovec)
	if err != nil {
		return b, err
	}
	for ; len(list) > 0; list = list[sizeIovec:] {
		b.Vectors = append(b.Vectors, Vector{binary.NativeEndian.Uint64(list), binary.NativeEndian.Uint64(list[8:])})
	}
	return b, nil
}

// readParts reads the array of struct iovec at addr, and returns the memory that they
// point to, one after the other.
func readParts(read func(addr uint64, n int) ([]byte, error), addr uint64, parts int) ([]byte, error) {
	list, err := read(addr, parts*sizeIovec)
	if err != nil {
		return nil, err
	}
	var data []byte
	for ; len(list) > 0; list = list[sizeIovec:] {
		base, size := binary.NativeEndian.Uint64(list), binary.NativeEndian.Uint64(list[8:])
		if size > MaxData-uint64(len(data)) {
			return nil, unix.EMSGSIZE
		}
		part, err := read(base, int(size))
		if err != nil {
			return nil, err
		}
		data = append(data, part...)
	}
	return data, nil
}

// PassesDescriptors reports whether the control messages contain descriptors. It also
// returns true for malformed control messages, which the kernel would reject.
func (m *Message) PassesDescriptors() bool {
	if len(m.Control) == 0 {
		return false
	}
	messages, err := unix.ParseSocketControlMessage(m.Control)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(messages, func(c unix.SocketControlMessage) bool {
		return c.Header.Level == unix.SOL_SOCKET && c.Header.Type == unix.SCM_RIGHTS
	})
}

// Send sends the message on the socket fd. No failure causes a SIGPIPE. Send returns
// the number of bytes that were sent, or an errno.
func (m *Message) Send(fd, flags int) (int, error) {
	var head unix.Msghdr
	var part unix.Iovec
	if len(m.Name) > 0 {
		head.Name, head.Namelen = &m.Name[0], uint32(len(m.Name))
	}
	if len(m.Data) > 0 {
		part.Base = &m.Data[0]
	}
	part.SetLen(len(m.Data))
	head.Iov = &part
	head.SetIovlen(1)
	if len(m.Control) > 0 {
		head.Control = &m.Control[0]
	}
	head.SetControllen(len(m.Control))
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&head)), uintptr(flags|unix.MSG_NOSIGNAL))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
