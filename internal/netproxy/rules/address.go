package rules

import (
	"net/netip"
	"slices"
)

// blocks have no addresses of hosts on the internet. They are the blocks of IANA's registries of
// special-purpose addresses for IPv4 and IPv6, multicast, and reserved blocks (RFC 6890, as of
// 2026). One more block only looks public (168.63.129.16). The list has only those IPv6 blocks that
// are inside 2000::/3, because everything outside is special anyway.
var blocks = prefixes(
	"0.0.0.0/8",        // this network
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // shared, of carriers
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // Azure's service for a virtual machine; only that machine can reach it
	"169.254.0.0/16",   // link-local, with the metadata services of clouds
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // IETF protocols
	"192.0.2.0/24",     // documentation
	"192.31.196.0/24",  // AS112
	"192.52.193.0/24",  // AMT
	"192.88.99.0/24",   // 6to4 relays
	"192.168.0.0/16",   // private
	"192.175.48.0/24",  // AS112
	"198.18.0.0/15",    // benchmarks
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, and broadcast

	"2001::/23",         // IETF protocols: Teredo, benchmarks, ORCHID, AMT, AS112
	"2001:db8::/32",     // documentation
	"2620:4f:8000::/48", // AS112
	"3fff::/20",         // documentation
)

var (
	globalUnicast = netip.MustParsePrefix("2000::/3")
	// nat64 is the well-known prefix of translators: in a network without IPv4, a resolver returns
	// such addresses for public names. Translators with other prefixes cannot be told from public
	// addresses.
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	nat64Local = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour  = netip.MustParsePrefix("2002::/16")
	teredo     = netip.MustParsePrefix("2001::/32")
	compatible = netip.MustParsePrefix("::/96")
	translated = netip.MustParsePrefix("::ffff:0:0:0/96")
)

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// special reports whether an address is not public: local, private, multicast, reserved, for
// documentation or a protocol, or an IPv6 address that leads to such an IPv4 address through a
// translator or a tunnel (network.md 3.3).
func special(addr netip.Addr) bool {
	addr = plain(addr)
	if !addr.IsValid() {
		return true
	}
	for _, block := range blocks {
		if block.Contains(addr) {
			return true
		}
	}
	if addr.Is4() {
		return false
	}
	if !globalUnicast.Contains(addr) && !nat64.Contains(addr) {
		return true
	}
	return slices.ContainsFunc(embedded(addr), special)
}

// IsLocal reports whether an address is one that needs allowLocalBinding, or an entry of its own.
func IsLocal(addr netip.Addr) bool { return special(addr) }

// plain returns an address without its zone. An IPv4 address that is mapped into IPv6 becomes the
// IPv4 address.
func plain(addr netip.Addr) netip.Addr {
	return addr.WithZone("").Unmap()
}

// embedded returns the IPv4 addresses that are encoded in a plain IPv6 address.
func embedded(addr netip.Addr) []netip.Addr {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	at := func(i int) netip.Addr { return netip.AddrFrom4([4]byte(b[i : i+4])) }
	switch {
	case nat64.Contains(addr), compatible.Contains(addr), translated.Contains(addr):
		return []netip.Addr{at(12)}
	case nat64Local.Contains(addr):
		// RFC 6052: after a prefix of 48 bits, the address is split around byte 8.
		return []netip.Addr{at(12), netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]})}
	case sixToFour.Contains(addr):
		return []netip.Addr{at(2)}
	case teredo.Contains(addr):
		// The server, and the client with all its bits inverted.
		return []netip.Addr{at(4), netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})}
	}
	return nil
}
