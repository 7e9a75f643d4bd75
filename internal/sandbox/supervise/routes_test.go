package supervise

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// TestRoutesLeadHere: the kernel decides, so an address that only a route makes
// local counts too. The test runs in a child with a network namespace of its
// own.
func TestRoutesLeadHere(t *testing.T) {
	t.Parallel()
	ip, err := exec.LookPath("ip")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if os.Getuid() != 0 {
		t.Skip("a network namespace of its own needs uid 0")
	}
	cmd := exec.Command("/proc/self/exe", ip)
	cmd.Args = []string{os.Args[0], routesChild, ip}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	rig.Is(t, string(rig.Value(cmd.CombinedOutput())), "", "the child said")
}

const routesChild = "routes-child"

// routesChildMain makes interfaces, addresses and routes in its own network
// namespace, and prints which address routesLeadHere is wrong about.
func routesChildMain() int {
	for _, args := range []string{
		"link set lo up",
		"link add wire type veth peer name far", "link set wire up", "link set far up",
		"addr add 192.0.2.7/24 dev wire", "-6 addr add 2001:db8:1::7/64 dev wire nodad",
		"-6 addr add fe80::7/64 dev wire nodad",
		"route add local 198.51.100.0/24 dev lo", "-6 route add local 2001:db8:2::/64 dev lo",
		"route add default via 192.0.2.1",
	} {
		if out, err := exec.Command(os.Args[2], strings.Fields(args)...).CombinedOutput(); err != nil {
			fmt.Printf("ip %s: %v: %s", args, err, out)
		}
	}
	// The kernel makes an address of IPv6 local only when the link is ready.
	for _, address := range []string{"2001:db8:1::7", "fe80::7"} {
		for begun := time.Now(); time.Since(begun) < sandboxtest.Enough; time.Sleep(time.Millisecond) {
			table, _ := exec.Command(os.Args[2], "-6", "route", "show", "table", "local").Output()
			if strings.Contains(string(table), "local "+address+" ") {
				break
			}
		}
	}
	wire, err := net.InterfaceByName("wire")
	if err != nil {
		fmt.Println(err)
		return 1
	}
	for _, c := range []struct {
		addr string
		zone int
		want bool
	}{
		{"127.0.0.1", 0, true}, {"127.255.0.1", 0, true}, {"0.0.0.0", 0, true}, {"::", 0, true}, {"::1", 0, true},
		{"192.0.2.7", 0, true}, {"::ffff:192.0.2.7", 0, true}, {"2001:db8:1::7", 0, true}, {"fe80::7", wire.Index, true},
		// A zone counts for link-local addresses only.
		{"2001:db8:1::7", wire.Index, true}, {"2001:db8:1::7", 99, true}, {"::ffff:192.0.2.7", wire.Index, true},
		{"198.51.100.200", 0, true}, {"::ffff:198.51.100.1", 0, true}, {"2001:db8:2::1234", 0, true},
		{"192.0.2.8", 0, false}, {"203.0.113.1", 0, false}, {"2001:db8:1::8", 0, false}, {"fe80::8", wire.Index, false},
		{"2001:db8:3::1", 0, false},
	} {
		if got, err := routesLeadHere(netip.MustParseAddr(c.addr), uint32(c.zone)); got != c.want || err != nil {
			fmt.Printf("%s: %v, %v, want %v\n", c.addr, got, err, c.want)
		}
	}
	return 0
}
