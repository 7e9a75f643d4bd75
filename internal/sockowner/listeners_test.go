package sockowner

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestListeners: both ways find the same sockets that listen, with their owners, and a watch tells when they open and close.
func TestListeners(t *testing.T) {
	t.Parallel()
	w := Watch{Most: 1 << 16}
	seen := rig.Value(w.Begin())
	defer w.End()
	for _, address := range []string{"127.0.0.1:0", "[::1]:0", "[::]:0"} {
		l := listen(t, "tcp", address)
		at := l.Addr().(*net.TCPAddr).AddrPort()
		want := Listener{at.Port(), netip.MustParseAddrPort(l.Addr().String()).Addr(), os.Getuid(), os.Getpid(), "sockowner.test"}
		isIt := func(l Listener) bool { return l == want }
		listed, _, err := Listeners(1 << 16)
		rig.Check(t, err)
		rig.Is(t, slices.ContainsFunc(listed, isIt), true, "%v has %+v", listed, want)
		for name, way := range map[string]func() ([]socket, bool, error){"netlink": listening, "procfs": readListeners} {
			open, _, err := way()
			rig.Check(t, err)
			rig.Is(t, slices.ContainsFunc(open, func(s socket) bool { return s.port == want.Port && s.address == want.Address && s.uid == want.UID }), true, "%s: %s", name, address)
		}
		for _, there := range []bool{true, false} {
			for slices.ContainsFunc(seen.Listeners, isIt) != there {
				<-seen.Old
				seen = w.Now()
			}
			_ = l.Close()
		}
	}
}
