package helper

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hostAddresses are those of this host, however they are written.
func hostAddresses(t *testing.T) []string {
	t.Helper()
	all := []string{"127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "::ffff:127.3.2.1", "::ffff:0.0.0.0"}
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				t.Fatal(err)
			}
			addr := prefix.Addr()
			if addr.IsLinkLocalUnicast() && addr.Is6() {
				addr = addr.WithZone(i.Name)
			}
			all = append(all, addr.String())
			if addr.Is4() {
				all = append(all, "::ffff:"+addr.String())
			}
		}
	}
	return all
}

// A command with the network does not become a client of the agent, whatever it
// calls this host; other services of the host it reaches.
func TestAgentIsOutOfReach(t *testing.T) {
	t.Parallel()
	agent, other := greeter(t, "tcp", ":0"), greeter(t, "tcp", ":0")
	agentPort, otherPort := agent.Addr().(*net.TCPAddr).Port, other.Addr().(*net.TCPAddr).Port
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := connecting(t, t.TempDir(), limits, 1, uint16(agentPort))
		for _, host := range hostAddresses(t) {
			at := func(port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
			if got := a.ask("dial", at(agentPort), unix.SOCK_STREAM); got != "EPERM" {
				t.Errorf("%s, the agent: %s", host, got)
			}
			if got := a.ask("dial", at(agentPort), unix.SOCK_STREAM|unix.SOCK_NONBLOCK); got != "EPERM" {
				t.Errorf("%s, the agent, without waiting: %s", host, got)
			}
			if got := a.ask("dial", at(agentPort), unix.SOCK_DGRAM); got != "ok" {
				t.Errorf("%s, datagrams: %s", host, got)
			}
			if got := a.ask("fastopen", at(agentPort)); got != "ENOTSUP" {
				t.Errorf("%s, fast open: %s", host, got)
			}
			if got := a.ask("smc", at(agentPort)); got != "EPERM" && !strings.HasPrefix(got, "socket ") {
				t.Errorf("%s, SMC: %s", host, got)
			}
			// What is refused would have arrived.
			if got := a.ask("dial", at(otherPort), unix.SOCK_STREAM); got != "ok" {
				t.Errorf("%s, another service: %s", host, got)
			}
		}
		if got := a.ask("take", "127.0.0.1:0", unix.SOCK_STREAM); got != "ok" {
			t.Errorf("taking a port: %s", got)
		}
		if got := a.ask("take", "[::1]:0", unix.SOCK_DGRAM); got != "ok" {
			t.Errorf("taking a port of UDP: %s", got)
		}
	}
}

// Names of the host are not to be taken; names in the file system are, where the
// command may make files, as it would do it itself.
func TestBind(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"sub", ".git"} {
		if err := os.Mkdir(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, ".git", "HEAD"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"out": outside, "git": ".git", "in": "sub"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := connecting(t, root, limits)
		for _, c := range []struct{ name, want string }{
			{"@execagent-test", "EPERM"},
			{"@", "EPERM"},
			{"auto", "EPERM"},
			{root + "/socket", "ok " + root + "/socket 750"},
			{"relative", "ok relative 750"},
			{"sub/../relative2", "ok sub/../relative2 750"},
			{"in/linked", "ok in/linked 750"},
			{root + "/sub", "EADDRINUSE"},
			{"relative", "EADDRINUSE"},
			{"none/sock", "ENOENT"},
			{".git/sock", "EROFS"},
			{"git/sock", "EROFS"},
			{outside + "/sock", "EROFS"},
			{"out/sock", "EROFS"},
			// It is there, but a path through procfs is none to connect to.
			{"/proc/self/cwd/byproc", "ELOOP /proc/self/cwd/byproc 750"},
			{"/proc/self/root" + root + "/byroot", "ELOOP /proc/self/root" + root + "/byroot 750"},
			{root + "/" + strings.Repeat("x", 120), "EINVAL"},
		} {
			if got := a.ask("name", c.name); got != c.want {
				t.Errorf("%s: %s, want %s", c.name, got, c.want)
			}
		}
		// Below the descriptors of init are directories that the view protects.
		// The process that binds has but one: the caller's working directory.
		bound := 0
		for fd := range 40 {
			for _, below := range []string{"", ".git/", "sub/../.git/"} {
				for _, process := range []string{"self", "thread-self", "1"} {
					name := fmt.Sprintf("/proc/%s/fd/%d/%ssock", process, fd, below)
					got := a.ask("name", name)
					if strings.Contains(got, name) { // it was bound, whatever became of looking at it
						bound++
						if below != "" || process == "1" {
							t.Errorf("%s: %s", name, got)
						}
					} else if !slices.Contains([]string{"ENOENT", "ENOTDIR", "EROFS", "EADDRINUSE", "EPERM"}, got) {
						t.Errorf("%s: %s", name, got)
					}
				}
			}
		}
		if bound > 1 {
			t.Errorf("%d names were bound below descriptors", bound)
		}
		for _, dir := range []string{root + "/.git", outside, filepath.Dir(root), "/"} {
			if _, err := os.Lstat(dir + "/sock"); err == nil {
				t.Errorf("%s has a socket", dir)
			}
		}
		for _, name := range []string{"socket", "relative", "relative2", "sub/linked", "byproc", "byroot"} {
			if err := os.Remove(filepath.Join(root, name)); err != nil {
				t.Error(err)
			}
		}
	}
}

// The kernel is asked, so addresses count that no interface has.
func TestReachesHere(t *testing.T) {
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
	if out, err := cmd.CombinedOutput(); string(out) != "" || err != nil {
		t.Errorf("%s%v", out, err)
	}
}

const routesChild = "routes-child"

// routesChildMain has a network namespace of its own.
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
	// An address of IPv6 becomes one of the host when its link is ready.
	for _, address := range []string{"2001:db8:1::7", "fe80::7"} {
		for begun := time.Now(); time.Since(begun) < enough; time.Sleep(time.Millisecond) {
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
		// The kernel looks at the zone of link-local addresses only.
		{"2001:db8:1::7", wire.Index, true}, {"2001:db8:1::7", 99, true}, {"::ffff:192.0.2.7", wire.Index, true},
		{"198.51.100.200", 0, true}, {"::ffff:198.51.100.1", 0, true}, {"2001:db8:2::1234", 0, true},
		{"192.0.2.8", 0, false}, {"203.0.113.1", 0, false}, {"2001:db8:1::8", 0, false}, {"fe80::8", wire.Index, false},
		{"2001:db8:3::1", 0, false},
	} {
		if got, err := reachesHere(netip.MustParseAddr(c.addr), uint32(c.zone)); got != c.want || err != nil {
			fmt.Printf("%s: %v, %v, want %v\n", c.addr, got, err, c.want)
		}
	}
	return 0
}

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
		if got := addr.String(); ok != (c.want != "") || ok && got != c.want || zone != c.zone {
			t.Errorf("%x: %s, zone %d, %v", c.sockaddr, got, zone, ok)
		}
	}
}
