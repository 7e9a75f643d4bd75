package sockowner

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// other is a user that is not the one of the tests.
const other = 54321

// TestMain also is the child that connects, and stays until its input ends.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "connect" {
		conn, err := net.Dial("tcp", os.Args[2])
		if err != nil {
			os.Exit(1)
		}
		_, _ = os.Stdin.Read(make([]byte, 1))
		_ = conn.Close()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func listen(t *testing.T, network, addr string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.(*net.TCPListener)
}

func accept(t *testing.T, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	conn, err := l.AcceptTCP()
	rig.Must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// ways are those by which a uid is found.
var ways = map[string]func(end, peer netip.AddrPort) (int, error){"netlink": askKernel, "procfs": readTable}

// owned fails a test in which a connection's other end is not a user's, in whatever way that is found.
func owned(t *testing.T, conn *net.TCPConn, want int, wantErr error) {
	t.Helper()
	for name, way := range ways {
		uid, err := way(addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr()))
		rig.Is(t, err, wantErr, "%s", name)
		rig.Is(t, err != nil || uid == want, true, "%s: %d is uid %d", name, uid, want)
	}
}

func TestOwn(t *testing.T) {
	t.Parallel()
	for name, addrs := range map[string][2]string{"IPv4": {"127.0.0.1:0", "127.0.0.1"}, "IPv6": {"[::1]:0", "::1"}, "both": {"[::]:0", "127.0.0.1"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := listen(t, "tcp", addrs[0])
			_, port, _ := net.SplitHostPort(l.Addr().String())
			client, err := net.Dial("tcp", net.JoinHostPort(addrs[1], port))
			rig.Must(t, err)
			conn := accept(t, l)
			owned(t, conn, os.Getuid(), nil)
			rig.Close(t, client)
			owned(t, conn, 0, ErrUnknown)
		})
	}
}

// TestMapped: a socket of IPv6 with a connection of IPv4.
func TestMapped(t *testing.T) {
	t.Parallel()
	l := listen(t, "tcp4", "127.0.0.1:0")
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skip(err)
	}
	defer syscall.Close(fd)
	to := &syscall.SockaddrInet6{Port: l.Addr().(*net.TCPAddr).Port, Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	rig.Must(t, syscall.Connect(fd, to))
	owned(t, accept(t, l), os.Getuid(), nil)
}

// TestOther: the socket of another user is told from our own.
func TestOther(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	l := listen(t, "tcp4", "127.0.0.1:0")
	self, err := os.ReadFile("/proc/self/exe")
	rig.Must(t, err)
	dir, err := os.MkdirTemp("", "sockowner") // everybody can reach it
	rig.Must(t, err)
	defer os.RemoveAll(dir)
	rig.Must(t, errors.Join(os.Chmod(dir, 0o755), rig.WriteProgram(dir+"/child", self)))
	cmd := exec.CommandContext(t.Context(), dir+"/child", "connect", l.Addr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: other, Gid: other}}
	stdin, err := cmd.StdinPipe()
	rig.Must(t, err)
	rig.Must(t, cmd.Start())
	owned(t, accept(t, l), other, nil)
	_ = stdin.Close()
	rig.Check(t, cmd.Wait())
}

const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:D431 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 20 4 30 10 -1
   2: 0100007F:D432 0100007F:1F90 06 00000000:00000000 03:00000000 00000000     0        0 0 3 0
`

func TestFind(t *testing.T) {
	t.Parallel()
	for from, want := range map[uint16]struct {
		uid int
		err error
	}{0xd431: {1000, nil}, 0xd432: {0, ErrUnknown}, 0xd433: {0, errNotThere}} {
		at := netip.MustParseAddr("127.0.0.1")
		uid, err := find(strings.NewReader(table), netip.AddrPortFrom(at, from), netip.AddrPortFrom(at, 8080))
		rig.Is(t, uid, want.uid, "port %#x", from)
		rig.Is(t, err, want.err, "port %#x", from)
	}
}

func FuzzDecode(f *testing.F) {
	at := netip.MustParseAddrPort("127.0.0.1:8080")
	f.Add(request(at, at))
	f.Add([]byte(table))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = decode(b, at, at)
		_, _ = find(strings.NewReader(string(b)), at, at)
	})
}

func BenchmarkOf(b *testing.B) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	rig.Must(b, err)
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	rig.Must(b, err)
	defer client.Close()
	conn, err := l.Accept()
	rig.Must(b, err)
	defer conn.Close()
	for b.Loop() {
		rig.Must(b, rig.Err(Of(conn.(*net.TCPConn))))
	}
}
