package probe

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// whatRound is the task of a child that is confined to a proxy: it tries to go round the
// proxy.
const whatRound = "round"

// whatTransparent is the same with transparent connections.
const whatTransparent = "transparent"

// RoundGreeting is the text that a proxy has to send to the child of [RoundArgs].
const RoundGreeting = "through"

// RoundArgs returns the arguments of a process of this program that tries to go round its
// proxy. The ports are the ports of the proxy, of a TCP listener and of a UDP socket on
// 127.0.0.1, as the process sees them. The process writes one line to standard output for
// each forbidden action that succeeded, and one line if it cannot reach the proxy. If its connections
// are transparent, it also writes a line if it does not reach [RoundAllowed], or if the error for
// another address is not EACCES.
func RoundArgs(proxy, tcp, udp uint16, transparent bool) []string {
	args := []string{Arg, whatRound}
	if transparent {
		args[1] = whatTransparent
	}
	for _, port := range []uint16{proxy, tcp, udp} {
		args = append(args, strconv.Itoa(int(port)))
	}
	return args
}

// RoundAllowed is an address for documentation, which leads nowhere by itself. The child of
// [RoundArgs] expects the greeting there.
var RoundAllowed = netip.MustParseAddrPort("192.0.2.1:80")

// tryRound is the main function of the process of [RoundArgs].
func tryRound(proxy, tcp, udp int, transparent bool) (code int) {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	if err := greeted(at(proxy)); err != nil {
		fmt.Fprintf(os.Stdout, "the proxy cannot be reached: %v\n", err)
	}
	if transparent {
		if err := greeted(RoundAllowed.String()); err != nil {
			fmt.Fprintf(os.Stdout, "an allowed connection fails: %v\n", err)
		}
		refused := &unix.SockaddrInet4{Port: int(RoundAllowed.Port()) + 1, Addr: RoundAllowed.Addr().As4()}
		if err := connectTo(unix.AF_INET, refused); err != unix.EACCES {
			fmt.Fprintf(os.Stdout, "a refused connection does not fail with %q: %v\n", unix.EACCES, err)
		}
	}
	for _, way := range []struct {
		name string
		try  func() error
	}{
		{"a connection to another port was made", func() error {
			return connectTo(unix.AF_INET, &unix.SockaddrInet4{Port: tcp, Addr: [4]byte{127, 0, 0, 1}})
		}},
		{"a connection to another port was made over IPv6", func() error {
			return connectTo(unix.AF_INET6, &unix.SockaddrInet6{Port: tcp, Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}})
		}},
		{"a raw socket was created", func() error { return makeSocket(unix.AF_INET, unix.SOCK_RAW) }},
		{"a packet socket was created", func() error { return makeSocket(unix.AF_PACKET, unix.SOCK_RAW) }},
		{"a netlink socket was created", func() error { return makeSocket(unix.AF_NETLINK, unix.SOCK_RAW) }},
		{"a UNIX socket was created", func() error { return makeSocket(unix.AF_UNIX, unix.SOCK_STREAM) }},
		{"a virtual machine's socket (vsock) was created", func() error { return makeSocket(unix.AF_VSOCK, unix.SOCK_STREAM) }},
	} {
		if way.try() == nil {
			fmt.Fprintln(os.Stdout, way.name)
		}
	}
	// The reader of the UDP socket outside decides about this datagram. In a network
	// namespace of its own the process can send it, but no socket receives it.
	if conn, err := net.Dial("udp", at(udp)); err == nil {
		_, _ = conn.Write([]byte("round"))
		_ = conn.Close()
	}
	return 0
}

// greeted returns the reason why the proxy cannot be reached, or nil.
func greeted(proxy string) error {
	conn, err := net.DialTimeout("tcp", proxy, timeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	text := make([]byte, len(RoundGreeting))
	if n, err := io.ReadFull(conn, text); err != nil {
		return fmt.Errorf("it has sent %q: %w", text[:n], err)
	}
	if string(text) != RoundGreeting {
		return fmt.Errorf("it has sent %q", text)
	}
	return nil
}

func connectTo(family int, to unix.Sockaddr) error {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Connect(fd, to)
}

func makeSocket(family, kind int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
