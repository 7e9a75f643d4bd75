package sockowner

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// Listener is a TCP port of this host that listens.
type Listener struct {
	Port    uint16
	Address netip.Addr
	UID     int    // -1: unknown
	PID     int    // the lowest of the processes that have it; 0: unknown
	Program string // of PID; "": unknown
}

const (
	stateListen = 10 // TCP_LISTEN of linux/tcp_states.h
	// tcpTable has the sockets of IPv4 (proc_pid_net(5)). It is missing only where procfs is hidden.
	tcpTable = "/proc/net/tcp"
	// maxSockets is how many sockets that listen are looked at.
	maxSockets = 1 << 16
	// maxDescriptors is how many descriptors of processes are looked at, to find who has the sockets.
	maxDescriptors = 1 << 18
)

// socket is a socket that listens, by its number in the kernel.
type socket struct {
	port    uint16
	address netip.Addr
	uid     int
	inode   uint32
}

// Listeners returns the TCP ports that listen, sorted by port and address: at most most of them. more says
// that there are others.
func Listeners(most int) (found []Listener, more bool, err error) {
	open, more, err := listening()
	if err != nil {
		return nil, false, err
	}
	found, more = named(open, holders(open, nil), most, more)
	return found, more, nil
}

// Tells reports whether this host tells which ports listen: by netlink, which a filter may refuse, or in procfs,
// which may be hidden. It only opens them, because a list takes most of a millisecond.
func Tells() bool {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err == nil {
		return unix.Close(fd) == nil
	}
	table, err := os.Open(tcpTable)
	if err == nil {
		table.Close()
	}
	return err == nil
}

// listening returns the sockets that listen, in the order of their numbers. more says that there are others.
func listening() (open []socket, more bool, err error) {
	for _, family := range []byte{unix.AF_INET, unix.AF_INET6} {
		var others bool
		open, others, err = dump(open, family)
		more = more || others
		if err != nil {
			// A filter may refuse netlink sockets.
			open, more, err = readListeners()
			break
		}
	}
	sort.Slice(open, func(i, j int) bool { return open[i].inode < open[j].inode })
	return open, more, err
}

// dump asks the kernel for the sockets of a family that listen.
func dump(open []socket, family byte) (_ []socket, more bool, err error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_INET_DIAG)
	if err != nil {
		return nil, false, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	b := binary.NativeEndian.AppendUint32(nil, unix.SizeofNlMsghdr+sizeRequest)
	b = binary.NativeEndian.AppendUint16(b, sockDiagByFamily)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	b = append(b, make([]byte, 8)...)
	b = append(b, family, unix.IPPROTO_TCP, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, 1<<stateListen)
	b = append(b, make([]byte, sizeRequest-8)...) // any address
	if err := unix.Sendto(fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, false, os.NewSyscallError("sendto", err)
	}
	answer := make([]byte, 64<<10)
	for {
		size, _, err := unix.Recvfrom(fd, answer, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, false, os.NewSyscallError("recvfrom", err)
		}
		messages, err := syscall.ParseNetlinkMessage(answer[:size])
		if err != nil || len(messages) == 0 {
			return nil, false, fmt.Errorf("a netlink answer of %d bytes: %w", size, unix.EPROTO)
		}
		for _, m := range messages {
			switch {
			case m.Header.Type == unix.NLMSG_DONE:
				return open, false, nil
			case m.Header.Type == unix.NLMSG_ERROR && len(m.Data) >= 4:
				return nil, false, os.NewSyscallError("sock_diag", syscall.Errno(-int32(binary.NativeEndian.Uint32(m.Data))))
			case m.Header.Type != sockDiagByFamily || len(m.Data) < sizeMessage:
				return nil, false, fmt.Errorf("a netlink answer of type %d: %w", m.Header.Type, unix.EPROTO)
			case len(open) == maxSockets:
				return open, true, nil
			}
			at, _ := readID(m.Data[offsetID:], m.Data[offsetFamily] == unix.AF_INET6)
			open = append(open, newSocket(at, binary.NativeEndian.Uint32(m.Data[offsetUID:]), binary.NativeEndian.Uint32(m.Data[offsetInode:])))
		}
	}
}

func newSocket(at netip.AddrPort, uid, inode uint32) socket {
	s := socket{at.Port(), at.Addr(), int(uid), inode}
	if linux.IsNobody(uid) {
		s.uid = -1
	}
	return s
}

// readListeners returns the sockets that listen from the tables of procfs.
func readListeners() (open []socket, more bool, err error) {
	for _, name := range []string{tcpTable, "/proc/net/tcp6"} {
		table, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && name != tcpTable {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, false, err
		}
		open, more, err = listenersIn(open, table)
		table.Close()
		if err != nil || more {
			return open, more, err
		}
	}
	return open, false, nil
}

// listenersIn reads a table, whose lines are as in proc_pid_net(5).
func listenersIn(open []socket, table *os.File) (_ []socket, more bool, err error) {
	const local, state, user, inode = 1, 3, 7, 9
	lines := bufio.NewScanner(table)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= inode || fields[state] != "0A" {
			continue
		}
		at, ok := fromTable(fields[local])
		uid, badUser := strconv.ParseUint(fields[user], 10, 32)
		number, badInode := strconv.ParseUint(fields[inode], 10, 32)
		if !ok || badUser != nil || badInode != nil {
			continue
		}
		if len(open) == maxSockets {
			return open, true, nil
		}
		open = append(open, newSocket(at, uint32(uid), uint32(number)))
	}
	return open, false, lines.Err()
}

// fromTable is the reverse of inTable.
func fromTable(text string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(host)
	if err != nil || len(raw) != 4 && len(raw) != 16 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	n, err := strconv.ParseUint(port, 16, 16)
	addr, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok && err == nil
}

// named makes the list of sockets that listen, with the processes that have them.
func named(open []socket, holders map[uint32]int, most int, more bool) (found []Listener, _ bool) {
	type place struct {
		port    uint16
		address netip.Addr
	}
	at := map[place]int{}
	for _, s := range open {
		i, known := at[place{s.port, s.address}]
		pid := holders[s.inode]
		switch {
		case !known:
			at[place{s.port, s.address}] = len(found)
			found = append(found, Listener{Port: s.port, Address: s.address, UID: s.uid, PID: pid})
		case pid > 0 && (found[i].PID == 0 || pid < found[i].PID):
			found[i].PID = pid
		}
	}
	for i := range found {
		found[i].Program = programOf(found[i].PID)
	}
	sort.Slice(found, func(i, j int) bool {
		a, b := &found[i], &found[j]
		return cmp.Or(cmp.Compare(a.Port, b.Port), a.Address.Compare(b.Address)) < 0
	})
	if len(found) > most {
		found, more = found[:most], true
	}
	return found, more
}

// holders returns the lowest process that has each of these sockets, of those that this process may look into, or 0. It
// does not look for the holders of sockets that are known.
func holders(open []socket, known map[uint32]int) map[uint32]int {
	found, wanted := map[uint32]int{}, map[uint32]bool{}
	for _, s := range open {
		pid, is := known[s.inode]
		if found[s.inode] = pid; !is {
			wanted[s.inode] = true
		}
	}
	if len(wanted) == 0 {
		return found
	}
	processes, _ := os.ReadDir("/proc") // without it nobody is seen
	var pids []int
	for _, p := range processes {
		if pid, err := strconv.Atoi(p.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	looked := 0
	for _, pid := range pids {
		if len(wanted) == 0 || looked >= maxDescriptors {
			break
		}
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, err := os.Open(dir)
		if err != nil {
			continue
		}
		for len(wanted) > 0 && looked < maxDescriptors {
			names, _ := fds.Readdirnames(1024)
			for _, name := range names {
				link, _ := os.Readlink(dir + "/" + name)
				text, ok := strings.CutPrefix(link, "socket:[")
				if !ok {
					continue
				}
				inode, err := strconv.ParseUint(strings.TrimSuffix(text, "]"), 10, 32)
				if err == nil && wanted[uint32(inode)] {
					found[uint32(inode)] = pid
					delete(wanted, uint32(inode))
				}
			}
			if looked += len(names); len(names) == 0 {
				break
			}
		}
		fds.Close()
	}
	return found
}

// programOf returns the name of the program of a process, or "".
func programOf(pid int) string {
	if pid == 0 {
		return ""
	}
	path, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil {
		return ""
	}
	return strings.ToValidUTF8(filepath.Base(strings.TrimSuffix(path, " (deleted)")), "\uFFFD")
}
