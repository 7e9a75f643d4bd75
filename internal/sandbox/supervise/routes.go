package supervise

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// routesLeadHere asks the kernel whether packets to addr arrive at this host: they do unless the
// kernel's route to addr leads elsewhere, or there is no route at all. The zone counts only for
// link-local addresses, as in the kernel.
func routesLeadHere(addr netip.Addr, zone uint32) (bool, error) {
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
	case unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EACCES, unix.EINVAL: // connect(2) will fail too
		return false, nil
	}
	return false, err
}

// routeTo asks the kernel for the type of the route to addr, like "ip route get"
// of ip-route(8): rtnetlink(7), RTM_GETROUTE.
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
