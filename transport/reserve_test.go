package transport

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// A client that calls a listener "localhost" finds no other program at the other
// loopback address: there is no way for one to take the port there.
func TestReserve(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		url   string
		other string // "" none
	}{
		{"ws://127.0.0.1:0", "::1"},
		{"ws://[::1]:0", "127.0.0.1"},
		{"ws://127.0.0.9:0", "::1"},
	} {
		l, err := Listen(Config{URL: tt.url})
		rig.Must(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		for _, host := range []string{tt.other, map[string]string{"::1": "::", "127.0.0.1": "0.0.0.0"}[tt.other]} {
			for _, way := range []string{"bind", "range", "listen"} {
				if at, ok := take(t, netip.MustParseAddr(host), port, way); ok {
					t.Errorf("beside %s, %s takes %v", tt.url, way, at)
				}
			}
		}
		rig.Check(t, l.Close())
		if _, ok := take(t, netip.MustParseAddr(tt.other), port, "bind"); !ok {
			t.Errorf("after %s the port is not free", tt.url)
		}
	}
}

// take tries to get the port, in one of the ways in which a program can, and gives
// it back at once.
func take(t *testing.T, host netip.Addr, port int, way string) (at unix.Sockaddr, ok bool) {
	t.Helper()
	family := unix.AF_INET
	if host.Is6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	rig.Must(t, err)
	defer unix.Close(fd)
	if host.Is6() {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
	}
	err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	want := port
	if way != "bind" { // of all ports the kernel may choose this one
		ranged := unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, port|port<<16)
		if ranged == unix.ENOPROTOOPT { // before Linux 6.3
			return nil, false
		}
		err, want = errors.Join(err, ranged), 0
	}
	rig.Must(t, err)
	if way != "listen" {
		if host.Is6() {
			err = unix.Bind(fd, &unix.SockaddrInet6{Port: want, Addr: host.As16()})
		} else {
			err = unix.Bind(fd, &unix.SockaddrInet4{Port: want, Addr: host.As4()})
		}
	}
	if err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		return nil, false
	}
	at, err = unix.Getsockname(fd)
	rig.Must(t, err)
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return at, at.Port == port
	case *unix.SockaddrInet6:
		return at, at.Port == port
	}
	return at, false
}
