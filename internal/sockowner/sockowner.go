// Package sockowner asks the kernel about the TCP sockets of this host: who owns the other end of a
// connection, and which ports listen. Linux only.
package sockowner

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// ErrUnknown says that there is no such socket here, or that it has no owner any more,
// since its process has closed it.
var ErrUnknown = errors.New("whose socket it is cannot be told")

// Of returns the uid of the user who has made the socket at the other end of conn. An
// error means that the kernel does not tell, also because that end is closed by now.
func Of(conn *net.TCPConn) (uid int, err error) {
	// The other end's own address is our remote one.
	end, peer := addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	uid, err = askKernel(end, peer)
	if err == nil || errors.Is(err, ErrUnknown) {
		return uid, err
	}
	// A filter may refuse netlink sockets.
	return readTable(end, peer)
}

// addrPort returns an address of TCP, without the form that IPv6 has for one of IPv4.
func addrPort(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}

// Numbers and sizes of linux/inet_diag.h and linux/sock_diag.h, sock_diag(7).
const (
	sockDiagByFamily = 20
	sizeRequest      = 56 // struct inet_diag_req_v2
	sizeMessage      = 72 // struct inet_diag_msg
	offsetFamily     = 0
	offsetID         = 4
	offsetUID        = 64
	offsetInode      = 68
)

// askKernel looks the one socket up.
func askKernel(end, peer netip.AddrPort) (uid int, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, request(end, peer), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, os.Getpagesize())
	for {
		size, _, err := unix.Recvfrom(fd, answer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return 0, os.NewSyscallError("recvfrom", err)
		}
		return decode(answer[:size], end, peer)
	}
}

// request is the question: struct nlmsghdr and struct inet_diag_req_v2. Without
// NLM_F_DUMP it is about exactly one socket.
func request(end, peer netip.AddrPort) []byte {
	family := byte(unix.AF_INET)
	if end.Addr().Is6() {
		family = unix.AF_INET6
	}
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+sizeRequest)
	b = binary.NativeEndian.AppendUint16(b, sockDiagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // no sequence number and no port: there is one request
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 0xffffffff) // any state
	b = appendID(b, end, peer)
	b = binary.NativeEndian.AppendUint32(b, 0)          // any interface
	return append(b, slices.Repeat([]byte{0xff}, 8)...) // INET_DIAG_NOCOOKIE
}

// appendID appends ports and addresses, as struct inet_diag_sockid begins.
func appendID(b []byte, end, peer netip.AddrPort) []byte {
	b = binary.BigEndian.AppendUint16(b, end.Port())
	b = binary.BigEndian.AppendUint16(b, peer.Port())
	for _, a := range []netip.Addr{end.Addr(), peer.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	return b
}

// decode reads the answer, which has to be about that very socket.
func decode(answer []byte, end, peer netip.AddrPort) (uid int, err error) {
	messages, err := syscall.ParseNetlinkMessage(answer)
	if err != nil || len(messages) == 0 {
		return 0, fmt.Errorf("a netlink answer of %d bytes: %w", len(answer), unix.EPROTO)
	}
	m := messages[0]
	if m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4 {
		errno := syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data)))
		if errno == unix.ENOENT {
			return 0, ErrUnknown
		}
		return 0, os.NewSyscallError("sock_diag", errno)
	}
	if m.Header.Type != sockDiagByFamily || len(m.Data) < sizeMessage {
		return 0, fmt.Errorf("a netlink answer of type %d: %w", m.Header.Type, unix.EPROTO)
	}
	// Where there is no such connection the kernel answers with a listener. A socket of
	// IPv6 may have a connection of IPv4.
	from, to := readID(m.Data[offsetID:], m.Data[offsetFamily] == unix.AF_INET6)
	inode := binary.NativeEndian.Uint32(m.Data[offsetInode:])
	if from != end || to != peer || inode == 0 {
		return 0, ErrUnknown
	}
	return owner(binary.NativeEndian.Uint32(m.Data[offsetUID:]))
}

// readID reads what appendID appends.
func readID(b []byte, isIPv6 bool) (end, peer netip.AddrPort) {
	addr := func(field []byte) netip.Addr {
		if isIPv6 {
			return netip.AddrFrom16([16]byte(field)).Unmap()
		}
		return netip.AddrFrom4([4]byte(field[:4]))
	}
	return netip.AddrPortFrom(addr(b[4:20]), binary.BigEndian.Uint16(b)),
		netip.AddrPortFrom(addr(b[20:36]), binary.BigEndian.Uint16(b[2:]))
}

// owner returns the uid that the kernel has given, unless that stands for everybody who
// is not known here.
func owner(uid uint32) (int, error) {
	if linux.IsNobody(uid) {
		return 0, ErrUnknown
	}
	return int(uid), nil
}

// readTable looks the socket up in the tables of all connections of the host.
func readTable(end, peer netip.AddrPort) (uid int, err error) {
	// That of IPv6 also has connections of IPv4.
	for _, name := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		uid, err = readFile(name, end, peer)
		if !errors.Is(err, errNotThere) && !errors.Is(err, fs.ErrNotExist) {
			return uid, err
		}
	}
	return 0, ErrUnknown
}

func readFile(name string, end, peer netip.AddrPort) (uid int, err error) {
	table, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	return find(table, end, peer)
}

// errNotThere says that a table does not have the socket.
var errNotThere = errors.New("there is no such socket")

// maxLine bounds a line of the table, in bytes.
const maxLine = 1 << 10

// find finds the connection in a table, whose lines are as in proc_pid_net(5).
func find(table io.Reader, end, peer netip.AddrPort) (uid int, err error) {
	const local, remote, user, inode = 1, 2, 7, 9
	from, to := inTable(end), inTable(peer)
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || !slices.Contains(from, fields[local]) || !slices.Contains(to, fields[remote]) {
			continue
		}
		uid, err := strconv.ParseUint(fields[user], 10, 32)
		if err != nil || fields[inode] == "0" {
			return 0, ErrUnknown
		}
		return owner(uint32(uid))
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errNotThere
}

// inTable returns an address in the forms that the tables have for it: the words of the
// address as the machine stores them, and the port.
func inTable(a netip.AddrPort) []string {
	form := func(raw []byte) string {
		for i := 0; i < len(raw); i += 4 {
			binary.BigEndian.PutUint32(raw[i:], binary.NativeEndian.Uint32(raw[i:]))
		}
		return strings.ToUpper(hex.EncodeToString(raw)) + fmt.Sprintf(":%04X", a.Port())
	}
	wide := a.Addr().As16()
	return []string{form(a.Addr().AsSlice()), form(wide[:])}
}
