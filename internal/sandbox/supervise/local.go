package supervise

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Clients of the agent are not confined, so no confined command may become a
// client by connecting to the agent's own listeners. There are many ways to
// write an address of this host, so init does not compare addresses, but asks
// the kernel for the route.

// isAgent reports whether a socket of that type would reach a listener of the
// agent: the port is one of the agent's, and the address is one of this host. If
// the kernel does not answer about the address, isAgent returns true.
//
// Only a socket of the type SOCK_STREAM can speak TCP. The type matters, not the
// family, because a socket of AF_SMC falls back to TCP.
func (n *Notifier) isAgent(kind int, sockaddr []byte) bool {
	to, zone, ok := inetAddress(sockaddr)
	if !ok || !slices.Contains(n.config.Ports, to.Port()) || kind != unix.SOCK_STREAM {
		return false
	}
	here, err := routesLeadHere(to.Addr(), zone)
	return here || err != nil
}

// inetAddress parses a struct sockaddr_in or sockaddr_in6, ip(7), ipv6(7). ok
// is false if the kernel would accept sockaddr as neither of them. The zone is
// the index of an interface, or 0.
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
