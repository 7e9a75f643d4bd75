package supervise

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestInetAddress: what is too short, or of another family, is no address.
func TestInetAddress(t *testing.T) {
	t.Parallel()
	v4 := []byte{2, 0, 0x1b, 0x58, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	v6 := append([]byte{10, 0, 0x1b, 0x58, 0, 0, 0, 0}, append(netip.MustParseAddr("fe80::1").AsSlice(), 3, 0, 0, 0)...)
	for _, c := range []struct {
		sockaddr []byte
		want     string // none: ""
		zone     uint32
	}{
		{v4, "127.0.0.1:7000", 0},
		{append(v4, 1, 2, 3), "127.0.0.1:7000", 0},
		{v4[:15], "", 0},
		{v6, "[fe80::1]:7000", 3},
		{v6[:24], "[fe80::1]:7000", 0},
		{v6[:23], "", 0},
		{nil, "", 0},
		{[]byte{2}, "", 0},
		{[]byte{1, 0, '/', 'a'}, "", 0},
	} {
		addr, zone, ok := inetAddress(c.sockaddr)
		want := netip.AddrPort{}
		if c.want != "" {
			want = netip.MustParseAddrPort(c.want)
		}
		rig.Is(t, fmt.Sprint(addr, zone, ok), fmt.Sprint(want, c.zone, c.want != ""), "%x", c.sockaddr)
	}
}
