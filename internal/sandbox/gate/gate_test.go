package gate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// other is a user that is not the one of the tests.
const other = 54321

// TestMain also is a child that prints what it reads from an address.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "read" {
		conn, err := net.Dial("tcp", os.Args[2])
		if err != nil {
			os.Exit(1)
		}
		_, _ = io.Copy(os.Stdout, conn)
		os.Exit(0)
	}
	sandboxtest.Main(m)
}

// greet greets whoever gets through.
func greet(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		_, _ = io.WriteString(conn, "hello")
		_ = conn.Close()
	}
}

// read connects and reads to the end.
func read(t *testing.T, addr net.Addr) string {
	t.Helper()
	conn := rig.Value(net.Dial("tcp", addr.String()))
	defer conn.Close()
	text, _ := io.ReadAll(conn) // a reset is no text
	return string(text)
}

func TestOwned(t *testing.T) {
	t.Parallel()
	g := rig.Value(Owned(2))
	defer g.Close()
	go greet(g.HTTP())
	go greet(g.SOCKS5())
	for _, l := range g.listeners {
		rig.Is(t, read(t, l.Addr()), "hello", "our own connection")
	}
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	self := rig.Value(os.ReadFile("/proc/self/exe"))
	dir := rig.Value(os.MkdirTemp("", "gate")) // everybody can reach it
	defer os.RemoveAll(dir)
	rig.Must(t, os.Chmod(dir, 0o755), rig.WriteProgram(dir+"/child", self))
	for uid, want := range map[uint32]string{other: "", 0: "hello"} {
		child := exec.CommandContext(t.Context(), dir+"/child", "read", g.HTTP().Addr().String())
		child.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		rig.Is(t, string(rig.Value(child.Output())), want, "uid %d", uid)
	}
}

// socket makes a socket of that family, which is closed with the test.
func socket(t testing.TB, family int) int {
	t.Helper()
	fd := rig.Value(unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// text reads from a socket to the end.
func text(fd int) string {
	var all []byte
	b := make([]byte, 100)
	for {
		n, err := unix.Read(fd, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return string(all)
		}
		all = append(all, b[:n]...)
	}
}

// from connects from that address. The error is EADDRINUSE if another program has it.
func from(t *testing.T, at netip.AddrPort, to net.Addr) (net.Conn, error) {
	t.Helper()
	conn, err := (&net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(at)}).Dial("tcp4", to.String())
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// told returns a gate with two listeners that greet, and its supervisor's end.
func told(t *testing.T) (*Gate, *Teller) {
	t.Helper()
	g, theirs, err := Told(2)
	rig.Must(t, err)
	t.Cleanup(g.Close)
	t.Cleanup(func() { _ = theirs.Close() })
	go greet(g.HTTP())
	go greet(g.SOCKS5())
	return g, NewTeller(int(theirs.Fd()), g.Ports())
}

// TestTold: of the connections to the gate only those get through that were told (L17).
func TestTold(t *testing.T) {
	t.Parallel()
	g, teller := told(t)
	ports := g.Ports()
	for at, want := range map[string]bool{g.HTTP().Addr().String(): true, g.SOCKS5().Addr().String(): true, "127.0.0.1:1": false,
		fmt.Sprintf("127.0.0.2:%d", ports[0]): false, fmt.Sprintf("[::1]:%d", ports[0]): false} {
		rig.Is(t, teller.Leads(netip.MustParseAddrPort(at)), want, "%s leads there", at)
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for range 3 {
			fd := socket(t, family)
			rig.Must(t, teller.Connect(fd, family, ports[1]))
			rig.Is(t, text(fd), "hello", "what was told")
			rig.Is(t, read(t, g.HTTP().Addr()), "", "what was not told")
			if err := teller.Connect(fd, family, ports[1]); err != unix.EISCONN && err != unix.EINVAL {
				t.Errorf("once more: %v", err)
			}
		}
	}
}

// TestToldOthers: before the connection comes, others come: from another port, and to the
// other listener.
func TestToldOthers(t *testing.T) {
	t.Parallel()
	g, teller := told(t)
	fd := socket(t, unix.AF_INET)
	c := connection{fd, unix.AF_INET}
	at := rig.Value(c.source())
	rig.Must(t, teller.send(packet{coming, 7, at, g.Ports()[0]}))
	teller.number = 7
	rig.Is(t, read(t, g.HTTP().Addr()), "", "from another port")
	rig.Must(t, c.connect(time.Now().Add(sandboxtest.Enough), loopback(g.Ports()[0])))
	rig.Is(t, text(fd), "hello", "what was told, after others")
	rig.Check(t, teller.await(time.Now().Add(sandboxtest.Enough)))
	rig.Must(t, teller.send(packet{coming, 8, loopback(1), g.Ports()[0]}))
	other := rig.Value(from(t, loopback(0), g.SOCKS5().Addr()))
	rig.Must(t, teller.send(packet{coming, 9, other.LocalAddr().(*net.TCPAddr).AddrPort(), g.Ports()[0]}))
	got, _ := io.ReadAll(other)
	rig.Is(t, string(got), "", "to the other listener")
}

// TestToldFails: a port that was told, and from which the connection did not come, is
// nobody's any more; neither is one from which it has come.
func TestToldFails(t *testing.T) {
	t.Parallel()
	g, teller := told(t)
	fd := socket(t, unix.AF_INET)
	at := rig.Value((connection{fd, unix.AF_INET}).source())
	// The gate is told of the connection, which goes to a port where nobody listens.
	rig.Is[error](t, teller.tell(1, time.Now().Add(sandboxtest.Enough), connection{fd, unix.AF_INET}), unix.ECONNREFUSED, "the error")
	rig.Is(t, rig.Value((connection{fd, unix.AF_INET}).source()), at, "the socket after an attempt that failed")
	if l, err := net.Listen("tcp4", at.String()); err == nil {
		_ = l.Close()
		t.Error("after an attempt that failed the port is free")
	}
	rig.Must(t, teller.Connect(fd, unix.AF_INET, g.Ports()[0]))
	rig.Is(t, text(fd), "hello", "after an attempt that failed")
	var second net.Conn
	err := error(unix.EADDRINUSE)
	for errors.Is(err, unix.EADDRINUSE) { // another program was faster
		fd = socket(t, unix.AF_INET)
		rig.Must(t, teller.Connect(fd, unix.AF_INET, g.Ports()[0]))
		at = connection{fd, unix.AF_INET}.name()
		// A reset gives the port free at once.
		rig.Must(t, unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}))
		if err := unix.Shutdown(fd, unix.SHUT_RDWR); err != nil && err != unix.ENOTCONN {
			t.Fatal(err)
		}
		connection{fd, unix.AF_INET}.disconnect()
		if err := unix.Dup2(socket(t, unix.AF_INET), fd); err != nil { // the last descriptor of the old one
			t.Fatal(err)
		}
		second, err = from(t, at, g.HTTP().Addr())
	}
	rig.Must(t, err)
	got, _ := io.ReadAll(second)
	rig.Is(t, string(got), "", "from the port of a connection that was there")
}

// TestToldClosed: when the gate is closed nothing is connected any more.
func TestToldClosed(t *testing.T) {
	t.Parallel()
	g, teller := told(t)
	g.Close()
	g.Close()
	rig.Is[error](t, teller.Connect(socket(t, unix.AF_INET), unix.AF_INET, g.Ports()[0]), unix.ECONNREFUSED, "the error")
	rig.Is(t, rig.Err(g.HTTP().Accept()), net.ErrClosed, "the error")
	var none *Gate
	none.Close()
}

// TestToldGone: what a supervisor has told holds no longer when that has ended, also if it
// has left an answer unread.
func TestToldGone(t *testing.T) {
	t.Parallel()
	for _, unread := range []bool{false, true} {
		g, theirs, err := Told(1)
		rig.Must(t, err)
		defer g.Close()
		go greet(g.HTTP())
		// connected returns what the gate sends on a connection that is told first.
		connected := func(then func()) string {
			c := connection{socket(t, unix.AF_INET), unix.AF_INET}
			at := rig.Value(c.source())
			rig.Must(t, NewTeller(int(theirs.Fd()), g.Ports()).send(packet{coming, 1, at, g.Ports()[0]}))
			then()
			rig.Must(t, c.connect(time.Now().Add(sandboxtest.Enough), loopback(g.Ports()[0])))
			return text(c.socket)
		}
		if unread {
			rig.Is(t, connected(func() {}), "hello", "before the end")
		}
		rig.Is(t, connected(func() { rig.Close(t, theirs) }), "", "an answer unread: %v; after the end", unread)
	}
}

// TestToldNotTaken: a connection that the proxy does not take in time is ended, and its
// port taken back.
func TestToldNotTaken(t *testing.T) {
	t.Parallel()
	g, theirs, err := Told(1)
	rig.Must(t, err)
	defer g.Close()
	defer theirs.Close()
	teller := NewTeller(int(theirs.Fd()), g.Ports())
	fd := socket(t, unix.AF_INET)
	c := connection{fd, unix.AF_INET}
	if err := teller.tell(g.Ports()[0], time.Now(), c); err != unix.ETIMEDOUT || c.name().Port() != 0 {
		t.Errorf("without any time: %v, %v", err, c.name())
	}
	at, err := c.source()
	rig.Must(t, err, unix.SetNonblock(fd, true))
	// As tell does it, with a time that has come.
	rig.Must(t, teller.send(packet{coming, 1, at, g.Ports()[0]}), c.connect(time.Now().Add(sandboxtest.Enough), loopback(g.Ports()[0])))
	rig.Is[error](t, teller.await(time.Now()), unix.ETIMEDOUT, "awaiting")
	rig.Must(t, teller.send(packet{gone, 1, at, g.Ports()[0]}))
	taken := make(chan net.Conn)
	go func() {
		defer close(taken)
		if conn, err := g.HTTP().Accept(); err == nil {
			taken <- conn
		}
	}()
	second := socket(t, unix.AF_INET)
	rig.Must(t, teller.Connect(second, unix.AF_INET, g.Ports()[0]))
	want := connection{second, unix.AF_INET}.name()
	rig.Is(t, (<-taken).RemoteAddr().String(), want.String(), "who got through")
}

// TestInside: the sockets come from another process, and only as many as there should be.
func TestInside(t *testing.T) {
	t.Parallel()
	listening := func(ports []uint16) (fds []int, close func()) {
		for _, p := range ports {
			fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
			if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, &unix.SockaddrInet4{Port: int(p), Addr: loopback(p).Addr().As4()}), unix.Listen(fd, 1)); err != nil {
				t.Skipf("port %d of this host: %v", p, err)
			}
			fds = append(fds, fd)
		}
		return fds, func() {
			for _, fd := range fds {
				unix.Close(fd)
			}
		}
	}
	for name, tt := range map[string]struct {
		pass func(g *Gate) []uint16
		want bool
	}{
		"all":        {func(g *Gate) []uint16 { return g.Ports() }, true},
		"one":        {func(g *Gate) []uint16 { return g.Ports()[:1] }, false},
		"others":     {func(*Gate) []uint16 { return []uint16{0, 0} }, false},
		"no message": {func(*Gate) []uint16 { return nil }, false},
	} {
		g, theirs, err := Inside(2)
		rig.Must(t, err)
		t.Cleanup(g.Close)
		if ports := tt.pass(g); ports != nil {
			fds, done := listening(ports)
			rig.Must(t, unix.Sendmsg(int(theirs.Fd()), []byte{0}, unix.UnixRights(fds...), nil, 0))
			done()
		}
		_ = theirs.Close()
		got := make(chan error, 2)
		for _, l := range g.listeners {
			go func() {
				conn, err := l.Accept()
				if err == nil {
					_ = conn.Close()
				}
				got <- err
			}()
			if tt.want {
				_ = read(t, l.Addr())
			}
		}
		for range 2 {
			rig.Is(t, <-got == nil, tt.want, "%s: let through", name)
		}
		g.Close()
		rig.Is(t, rig.Err(g.HTTP().Accept()) != nil, true, "%s: the gate is closed", name)
	}
}

// TestInsideClosed: who waits for the sockets is woken up.
func TestInsideClosed(t *testing.T) {
	t.Parallel()
	g, theirs, err := Inside(1)
	rig.Must(t, err)
	defer theirs.Close()
	rig.Is(t, g.SOCKS5() == nil, true, "there is no second listener")
	got := make(chan error)
	go func() {
		got <- rig.Err(g.HTTP().Accept())
	}()
	g.Close()
	rig.Is(t, <-got != nil, true, "there is no connection")
}

func TestBridge(t *testing.T) {
	t.Parallel()
	server := rig.Value(net.Listen("tcp4", "127.0.0.1:0"))
	defer server.Close()
	served := make(chan net.Conn)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			served <- conn
		}
	}()
	g := rig.Value(Owned(2))
	closed := netip.MustParseAddrPort("127.0.0.1:1")
	g.Bridge([]netip.AddrPort{netip.MustParseAddrPort(server.Addr().String()), closed})
	client := rig.Value(net.Dial("tcp4", g.HTTP().Addr().String()))
	defer client.Close()
	conn := <-served
	rig.Must(t, rig.Err(io.WriteString(client, "question")))
	_ = client.(*net.TCPConn).CloseWrite()
	rig.Is(t, string(rig.Value(io.ReadAll(conn))), "question", "the server got")
	rig.Must(t, rig.Err(io.WriteString(conn, "answer")))
	_ = conn.Close()
	rig.Is(t, string(rig.Value(io.ReadAll(client))), "answer", "the client got")
	rig.Is(t, read(t, g.SOCKS5().Addr()), "", "where nobody listens")
	// A connection that goes on ends with the gate.
	client = rig.Value(net.Dial("tcp4", g.HTTP().Addr().String()))
	defer client.Close()
	conn = <-served
	defer conn.Close()
	g.Close()
	rig.Is(t, rig.Err(client.Read(make([]byte, 1))) != nil, true, "the connection has ended")
	sandboxtest.Eventually(t, "the server sees the end", func() bool { _, err := conn.Read(make([]byte, 1)); return err != nil })
}

func FuzzPacket(f *testing.F) {
	f.Add(packet{coming, 7, loopback(40000), 31280}.encode())
	f.Add([]byte("g"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := decodePacket(b); ok && !bytes.Equal(p.encode(), b) {
			t.Errorf("%x was read as %+v", b, p)
		}
	})
}

func BenchmarkTold(b *testing.B) {
	g, theirs, err := Told(1)
	rig.Must(b, err)
	defer g.Close()
	defer theirs.Close()
	go greet(g.HTTP())
	teller := NewTeller(int(theirs.Fd()), g.Ports())
	for b.Loop() {
		fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		rig.Must(b, teller.Connect(fd, unix.AF_INET, g.Ports()[0]))
		connection{fd, unix.AF_INET}.disconnect()
		unix.Close(fd)
	}
}

// BenchmarkStart: a process that nothing confines, without a gate and with one of two
// listeners.
func BenchmarkStart(b *testing.B) {
	for name, listeners := range map[string]int{"without": 0, "gate": 2} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				var g *Gate
				if listeners > 0 {
					g = rig.Value(Owned(listeners))
					for _, l := range g.listeners {
						go greet(l)
					}
				}
				rig.Must(b, exec.Command("/bin/true").Run())
				g.Close()
			}
		})
	}
}
