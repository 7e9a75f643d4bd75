package supervise

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// online returns the policy of workspace with the network enabled.
func online(t *testing.T, dir string) *sandbox.Policy {
	p := workspace(t, dir)
	p.Network = sandbox.NetworkEnabled
	return p
}

// TestSockets runs children that use the network in all ways that are left to the
// supervisor. They print what they find wrong. They run one by one, because a process that this one
// starts has the supervisor's copies of sockets until it executes its program, and so keeps ports.
func TestSockets(t *testing.T) {
	agent := rig.Value(net.Listen("tcp", ":0"))
	defer agent.Close()
	port := agent.Addr().(*net.TCPAddr).Port
	for _, name := range []string{"sockets/tcp", "sockets/again", "sockets/udp", "sockets/messages", "sockets/refused", "sockets/many"} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c := Config{Policy: online(t, dir), Ports: []uint16{uint16(port)}}
			rig.Is(t, supervised(t, c, sandbox.LevelWrites, name, dir, strconv.Itoa(port)), "", "out")
		})
	}
}

// loopback is the address of a port of this host.
func loopback(port int) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
}

// ownPort returns a port that is free. It is below those that the kernel gives to programs which do not
// name one (ip_local_port_range in ip(7)), so it is still free when the command has closed it, whatever
// else runs on this machine.
func ownPort(t rig.T) int {
	for {
		port := 10_000 + rand.IntN(20_000)
		fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
		err := unix.Bind(fd, loopback(port))
		unix.Close(fd)
		if err == nil {
			return port
		}
		rig.Is[error](t, err, unix.EADDRINUSE, "bind port %d", port)
	}
}

// listening returns a socket that listens on a port, and its address.
func listening(t rig.T, port int) (fd int, addr *unix.SockaddrInet4) {
	fd = rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	rig.Must(t, unix.Bind(fd, loopback(port)), unix.Listen(fd, 10))
	return fd, rig.Value(unix.Getsockname(fd)).(*unix.SockaddrInet4)
}

// waits reports whether the socket cannot be read, after a long time.
func waits(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(sandboxtest.Enough/time.Millisecond))
	return n != 1 || err != nil
}

// A server and its clients in one command, of IPv4 and IPv6: the end of a connection
// is seen by the peer, and a port is free again when it is closed.
var _ = child("sockets/tcp", func(t rig.T, _ []string) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, flags := range []int{0, unix.SOCK_NONBLOCK} {
			dialogue(t, family, flags)
		}
	}
	for range 3 {
		fd, addr := listening(t, ownPort(t))
		unix.Close(fd)
		fd, _ = listening(t, addr.Port)
		unix.Close(fd)
		// Of a socket that does not listen the supervisor has a copy still.
		for range 2 {
			fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
			rig.Must(t, unix.Bind(fd, addr))
			unix.Close(fd)
		}
	}
})

func dialogue(t rig.T, family, flags int) {
	var local unix.Sockaddr = loopback(ownPort(t))
	if family == unix.AF_INET6 {
		local = &unix.SockaddrInet6{Port: ownPort(t), Addr: [16]byte{15: 1}}
	}
	server := rig.Value(unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	rig.Is(t, rig.Value(unix.FcntlInt(uintptr(server), unix.F_GETFD, 0)), unix.FD_CLOEXEC, "close-on-exec")
	rig.Is(t, unix.SetsockoptInt(server, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), nil, "setsockopt")
	rig.Is(t, unix.Bind(server, local), nil, "bind")
	rig.Is(t, unix.Listen(server, 1), nil, "listen")
	rig.Is(t, unix.Listen(server, 10), nil, "a longer backlog")
	rig.Is[error](t, unix.Bind(server, local), unix.EINVAL, "bind once more")
	addr := rig.Value(unix.Getsockname(server))
	client := rig.Value(unix.Socket(family, unix.SOCK_STREAM|flags, 0))
	rig.Is(t, rig.Value(unix.FcntlInt(uintptr(client), unix.F_GETFD, 0)), 0, "no close-on-exec")
	err := unix.Connect(client, addr)
	if flags == 0 {
		rig.Is(t, err, nil, "connect")
	} else {
		rig.Is[error](t, err, unix.EINPROGRESS, "connect without waiting")
	}
	conn, _, err := unix.Accept(server)
	rig.Must(t, err)
	rig.Is[error](t, unix.Connect(client, addr), unix.EISCONN, "connect once more")
	rig.Is[error](t, unix.Connect(conn, addr), unix.EISCONN, "connect what was accepted")
	_ = rig.Value(unix.Write(client, []byte("ping")))
	// The kernel ignores an address here.
	rig.Is(t, unix.Sendto(client, []byte("pong"), 0, addr), nil, "sendto")
	unix.Close(client)
	var got []byte
	for {
		if waits(conn) {
			t.Fatalf("the end of the connection is not seen")
		}
		b := make([]byte, 100)
		n := rig.Value(unix.Read(conn, b))
		if n == 0 {
			break
		}
		got = append(got, b[:n]...)
	}
	rig.Is(t, string(got), "pingpong", "received")
	unix.Close(conn)
	unix.Close(server)
	client = rig.Value(unix.Socket(family, unix.SOCK_STREAM, 0))
	rig.Is[error](t, unix.Connect(client, addr), unix.ECONNREFUSED, "connect to a closed listener")
	unix.Close(client)
}

// A socket whose connection was refused is tried again.
var _ = child("sockets/again", func(t rig.T, _ []string) {
	fd, addr := listening(t, ownPort(t))
	unix.Close(fd)
	blocking := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	for range 3 {
		rig.Is[error](t, unix.Connect(blocking, addr), unix.ECONNREFUSED, "connect")
	}
	nonblocking := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0))
	for range 3 {
		rig.Is[error](t, unix.Connect(nonblocking, addr), unix.EINPROGRESS, "connect without waiting")
		rig.Is[error](t, unix.Connect(nonblocking, addr), unix.ECONNREFUSED, "its second attempt")
	}
	fd, _ = listening(t, addr.Port)
	rig.Is(t, unix.Connect(blocking, addr), nil, "connect at last")
	rig.Is[error](t, unix.Connect(nonblocking, addr), unix.EINPROGRESS, "connect at last without waiting")
	unix.Close(fd)
})

// Datagrams find their way with an address and without, and a port that nobody has
// open is free again.
var _ = child("sockets/udp", func(t rig.T, _ []string) {
	server := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	rig.Is(t, unix.Bind(server, loopback(ownPort(t))), nil, "bind")
	addr := rig.Value(unix.Getsockname(server))
	client := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	rig.Is[error](t, unix.Send(client, []byte("x"), 0), unix.EDESTADDRREQ, "send to nobody")
	rig.Is(t, unix.Sendto(client, []byte("one"), 0, addr), nil, "sendto")
	expect(t, server, "one")
	rig.Is(t, unix.Sendto(client, nil, 0, addr), nil, "sendto, empty")
	expect(t, server, "")
	rig.Is(t, unix.Connect(client, addr), nil, "connect")
	rig.Is(t, unix.Send(client, []byte("two"), 0), nil, "send")
	expect(t, server, "two")
	rig.Is(t, rawCall(unix.SYS_CONNECT, uintptr(client), uintptr(unsafe.Pointer(&unspecified)), 16), nil, "end the association")
	rig.Is[error](t, unix.Send(client, []byte("x"), 0), unix.EDESTADDRREQ, "send to nobody any more")
	rig.Is(t, unix.Connect(client, addr), nil, "connect again")
	rig.Is[error](t, unix.Sendto(client, make([]byte, 70_000), 0, addr), unix.EMSGSIZE, "too large")
	rig.Is[error](t, unix.Sendto(client, make([]byte, sockfd.MaxData+1), 0, addr), unix.EMSGSIZE, "far too large")
	rig.Is[error](t, unix.Sendto(client, []byte("x"), unix.MSG_FASTOPEN, addr), unix.EOPNOTSUPP, "fast open")
	rig.Is[error](t, unix.Sendto(999, []byte("x"), 0, addr), unix.EBADF, "no descriptor")
	rig.Is[error](t, unix.Sendto(1, []byte("x"), 0, addr), unix.ENOTSOCK, "no socket")
	rig.Is[error](t, unix.Connect(999, addr), unix.EBADF, "connect no descriptor")
	rig.Is[error](t, unix.Connect(1, addr), unix.ENOTSOCK, "connect no socket")
	rig.Is[error](t, unix.Bind(1, addr), unix.ENOTSOCK, "bind no socket")
	rig.Is[error](t, unix.Listen(client, 1), unix.EOPNOTSUPP, "listen on a datagram socket")
	at := uintptr(unsafe.Pointer(&familyOnly))
	rig.Is[error](t, rawCall(unix.SYS_SENDTO, uintptr(client), 8, 16, 0, at, 16), unix.EFAULT, "data that cannot be read")
	rig.Is[error](t, rawCall(unix.SYS_SENDTO, uintptr(client), 0, 0, 0, 8, 16), unix.EFAULT, "an address that cannot be read")
	rig.Is[error](t, rawCall(unix.SYS_SENDTO, uintptr(client), 0, 0, 0, at, 1<<32|129), unix.EINVAL, "an address that is too long")
	for range 3 {
		unix.Close(server)
		server = rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
		rig.Is(t, unix.Bind(server, addr), nil, "bind the port again")
	}
	other := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	rig.Is[error](t, unix.Bind(other, addr), unix.EADDRINUSE, "bind a port that is taken")
})

// familyOnly is a struct sockaddr_in of zeros, unspecified ends an association.
var familyOnly, unspecified = [16]byte{unix.AF_INET}, [16]byte{unix.AF_UNSPEC}

// expect receives one datagram, which has to be want.
func expect(t rig.T, fd int, want string) {
	b := make([]byte, 100)
	if waits(fd) {
		t.Fatalf("no datagram %q", want)
	}
	n, _, err := unix.Recvfrom(fd, b, 0)
	rig.Must(t, err)
	rig.Is(t, string(b[:n]), want, "a datagram")
}

// Messages have several parts, names, and what belongs to them.
var _ = child("sockets/messages", func(t rig.T, _ []string) {
	server := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	rig.Is(t, unix.Bind(server, loopback(0)), nil, "bind")
	addr := rig.Value(unix.Getsockname(server))
	client := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	n, err := unix.SendmsgBuffers(client, [][]byte{[]byte("a"), nil, []byte("bc")}, nil, addr, 0)
	rig.Is(t, err, nil, "sendmsg")
	rig.Is(t, n, 3, "sendmsg has sent")
	expect(t, server, "abc")
	rig.Is[error](t, rig.Err(unix.SendmsgN(client, []byte("x"), nil, nil, 0)), unix.EDESTADDRREQ, "sendmsg to nobody")
	rig.Is(t, unix.Connect(client, addr), nil, "connect")
	rig.Is(t, rig.Err(unix.SendmsgN(client, []byte("d"), nil, nil, 0)), nil, "sendmsg to the peer")
	expect(t, server, "d")
	ttl := make([]byte, unix.CmsgSpace(4)) // struct cmsghdr
	binary.NativeEndian.PutUint64(ttl, uint64(unix.CmsgLen(4)))
	binary.NativeEndian.PutUint32(ttl[8:], unix.IPPROTO_IP)
	binary.NativeEndian.PutUint32(ttl[12:], unix.IP_TTL)
	binary.NativeEndian.PutUint32(ttl[16:], 7)
	rig.Is(t, unix.SetsockoptInt(server, unix.IPPROTO_IP, unix.IP_RECVTTL, 1), nil, "setsockopt")
	rig.Is(t, rig.Err(unix.SendmsgN(client, []byte("e"), ttl, nil, 0)), nil, "sendmsg with a hop limit")
	control := make([]byte, 100)
	_, size, _, _, err := unix.Recvmsg(server, make([]byte, 10), control, 0)
	rig.Must(t, err)
	rig.Is(t, string(control[16:min(size, 20)]), string(ttl[16:20]), "the hop limit")
	rig.Is[error](t, rig.Err(unix.SendmsgN(client, []byte("x"), unix.UnixRights(0), nil, 0)), unix.EINVAL, "sendmsg with descriptors")
	rig.Is[error](t, rig.Err(unix.SendmsgN(client, []byte("x"), make([]byte, 16), nil, 0)), unix.EINVAL, "sendmsg with nonsense")
	rig.Is[error](t, rig.Err(unix.SendmsgN(client, []byte("x"), nil, addr, unix.MSG_FASTOPEN)), unix.EOPNOTSUPP, "sendmsg, fast open")

	// Three messages, of which the second names a peer.
	name := [16]byte{0: unix.AF_INET, 4: 127, 7: 1}
	binary.BigEndian.PutUint16(name[2:], uint16(addr.(*unix.SockaddrInet4).Port))
	list := make([][sockfd.SizeMmsghdr]byte, 3)
	texts := []string{"f", "gh", "ijk"}
	parts := make([]unix.Iovec, len(list))
	var pinned runtime.Pinner
	defer pinned.Unpin()
	for i, text := range texts {
		data := []byte(text)
		parts[i] = unix.Iovec{Base: &data[0], Len: uint64(len(data))}
		pinned.Pin(&data[0])
		pinned.Pin(&parts[i])
		binary.NativeEndian.PutUint64(list[i][16:], uint64(uintptr(unsafe.Pointer(&parts[i]))))
		binary.NativeEndian.PutUint64(list[i][24:], 1)
	}
	pinned.Pin(&name)
	binary.NativeEndian.PutUint64(list[1][:], uint64(uintptr(unsafe.Pointer(&name))))
	binary.NativeEndian.PutUint32(list[1][8:], uint32(len(name)))
	sent, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(client), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0, 0, 0)
	rig.Is(t, fmt.Sprint(sent, errno), "3 errno 0", "sendmmsg")
	for i, text := range texts {
		expect(t, server, text)
		rig.Is(t, int(binary.NativeEndian.Uint32(list[i][sockfd.SizeOfSent:])), len(text), "size of message %d", i)
	}
	binary.NativeEndian.PutUint64(list[1][16:], 8) // cannot be read
	sent, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, uintptr(client), uintptr(unsafe.Pointer(&list[0])), uintptr(len(list)), 0, 0, 0)
	rig.Is(t, fmt.Sprint(sent, errno), "1 errno 0", "sendmmsg, the second is bad")
	expect(t, server, "f")
	_, _, errno = unix.Syscall6(unix.SYS_SENDMMSG, uintptr(client), uintptr(unsafe.Pointer(&list[1])), 2, 0, 0, 0)
	rig.Is(t, errno, unix.EFAULT, "sendmmsg, the first is bad")

	// The kernel goes on with what has its peer, descriptors included.
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	rig.Is(t, unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(server), nil, 0), nil, "sendmsg to a pair")
	_, size, _, _, err = unix.Recvmsg(pair[1], make([]byte, 10), control, 0)
	rig.Must(t, err)
	rig.Is(t, len(rig.Value(unix.ParseSocketControlMessage(control[:size]))), 1, "messages with descriptors")
})

// What is refused.
var _ = child("sockets/refused", func(t rig.T, args []string) {
	agent := rig.Value(strconv.Atoi(args[1]))
	for _, c := range []struct {
		what         string
		family, kind int
		want         error
	}{
		{"vsock", unix.AF_VSOCK, unix.SOCK_STREAM, unix.EPERM},
		{"UNIX datagrams", unix.AF_UNIX, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.EPERM},
		{"UNIX raw", unix.AF_UNIX, unix.SOCK_RAW, unix.EPERM},
		{"no type", unix.AF_INET, 14, unix.EINVAL},
		{"no flags", unix.AF_INET, unix.SOCK_STREAM | 1<<20, unix.EINVAL},
		{"no family", 4000, unix.SOCK_STREAM, unix.EAFNOSUPPORT},
	} {
		rig.Is(t, rig.Err(unix.Socket(c.family, c.kind, 0)), c.want, "%s", c.what)
	}
	for _, flags := range []int{0, unix.SOCK_NONBLOCK} {
		fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|flags, 0))
		for _, addr := range [][4]byte{{127, 0, 0, 1}, {127, 9, 9, 9}, {}} {
			rig.Is[error](t, unix.Connect(fd, &unix.SockaddrInet4{Port: agent, Addr: addr}), unix.EPERM, "the agent")
		}
		fd6 := rig.Value(unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|flags, 0))
		for _, addr := range [][16]byte{{15: 1}, {}, {10: 0xff, 11: 0xff, 12: 127, 15: 1}} {
			rig.Is[error](t, unix.Connect(fd6, &unix.SockaddrInet6{Port: agent, Addr: addr}), unix.EPERM, "the agent, IPv6")
		}
		// What was refused can be used for something else.
		server, addr := listening(t, ownPort(t))
		err := unix.Connect(fd, addr)
		if flags != 0 && err == unix.EINPROGRESS {
			err = nil
		}
		rig.Is(t, err, nil, "another service")
		unix.Close(server)
	}
	udp := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	rig.Is(t, unix.Connect(udp, loopback(agent)), nil, "datagrams to the agent's port")
	unixSocket := rig.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
	rig.Is[error](t, unix.Connect(unixSocket, &unix.SockaddrUnix{Name: "@execagent-test"}), unix.EPERM, "connect to an abstract name")
	rig.Is[error](t, unix.Bind(unixSocket, &unix.SockaddrUnix{Name: "@execagent-test"}), unix.EPERM, "bind an abstract name")
	_, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(unixSocket), uintptr(unsafe.Pointer(&[2]byte{unix.AF_UNIX})), 2)
	rig.Is(t, errno, unix.EPERM, "bind no name")
})

// Many sockets, opened and closed: nothing is left of them in the supervisor.
var _ = child("sockets/many", func(t rig.T, _ []string) {
	const many = 10_000
	for i := range many {
		kind := []int{unix.SOCK_DGRAM, unix.SOCK_STREAM}[i%2]
		fd := rig.Value(unix.Socket([]int{unix.AF_INET, unix.AF_INET6}[i/2%2], kind, 0))
		if i%3 == 0 {
			rig.Is(t, unix.Bind(fd, loopback(0)), map[bool]error{true: unix.EINVAL}[i/2%2 == 1], "bind")
		}
		unix.Close(fd)
	}
	copies := 0
	for begun := time.Now(); time.Since(begun) < sandboxtest.Enough; time.Sleep(10 * time.Millisecond) {
		copies = 0
		fds := rig.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", os.Getppid())))
		for _, fd := range fds {
			if link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", os.Getppid(), fd.Name())); err == nil && strings.HasPrefix(link, "socket:") {
				copies++
			}
		}
		if copies < 200 { // other tests have some
			return
		}
	}
	t.Fatalf("the supervisor has %d sockets", copies)
})

// TestSocketPaths: names of UNIX sockets are bound where files may be made, as the
// command writes them, and reached where the policy lets something be written.
func TestSocketPaths(t *testing.T) {
	t.Parallel()
	for _, level := range []sandbox.Level{sandbox.LevelWrites, sandbox.LevelMetadata} {
		t.Run(level.String(), func(t *testing.T) {
			t.Parallel()
			dir, outside, denied := t.TempDir(), t.TempDir(), t.TempDir()
			sandboxtest.Tree(t, dir, "sub/", ".git/", "out -> "+outside, "git -> .git", "in -> sub", "link -> sub/early", "dangling -> nowhere")
			for _, path := range []string{dir + "/sub/early", dir + "/.git/early", outside + "/early", denied + "/early"} {
				l := rig.Value(net.Listen("unix", path))
				t.Cleanup(func() { l.Close() })
			}
			c := Config{Policy: online(t, dir)}
			c.Policy.Rules = append(c.Policy.Rules, sandbox.Rule{Path: dir + "/.git", Access: sandbox.Read})
			if level == sandbox.LevelMetadata {
				c.Policy.FullRead = false
				c.Policy.Rules = append(c.Policy.Rules, sandbox.Rule{Path: denied, Access: sandbox.Denied})
			}
			slices.SortFunc(c.Policy.Rules, func(a, b sandbox.Rule) int { return strings.Compare(a.Path, b.Path) })
			rig.Is(t, supervised(t, c, level, "sockets/paths", dir, outside, denied, level.String()), "", "out")
			for _, dir := range []string{outside, dir + "/.git", denied} {
				rig.Is(t, len(rig.Value(os.ReadDir(dir))), 1, "entries of %s", dir)
			}
		})
	}
}

var _ = child("sockets/paths", func(t rig.T, args []string) {
	dir, outside, denied, level := args[0], args[1], args[2], args[3]
	if err := unix.Chdir(dir); level != "S" { // S has it done by the supervisor
		rig.Must(t, err)
	}
	unix.Umask(0o027)
	hidden := map[string]error{"W": unix.EPERM, "S": unix.EACCES}[level]
	for _, c := range []struct {
		name string
		want error
	}{
		{"sub/early", nil}, {"link", nil}, {dir + "/sub/early", nil}, {"in/early", nil}, {"sub/../in/early", nil},
		{"/proc/self/cwd/sub/early", nil}, {"/proc/self/root" + dir + "/sub/early", nil},
		{".git/early", unix.EPERM}, {"git/early", unix.EPERM}, {"out/early", unix.EPERM}, {outside + "/early", unix.EPERM},
		{denied + "/early", hidden}, {"dangling", unix.ENOENT}, {"nothing", unix.ENOENT}, {"sub", unix.ECONNREFUSED},
	} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_STREAM | unix.SOCK_NONBLOCK} {
			fd := rig.Value(unix.Socket(unix.AF_UNIX, kind, 0))
			rig.Is(t, unix.Connect(fd, &unix.SockaddrUnix{Name: c.name}), c.want, "connect %s", c.name)
			unix.Close(fd)
		}
	}
	hidden = map[string]error{"W": unix.EROFS, "S": unix.EACCES}[level]
	for _, c := range []struct {
		name string
		want error
	}{
		{"relative", nil}, {dir + "/absolute", nil}, {"in/linked", nil}, {"sub/../dots", nil}, {"./here", nil},
		{"relative", unix.EADDRINUSE}, {"sub", unix.EADDRINUSE}, {"link", unix.EADDRINUSE}, {"dangling", unix.EADDRINUSE},
		{"none/sock", unix.ENOENT}, {"slash/", unix.ENOENT}, {"sub/", unix.EADDRINUSE}, {".", unix.EADDRINUSE},
		{".git/sock", unix.EROFS}, {"git/sock", unix.EROFS}, {"out/sock", unix.EROFS}, {outside + "/sock", unix.EROFS},
		{denied + "/sock", hidden},
		// The kernel would take these for others when the supervisor uses them.
		{"/proc/self/cwd/byproc", unix.ELOOP}, {"/proc/self/root" + dir + "/byroot", unix.ELOOP},
	} {
		fd := rig.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
		err := unix.Bind(fd, &unix.SockaddrUnix{Name: c.name})
		rig.Is(t, err, c.want, "bind %s", c.name)
		if err == nil {
			var st unix.Stat_t
			rig.Check(t, unix.Stat(c.name, &st))
			rig.Is(t, st.Mode, unix.S_IFSOCK|0o750, "mode of %s", c.name)
			rig.Is(t, rig.Value(unix.Getsockname(fd)).(*unix.SockaddrUnix).Name, c.name, "the name")
			rig.Is(t, unix.Listen(fd, 1), nil, "listen")
			peer := rig.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0))
			rig.Is(t, unix.Connect(peer, &unix.SockaddrUnix{Name: c.name}), nil, "connect to %s", c.name)
			unix.Close(peer)
		}
		unix.Close(fd)
	}
})

// TestSocketRaces: an address that another thread rewrites, and a descriptor under
// which it puts other sockets, lead nowhere where the command may not go.
func TestSocketRaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ws := filepath.Join(dir, "inside")
	rig.Must(t, os.Mkdir(ws, 0o755))
	var hits atomic.Int64
	hit := func(net.Conn) { hits.Add(1) }
	port := rig.Listen(t, "tcp4", "127.0.0.1:0", hit).(*net.TCPAddr).Port
	// The paths have the same length: ../outside and ./././sock.
	rig.Listen(t, "unix", dir+"/outside", hit)
	rig.Listen(t, "unix", ws+"/sock", func(net.Conn) {})
	c := Config{Policy: online(t, ws), Ports: []uint16{uint16(port)}}
	rig.Is(t, supervised(t, c, sandbox.LevelWrites, "sockets/races", ws, strconv.Itoa(port)), "", "out")
	rig.Is(t, hits.Load(), 0, "connections where the command may not go")
}

var _ = child("sockets/races", func(t rig.T, args []string) {
	agent := rig.Value(strconv.Atoi(args[1]))
	rig.Must(t, unix.Chdir(args[0]))
	server, own := listening(t, 0)
	go func() {
		for {
			fd, _, err := unix.Accept(server)
			if err != nil {
				return
			}
			unix.Close(fd)
		}
	}()
	length := 50 * time.Millisecond
	switch {
	case rig.Runs(rig.Nightly):
		length = 20 * time.Second
	case rig.Runs(rig.Merge):
		length = time.Second
	}
	inet := func(port int) []byte {
		return binary.BigEndian.AppendUint16([]byte{unix.AF_INET, 0}, uint16(port))
	}
	good, bad := append(inet(own.Port), 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), append(inet(agent), 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0)
	raceAddress(t, "TCP", unix.AF_INET, good, bad, length)
	raceAddress(t, "UNIX", unix.AF_UNIX, unixAddr("./././sock"), unixAddr("../outside"), length)
	raceDescriptor(t, bad, length)
})

// raceAddress connects while another thread, which no filter binds, rewrites the
// address.
func raceAddress(t rig.T, what string, family int, good, bad []byte, length time.Duration) {
	rig.Is(t, len(good), len(bad), "%s: the lengths of the addresses", what)
	addr := slices.Clone(good)
	race(t, what, length, func() { rewrite(addr, bad); rewrite(addr, good) }, func() error {
		fd := rig.Value(unix.Socket(family, unix.SOCK_STREAM, 0))
		defer unix.Close(fd)
		return rawCall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr[0])), uintptr(len(addr)))
	})
}

// race makes a call while another thread changes something. Success and EPERM have to occur, or there was no
// race.
func race(t rig.T, what string, length time.Duration, change func(), call func() error) (count map[error]int) {
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !stop.Load() {
			change()
		}
	}()
	count = map[error]int{}
	both := func() bool { return count[nil] > 0 && count[unix.EPERM] > 0 }
	for begun := time.Now(); time.Since(begun) < length || !both() && time.Since(begun) < sandboxtest.Enough/2; {
		count[call()]++
	}
	stop.Store(true)
	<-done
	rig.Is(t, both(), true, "%s: there was a race: %v", what, count)
	return count
}

// rewrite changes memory while the supervisor reads it. The race is intended.
//
//go:norace
func rewrite(addr, with []byte) {
	for i := range addr {
		addr[i] = with[i]
	}
}

// raceDescriptor connects to an address that only sockets for datagrams may use,
// with a number under which another thread puts sockets of both kinds.
func raceDescriptor(t rig.T, addr []byte, length time.Duration) {
	tcp := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0))
	udp := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))
	shared := rig.Value(unix.FcntlInt(uintptr(udp), unix.F_DUPFD, 100))
	count := race(t, "descriptors", length, func() { _, _ = unix.Dup3(tcp, shared, 0), unix.Dup3(udp, shared, 0) }, func() error {
		return rawCall(unix.SYS_CONNECT, uintptr(shared), uintptr(unsafe.Pointer(&addr[0])), uintptr(len(addr)))
	})
	rig.Is(t, len(count), 2, "outcomes in %v", count)
}

// TestOfSocket: what to ask for is the socket that a name leads to, unless that would not help.
func TestOfSocket(t *testing.T) {
	n := &Notifier{config: Config{Policy: &sandbox.Policy{Confined: true, Rules: []sandbox.Rule{
		{Path: "/", Access: sandbox.Read}, {Path: "/own", Access: sandbox.Denied, Origin: sandbox.Private}, {Path: "/vault", Access: sandbox.Denied},
	}}}}
	for _, tt := range []struct {
		kind             int
		name, path, want string
	}{
		{unix.SOCK_STREAM, "link", "/run/docker.sock", "connect to ./link: a command reaches only sockets that are named, or in folders that it may write, and in temporary folders only its own; add --socket /run/docker.sock"},
		{unix.SOCK_STREAM, "/vault/s", "/vault/s", "connect to /vault/s: the sandbox denies /vault; add --socket /vault/s"},
		{unix.SOCK_STREAM, "/own", "/own", "connect to /own: it belongs to the agent itself"},
		{unix.SOCK_DGRAM, "/dev/log", "", "connect to /dev/log: a command reaches no socket that takes datagrams"},
	} {
		r := n.ofSocket(&address{kind: tt.kind, path: tt.path}, tt.name)
		rig.Is(t, r.Line(refusals.Flags), "refused: "+tt.want, "%s", tt.name)
	}
}
