package confine

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// performTransparent does one thing in a puppet whose connections are transparent.
func performTransparent(what string, args []string) (answer string, known bool) {
	switch what {
	case "say": // connect to an address, say something, and read what comes back; also the peer
		text := ""
		result := onInet(args[0], unix.SOCK_STREAM, func(fd int, to unix.Sockaddr) error {
			if err := unix.Connect(fd, to); err != nil {
				return err
			}
			peer := peerOf(fd) // once both ends have ended there is none
			text = " " + said(fd) + peer
			return nil
		})
		return result + text, true
	case "later": // the same without blocking: the errno of SO_ERROR, twice
		text := ""
		result := onInet(args[0], unix.SOCK_STREAM, func(fd int, to unix.Sockaddr) error {
			if err := unix.SetNonblock(fd, true); err != nil {
				return err
			}
			err := unix.Connect(fd, to)
			if err != unix.EINPROGRESS {
				return err
			}
			text = " after EINPROGRESS"
			if args[0] == "11.22.33.44:999" {
				text += " " + outcome(unix.Connect(fd, to))
				onInet("11.22.33.44:998", unix.SOCK_STREAM, unix.Connect) // lets the first one go on
			}
			for {
				ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
				if n, err := unix.Poll(ready, -1); err == unix.EINTR || n == 0 {
					continue
				}
				break
			}
			first, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			second, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
			if first == 0 {
				_ = unix.SetNonblock(fd, false)
				peer := peerOf(fd)
				text += " " + said(fd) + peer
			}
			if second != 0 {
				text += " and again " + outcome(syscall.Errno(second))
			}
			return syscall.Errno(first)
		})
		return result + text, true
	case "after": // a port that is refused, then an address: with one socket
		text := ""
		result := onInet(args[0], unix.SOCK_STREAM, func(fd int, to unix.Sockaddr) error {
			text = outcome(unix.Connect(fd, to)) + " "
			return unix.Connect(fd, inetSockaddr(args[1]))
		})
		return text + result, true
	case "short": // getpeername(2) with room for so many bytes
		text := ""
		result := onInet(args[0], unix.SOCK_STREAM, func(fd int, to unix.Sockaddr) error {
			if err := unix.Connect(fd, to); err != nil {
				return err
			}
			room, _ := strconv.Atoi(args[1])
			b, size := make([]byte, 64), int32(room)
			err := getpeername(fd, b, &size)
			text = fmt.Sprintf(" %d %x", size, b[:16])
			return err
		})
		return result + text, true
	case "question": // ask a server, in each way in which programs do that
		var all []string
		for _, how := range []string{"connect", "sendto", "sendmsg"} {
			all = append(all, onInet(args[0], unix.SOCK_DGRAM, func(fd int, to unix.Sockaddr) error { return question(fd, how, to) }))
		}
		return strings.Join(all, " "), true
	case "storm": // give connections up in every way, from four threads
		rounds, _ := strconv.Atoi(args[1])
		var threads sync.WaitGroup
		for range 4 {
			threads.Go(func() {
				for range rounds {
					storm(inetSockaddr(args[0]))
				}
			})
		}
		threads.Wait()
		return "over", true
	case "mute": // a datagram elsewhere
		return onInet(args[0], unix.SOCK_DGRAM, func(fd int, to unix.Sockaddr) error { return unix.Sendto(fd, []byte("x"), 0, to) }), true
	}
	return "", false
}

// storm connects a socket without waiting, and then closes it, connects it elsewhere, or puts another
// socket or a file under its number.
func storm(to unix.Sockaddr) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	_ = unix.Connect(fd, to)
	time.Sleep(time.Duration(rand.IntN(600)) * time.Microsecond)
	switch rand.IntN(6) {
	case 0: // closed
	case 1:
		_ = rawConnect(fd, make([]byte, 16), -1) // AF_UNSPEC
		_ = unix.Connect(fd, to)
	case 2:
		if other, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err == nil {
			_ = unix.Dup3(other, fd, unix.O_CLOEXEC)
			unix.Close(other)
			_ = unix.Connect(fd, to)
		}
	case 3:
		if null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Dup3(null, fd, unix.O_CLOEXEC)
			unix.Close(null)
		}
	case 4:
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		_ = unix.Connect(fd, to)
	case 5:
		_ = unix.Connect(fd, to)
		_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		_, _ = unix.Getpeername(fd)
	}
}

// said says hello and returns the answer.
func said(fd int) string {
	if _, err := unix.Write(fd, []byte("hello")); err != nil {
		return outcome(err)
	}
	_ = unix.Shutdown(fd, unix.SHUT_WR)
	var all []byte
	b := make([]byte, 100)
	for {
		n, err := unix.Read(fd, b)
		if err != nil {
			return outcome(err)
		}
		if n == 0 {
			return string(all)
		}
		all = append(all, b[:n]...)
	}
}

// peerOf returns the address of the peer.
func peerOf(fd int) string {
	at, err := unix.Getpeername(fd)
	if err != nil {
		return " at " + outcome(err)
	}
	return " at " + placeOf(at).String()
}

// placeOf returns an address of the internet.
func placeOf(at unix.Sockaddr) netip.AddrPort {
	switch at := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(at.Addr), uint16(at.Port))
	}
	return netip.AddrPort{}
}

// getpeername calls getpeername(2).
func getpeername(fd int, b []byte, size *int32) error {
	_, _, errno := unix.Syscall(unix.SYS_GETPEERNAME, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(size)))
	if errno != 0 {
		return errno
	}
	return nil
}

// question asks for something, and compares the sender of the answer.
func question(fd int, how string, to unix.Sockaddr) error {
	text := []byte("who is it")
	var err error
	switch how {
	case "connect":
		if err = unix.Connect(fd, to); err == nil {
			_, err = unix.Write(fd, text)
		}
	case "sendto":
		err = unix.Sendto(fd, text, 0, to)
	case "sendmsg":
		err = unix.Sendmsg(fd, text, nil, to, 0)
	}
	if err != nil {
		return err
	}
	b := make([]byte, 100)
	var n int
	var from unix.Sockaddr
	if how == "sendmsg" {
		n, _, _, from, err = unix.Recvmsg(fd, b, nil, 0)
	} else {
		n, from, err = unix.Recvfrom(fd, b, 0)
	}
	switch {
	case err != nil:
		return err
	case string(b[:n]) != "you asked: who is it":
		return fmt.Errorf("%q", b[:n])
	case placeOf(from) != placeOf(to):
		return fmt.Errorf("from %v, not %v", placeOf(from), placeOf(to))
	}
	if how == "connect" && peerOf(fd) == " at ENOTCONN" {
		return fmt.Errorf("no peer")
	}
	return nil
}

// elsewhere stands for the network: a port is the errno, and at others something answers.
type elsewhere struct {
	held    chan struct{}
	serving sync.WaitGroup
	mu      sync.Mutex
	open    []io.Closer
}

func (e *elsewhere) prepare(ctx context.Context, to, _ netip.AddrPort) (gate.Prepared, syscall.Errno) {
	switch to.Port() {
	case 998:
		e.held <- struct{}{}
		return nil, unix.EACCES
	case 999: // until there is one to 998
		select {
		case <-e.held:
			return nil, unix.ETIMEDOUT
		case <-ctx.Done():
			return nil, unix.EACCES
		}
	}
	if errno := syscall.Errno(to.Port()); errno < 200 && errno != 53 && errno != 80 {
		return nil, errno
	}
	return answering{to}, 0
}

// answering answers what was said.
type answering struct{ to netip.AddrPort }

func (a answering) Close() {}

func (a answering) Join(conn *net.TCPConn) {
	go func() {
		defer conn.Close()
		text, _ := io.ReadAll(conn)
		_, _ = fmt.Fprintf(conn, "%s:%s", a.to, text)
	}()
}

// keep has what is open closed at the end of the test.
func (e *elsewhere) keep(c io.Closer, serve func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.open = append(e.open, c)
	e.serving.Go(serve)
}

func (e *elsewhere) close() {
	e.mu.Lock()
	for _, c := range e.open {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.serving.Wait()
}

// The resolver of an elsewhere answers with the question.
func (e *elsewhere) Packets(conn net.Conn) {
	e.keep(conn, func() {
		b := make([]byte, 100)
		for {
			n, err := conn.Read(b)
			if err != nil || n == 0 {
				return
			}
			_, _ = fmt.Fprintf(conn, "you asked: %s", b[:n])
		}
	})
}

func (e *elsewhere) Datagrams(conn net.PacketConn) {
	e.keep(conn, func() {
		b := make([]byte, 100)
		for {
			n, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			_, _ = conn.WriteTo(fmt.Appendf(nil, "you asked: %s", b[:n]), from)
		}
	})
}

func (e *elsewhere) Listen(l net.Listener) {
	e.keep(l, func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	})
}

// enterTransparent enters a sandbox whose connections lead to an elsewhere.
func enterTransparent(t *testing.T, door *Door, profile sandbox.Profile, m Managed) *Held {
	t.Helper()
	e := &elsewhere{held: make(chan struct{})}
	t.Cleanup(e.close)
	m.Transparent = true
	held := enterManaged(t, door, profile, m)
	held.Gate().Held().Serve(gate.Handler{Prepare: e.prepare, Resolver: e})
	return held
}

// TestTransparent: a command connects to any address as if there were a network, and each connection is
// the agent's (transparent.md 2).
func TestTransparent(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		root := t.TempDir()
		held := enterTransparent(t, door, managedProfile(root), Managed{SOCKS5: true})
		rig.Is(t, slices.Contains(held.Layers, "transparent"), true, "transparent is among %q", held.Layers)
		other := port(greeter(t, "tcp4", "127.0.0.1:0"))
		a := puppetIn(t, held, root)
		for _, errno := range []syscall.Errno{unix.EACCES, unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ETIMEDOUT, unix.ENETUNREACH} {
			to := fmt.Sprintf("11.22.33.44:%d", errno)
			a.want(unix.ErrnoName(errno), "say", to)
			a.want(unix.ErrnoName(errno)+" after EINPROGRESS", "later", to)
			a.want(unix.ErrnoName(errno)+" ok", "after", to, "11.22.33.44:443")
		}
		a.wantTable("transparent", map[string]any{
			"http": port(held.Gate().HTTP().Addr()), "socks": port(held.Gate().SOCKS5().Addr()), "other": other,
		})
	})
}

// TestTransparentStorm: whatever a command does with sockets that are held, its other connections work,
// and nothing is left over.
func TestTransparentStorm(t *testing.T) {
	rounds := 50
	if rig.Runs(rig.Nightly) {
		rounds = 25_000
	}
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		root := t.TempDir()
		held := enterTransparent(t, door, managedProfile(root), Managed{})
		a := puppetIn(t, held, root)
		for _, to := range []string{"11.22.33.44:443", "11.22.33.44:111"} {
			a.want("over", "storm", to, rounds)
			a.want("ok 11.22.33.44:443:hello at 11.22.33.44:443", "say", "11.22.33.44:443")
			a.want("ECONNREFUSED after EINPROGRESS", "later", "11.22.33.44:111")
		}
	})
}

// TestTransparentEnds: a gate that is closed refuses connections, and the command goes on.
func TestTransparentEnds(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		root := t.TempDir()
		held := enterTransparent(t, door, managedProfile(root), Managed{})
		a := puppetIn(t, held, root)
		a.want("ok 11.22.33.44:443:hello at 11.22.33.44:443", "say", "11.22.33.44:443")
		held.Gate().Close()
		a.want("ECONNREFUSED", "say", "11.22.33.44:443")
		a.want("ok", "chdir", "/")
	})
}

// TestTransparentLevels: a supervisor at each level, and an init with limits, hold connections too.
func TestTransparentLevels(t *testing.T) {
	eachEnforcement(t, func(t *testing.T, _ string, door *Door) {
		for _, visible := range []bool{false, true} {
			door.Operator.VisibleMetadata = visible
			root, secret := t.TempDir(), t.TempDir()
			put(t, secret+"/key", "")
			profile := managedProfile(root)
			profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: secret, Access: sandbox.Denied})
			held := enterTransparent(t, door, profile, Managed{AllUnixSockets: visible})
			a := puppetIn(t, held, root)
			a.want("ok 11.22.33.44:443:hello at 11.22.33.44:443", "say", "11.22.33.44:443")
			a.want("EACCES", "say", "11.22.33.44:13")
			a.want("ok ok ok", "question", "127.0.0.53:53")
			a.want("EACCES", "open", secret+"/key")
		}
		door.Limits = Limits{CPUSeconds: 3600}
		root := t.TempDir()
		held := enterTransparent(t, door, managedProfile(root), Managed{})
		a := puppetIn(t, held, root)
		a.want("ok 11.22.33.44:443:hello at 11.22.33.44:443", "say", "11.22.33.44:443")
	})
}

// TestTransparentView: in namespaces the command has a resolver, and files that lead there.
func TestTransparentView(t *testing.T) {
	t.Parallel()
	root, held, self := t.TempDir(), placeholders(t), rig.Value(os.Executable())
	door := &Door{
		Host:         func() (sandbox.Host, error) { return enforcements[0].host, nil },
		Served:       new(resolve.Served),
		Placeholders: func() (*placeholder.Placeholders, error) { return held, nil },
	}
	for name, profile := range map[string]sandbox.Profile{
		"everything": managedProfile(root),
		"minimal": {Entries: []sandbox.Entry{
			{Place: sandbox.PlaceMinimal, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: self, Access: sandbox.Read}, {Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		}},
	} {
		a := puppetIn(t, enterTransparent(t, door, profile, Managed{}), root)
		a.want("ok", "shell", `test ! -e /etc/resolv.conf || test "$(cat /etc/resolv.conf)" = 'nameserver 127.0.0.53'`)
		a.want("ok", "shell", `test ! -e /etc/hosts || ! grep -v -e ^127 -e ^::1 -e ^::ffff:127 /etc/hosts`)
		a.want("ok ok ok", "question", "127.0.0.1:53")
		got := a.ask("shell", `echo x >/etc/resolv.conf`)
		rig.Is(t, got != "ok", true, "%s: writing to resolv.conf: %s", name, got)
	}
}

// TestTransparentUnenforceable: a host without listeners, or without a way to take sockets, refuses.
func TestTransparentUnenforceable(t *testing.T) {
	t.Parallel()
	for _, layer := range []sandbox.Layer{sandbox.UserNotify, sandbox.Pidfd} {
		host := sandbox.Host{Layers: full().Layers.With(sandbox.UserNotify, sandbox.Pidfd).Without(layer), Landlock: 7,
			Reasons: map[sandbox.Layer]sandbox.Reason{layer: {Error: "reason", Remedy: "remedy"}}}
		door := &Door{Host: func() (sandbox.Host, error) { return host, nil }}
		_, err := door.EnterManaged(managedProfile(t.TempDir()), Managed{Transparent: true})
		rig.Says(t, err, "this host cannot enforce the sandbox: seccomp is missing: reason; remedy", "without %v", layer)
	}
}
