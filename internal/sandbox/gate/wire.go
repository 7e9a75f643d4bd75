package gate

import (
	"encoding/binary"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The packets about held connections, and about the resolver. One side of the pair is the
// supervisor of the command, which may be the init of its namespace, and the other is the agent.
//
//	supervisor                        agent
//	    ask: number, to, from ──►     judges, dials
//	                          ◄──     answer: number, errno
//	    joined: number, socket ──►    joins the socket with what was dialled
//	    left: number          ──►     ends what was dialled, or its attempt
//	    resolvers: sockets    ──►     answers the command's questions about names there
//	    questions: socket     ──►     the same, for one socket of the command
//
// An ask has one answer. After an answer with errno 0 comes joined or left, and after another
// answer nothing. A packet that is none of these ends the gate.
const (
	ask       = 'a'
	joined    = 'j'
	left      = 'l'
	answer    = 'e'
	resolvers = 'r'
	questions = 'q'

	noteSize = 1 + 4 + 4 + 16 + 2 + 4 + 2

	// resolverSockets is the number of descriptors with a packet resolvers: for datagrams, and for
	// connections, at each of resolverAddrs.
	resolverSockets = 2 * len(resolverAddrs)
)

// resolverAddrs are the addresses of the resolver in a network namespace. The first is in the
// command's /etc/resolv.conf. A program that finds no such file asks the second.
var resolverAddrs = [...]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 53}), netip.AddrFrom4([4]byte{127, 0, 0, 1})}

// DomainPort is the port of name servers (RFC 1035, 4.2).
const DomainPort = 53

// note is one packet.
type note struct {
	kind   byte
	number uint32
	errno  syscall.Errno  // of answer
	to     netip.AddrPort // of ask; without a zone
	from   netip.AddrPort // of ask; of IPv4
}

func (n note) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{n.kind}, n.number)
	b = binary.LittleEndian.AppendUint32(b, uint32(n.errno))
	to := n.to.Addr()
	if !to.IsValid() {
		to = netip.IPv6Unspecified()
	}
	to16 := to.As16()
	b = binary.LittleEndian.AppendUint16(append(b, to16[:]...), n.to.Port())
	from := n.from.Addr()
	if !from.IsValid() {
		from = netip.IPv4Unspecified()
	}
	from4 := from.As4()
	return binary.LittleEndian.AppendUint16(append(b, from4[:]...), n.from.Port())
}

// decodeNote reads a packet; ok is false if b is none.
func decodeNote(b []byte) (n note, ok bool) {
	if len(b) != noteSize {
		return n, false
	}
	n = note{kind: b[0], number: binary.LittleEndian.Uint32(b[1:]), errno: syscall.Errno(binary.LittleEndian.Uint32(b[5:]))}
	n.to = netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[9:25])).Unmap(), binary.LittleEndian.Uint16(b[25:]))
	n.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[27:31])), binary.LittleEndian.Uint16(b[31:]))
	switch n.kind {
	case ask, joined, left, answer, resolvers, questions:
		return n, true
	}
	return n, false
}

// descriptors returns the number of descriptors that come with the packet.
func (n note) descriptors() int {
	switch n.kind {
	case joined, questions:
		return 1
	case resolvers:
		return resolverSockets
	}
	return 0
}

// rights returns the descriptors in the control messages of a packet, as files. All other control
// messages are ignored. Package net has made the descriptors close-on-exec.
func rights(control []byte) (files []*os.File) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			continue // no descriptors
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "socket"))
		}
	}
	return files
}
