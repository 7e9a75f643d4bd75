package rules

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestHost has the spellings of hosts: one form each, or none.
func TestHost(t *testing.T) {
	t.Parallel()
	long := strings.Repeat(strings.Repeat("a", 49)+".", 5) + "com" // 253 bytes
	cases := append(rig.Rows(t, policies, "hosts", 2),
		[]string{long, long}, []string{long + "m", ""}, []string{strings.Repeat("a", 64) + ".test", ""})
	for _, row := range cases {
		got, err := Host(row[0])
		rig.Is(t, got, row[1], "%q", row[0])
		rig.Is(t, err == nil, row[1] != "", "%q: %v: it is a host", row[0], err)
	}
}

// TestSpecial has the addresses of network.md 3.3 and leak L6.
func TestSpecial(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"0.0.0.0": true, "0.1.2.3": true, "10.0.0.1": true, "10.255.255.255": true, "11.0.0.0": false, "9.255.255.255": false,
		"100.63.255.255": false, "100.64.0.0": true, "100.127.255.255": true, "100.128.0.0": false,
		"127.0.0.1": true, "127.255.255.254": true, "128.0.0.0": false,
		"168.63.129.15": false, "168.63.129.16": true, "168.63.129.17": false, "169.254.169.254": true, "172.15.255.255": false, "172.16.0.0": true, "172.31.255.255": true, "172.32.0.0": false,
		"192.0.0.1": true, "192.0.2.1": true, "192.0.1.1": false, "192.88.99.1": true, "192.168.0.1": true, "192.31.196.1": true, "192.52.193.1": true, "192.175.48.1": true,
		"198.17.255.255": false, "198.18.0.1": true, "198.19.255.255": true, "198.20.0.0": false, "198.51.100.1": true, "203.0.113.7": true,
		"223.255.255.255": false, "224.0.0.1": true, "239.1.1.1": true, "240.0.0.1": true, "255.255.255.255": true,
		"8.8.8.8": false, "1.1.1.1": false,

		"::": true, "::1": true, "fc00::1": true, "fdff::1": true, "fe80::1": true, "fe80::1%eth0": true, "2606:4700::1%eth0": false, "::1%lo": true,
		"fec0::1": true, "feff::1": true, "ff02::1": true, "ff0e::1": true,
		"::ffff:127.0.0.1": true, "::ffff:10.0.0.1": true, "::ffff:8.8.8.8": false, // mapped
		"::127.0.0.1": true, "::8.8.8.8": true, // compatible: of no use since 2006
		"::ffff:0:127.0.0.1": true, "::ffff:0:8.8.8.8": true, // translated
		"64:ff9b::7f00:1": true, "64:ff9b::10.0.0.1": true, "64:ff9b::169.254.169.254": true, "64:ff9b::8.8.8.8": false, "64:ff9b::1:0:0": true,
		"64:ff9b:1::1": true, "64:ff9b:1:ffff::808:808": true, "64:ff9b:2::1": true,
		"2002:7f00:1::": true, "2002:a00:1::1": true, "2002:c0a8:101::1": true, "2002:808:808::1": false, // 6to4
		"2001::1": true, "2001:0:4136:e378:8000:63bf:3fff:fdd2": true, // Teredo
		"2001:2::1": true, "2001:10::1": true, "2001:20::1": true, "2001:1ff::1": true, "2001:200::1": false,
		"2001:db8::1": true, "2001:db9::1": false, "3fff::1": true, "3fff:fff::1": true, "3fff:1000::1": false, "5f00::1": true,
		"100::1": true, "100:0:0:1::1": true, "2620:4f:8000::1": true, "4000::1": true,
		"2606:4700:4700::1111": false, "2a00:1450::1": false,
	} {
		addr := netip.MustParseAddr(text)
		rig.Is(t, special(addr), want, "%s", text)
		rig.Is(t, !addr.Is4() || special(netip.AddrFrom16(addr.As16())) == want, true, "%s, mapped", text)
	}
	rig.Is(t, special(netip.Addr{}), true, "no address is special")
}
