package probe

import (
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// whatRound is what a child tries that is confined to a proxy: to go round it.
const whatRound = "round"

// RoundGreeting is what a proxy has to send to the child of [RoundArgs].
const RoundGreeting = "through"

// RoundArgs returns the arguments of a process of this program that tries to go round its
// proxy. The ports are those of the proxy, of a TCP listener and of a UDP socket on
// 127.0.0.1, as the process has them. It writes a line for each thing that it could do and
// must not, and for the proxy if that is out of reach.
func RoundArgs(proxy, tcp, udp uint16) []string {
	args := []string{Arg, whatRound}
	for _, port := range []uint16{proxy, tcp, udp} {
		args = append(args, strconv.Itoa(int(port)))
	}
	return args
}

// tryRound is the main of that process.
func tryRound(proxy, tcp, udp int) (code int) {
	at := func(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
	if err := greeted(at(proxy)); err != nil {
		fmt.Fprintf(os.Stdout, "the proxy cannot be reached: %v\n", err)
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
	// In a network namespace this goes to a port where nobody is: who waits at the one
	// outside knows better.
	if conn, err := net.Dial("udp", at(udp)); err == nil {
		_, _ = conn.Write([]byte("round"))
		_ = conn.Close()
	}
	return 0
}

// greeted tells why the proxy could not be reached.
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
