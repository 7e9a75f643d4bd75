package supervise

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Nothing confines a client of the agent, so no confined command may become one
// by connecting to the agent's own listeners. There are many ways to write an
// address of this host, so init does not compare addresses. It asks the kernel
// for the route instead.

// isAgent tells whether a socket of that type would reach a listener of the agent:
// the port is one of the agent's, and the address is one of this host. If the
// kernel does not tell the latter the answer is yes.
//
// Only a socket of the type SOCK_STREAM can speak TCP. The type tells that, and not
// the family: a socket of AF_SMC falls back to TCP.
func (n *Notifier) isAgent(kind int, sockaddr []byte) bool {
	to, zone, ok := inetAddress(sockaddr)
	if !ok || !slices.Contains(n.config.Ports, to.Port()) || kind != unix.SOCK_STREAM {
		return false
	}
	here, err := reachesHere(to.Addr(), zone)
	return here || err != nil
}

// inetAddress takes a struct sockaddr_in or sockaddr_in6 apart, ip(7), ipv6(7).
// ok is false if the kernel would not take sockaddr for either of them. The
// zone is the index of an interface, or 0.
func inetAddress(sockaddr []byte) (addr netip.AddrPort, zone uint32, ok bool) {
	const size4, size6, size6WithZone = 16, 24, 28
	if len(sockaddr) < 2 {
		return addr, 0, false
	}
	port := func() uint16 { return binary.BigEndian.Uint16(sockaddr[2:]) }
	switch family := binary.NativeEndian.Uint16(sockaddr); {
	case family == unix.AF_INET && len(sockaddr) >= size4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(sockaddr[4:8])), port()), 0, true
	case family == unix.AF_INET6 && len(sockaddr) >= size6:
		if len(sockaddr) >= size6WithZone {
			zone = binary.NativeEndian.Uint32(sockaddr[24:])
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(sockaddr[8:24])), port()), zone, true
	}
	return addr, 0, false
}

// reachesHere tells whether packets to addr arrive at this host: they do unless
// the kernel's route to addr leads elsewhere, or there is no route at all. The
// zone counts for link-local addresses only, as it does in the kernel.
func reachesHere(addr netip.Addr, zone uint32) (bool, error) {
	addr = addr.Unmap()
	if addr.IsUnspecified() || addr.IsLoopback() {
		return true, nil
	}
	if !addr.Is6() || !addr.IsLinkLocalUnicast() {
		zone = 0
	}
	route, err := routeTo(addr, zone)
	switch err {
	case nil:
		return route != unix.RTN_UNICAST, nil
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL: // connect(2) will say so too
		return false, nil
	}
	return false, err
}

// routeTo asks the kernel for the type of the route to addr, as ip-route(8) does
// with "ip route get": rtnetlink(7), RTM_GETROUTE.
func routeTo(addr netip.Addr, zone uint32) (kind uint8, err error) {
	socket, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(socket)
	if err := unix.Sendto(socket, routeRequest(addr, zone), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, os.Getpagesize())
	for {
		size, _, err := unix.Recvfrom(socket, answer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("recvfrom", err)
		}
		answer = answer[:size]
		break
	}
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil || len(messages) == 0 {
		return 0, fmt.Errorf("a netlink answer of %d bytes: %w", len(answer), unix.EPROTO)
	}
	switch m := messages[0]; {
	case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
		return 0, syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
	case m.Header.Type == unix.RTM_NEWROUTE && len(m.Data) >= unix.SizeofRtMsg:
		return m.Data[7], nil // rtm_type
	}
	return 0, fmt.Errorf("a netlink answer of type %d: %w", messages[0].Header.Type, unix.EPROTO)
}

// routeRequest is the question: struct nlmsghdr, struct rtmsg and attributes.
func routeRequest(addr netip.Addr, zone uint32) []byte {
	family := byte(unix.AF_INET)
	if addr.Is6() {
		family = unix.AF_INET6
	}
	attribute := func(b []byte, kind uint16, value []byte) []byte { // the values need no padding
		b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
		return append(binary.NativeEndian.AppendUint16(b, kind), value...)
	}
	body := make([]byte, unix.SizeofRtMsg)
	body[0], body[1] = family, byte(addr.BitLen())
	body = attribute(body, unix.RTA_DST, addr.AsSlice())
	if zone != 0 {
		body = attribute(body, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, zone))
	}
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETROUTE)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // no sequence number and no port: there is one request
	return append(b, body...)
}
