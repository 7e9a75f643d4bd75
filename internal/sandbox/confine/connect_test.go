package confine

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/internal/sandbox/supervise"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

const connectChild = "connect-child"

// startPuppet starts a puppet that has the network of the host and may write to
// root.
func startPuppet(t *testing.T, root string, limits Limits, agentPorts ...uint16) *puppet {
	t.Helper()
	row := row{"network", full(), true, sandbox.NetworkEnabled, limits}
	return startPuppetAs(t, row.command(t, root, "/proc/self/exe"), agentPorts...)
}

// startPuppetAs starts a puppet that is confined as c.
func startPuppetAs(t *testing.T, c confined, agentPorts ...uint16) *puppet {
	t.Helper()
	self := rig.Value(os.Executable())
	c.Argv = []string{self, connectChild}
	c.Env = []string{"GORACE=atexit_sleep_ms=0", "PATH=/usr/bin:/bin"}
	c.Stdin, c.ports = true, agentPorts
	a := &puppet{run: c.start(t)}
	a.until("ready\n")
	return a
}

// puppet is a confined process that does what the test asks it for, one thing
// after the other.
type puppet struct {
	*run
	n          int  // of the questions so far
	supervised bool // by a supervisor that manages its network
}

// ask makes the puppet do one thing and returns its answer: the name of an
// errno, or "ok", with more after it for some things.
func (a *puppet) ask(what ...any) string {
	a.t.Helper()
	a.n++
	line := strings.TrimSuffix(fmt.Sprintln(append([]any{a.n}, what...)...), "\n")
	if _, err := a.Write(a.t.Context(), strconv.Itoa(a.n), []byte(line+"\n")); err != nil {
		a.t.Fatal(err)
	}
	head := fmt.Sprintf("answer %d: ", a.n)
	a.until(head)
	a.until(fmt.Sprintf("answered %d\n", a.n))
	_, rest, _ := strings.Cut(a.text(), head)
	answer, _, _ := strings.Cut(rest, "\n")
	return answer
}

// want makes the puppet do one thing, and fails the test if the answer is another one.
func (a *puppet) want(answer string, what ...any) {
	a.t.Helper()
	if got := a.ask(what...); got != answer {
		a.t.Errorf("%v: %s, want %s", what, got, answer)
	}
}

// numbers are names in testdata/puppet.txt.
var numbers = map[string]any{
	"stream": unix.SOCK_STREAM, "stream_nonblock": unix.SOCK_STREAM | unix.SOCK_NONBLOCK, "dgram": unix.SOCK_DGRAM, "raw": unix.SOCK_RAW,
	"raw_cloexec": unix.SOCK_RAW | unix.SOCK_CLOEXEC, "seqpacket": unix.SOCK_SEQPACKET, "packet": 10, "AF_UNSPEC": unix.AF_UNSPEC,
	"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_PACKET": unix.AF_PACKET, "AF_NETLINK": unix.AF_NETLINK,
	"AF_VSOCK": unix.AF_VSOCK, "AF_SMC": unix.AF_SMC, "AF_TIPC": unix.AF_TIPC, "AF_RDS": unix.AF_RDS, "AF_ALG": unix.AF_ALG,
	"AF_BLUETOOTH": unix.AF_BLUETOOTH, "AF_XDP": unix.AF_XDP, "ICMP": unix.IPPROTO_ICMP, "TCP": unix.IPPROTO_TCP, "MPTCP": unix.IPPROTO_MPTCP,
	"SCTP": unix.IPPROTO_SCTP, "INET_DIAG": unix.NETLINK_INET_DIAG, "IP": unix.IPPROTO_IP, "IP_OPTIONS": unix.IP_OPTIONS,
}

// wantTable makes the puppet do what the rows of a table of testdata/puppet.txt say, one after the other.
func (a *puppet) wantTable(table string, names map[string]any) {
	a.t.Helper()
	for _, row := range rig.Rows(a.t, "testdata/puppet.txt", table, 2) {
		a.wantRow(row, names)
	}
}

// wantRow makes the puppet do what a row says.
func (a *puppet) wantRow(row []string, names map[string]any) {
	a.t.Helper()
	for i := range row {
		row[i] = os.Expand(row[i], func(name string) string {
			value, known := names[name]
			if !known {
				value, known = numbers[name]
			}
			if !known { // it is for a shell
				value = "$" + name
			}
			return fmt.Sprint(value)
		})
	}
	answer, told, differ := strings.Cut(row[1], " | ")
	if differ && a.supervised {
		answer = told
	}
	if answer == "-" {
		return
	}
	got := a.ask(row[0])
	rig.Is(a.t, slices.Contains(strings.Split(answer, " or "), got), true, "%s: %s, want %s", row[0], got, answer)
}

// connectChildMain is the main of a puppet: it reads from standard input what
// to do, a line for each thing, with the number of the question first.
func connectChildMain() int {
	fmt.Println("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Split(lines.Text(), " ")
		answer := func() {
			fmt.Printf("answer %s: %s\nanswered %s\n", words[0], perform(words[1], words[2:]), words[0])
		}
		if words[1] == "block" {
			go answer()
		} else {
			answer()
		}
	}
	return 0
}

// perform does one thing in the puppet and returns the answer.
func perform(what string, args []string) string {
	switch what {
	case "tcp", "tcp6", "udp", "nonblocking":
		return performInet(what, args)
	case "dial": // an address, a type of socket
		kind, _ := strconv.Atoi(args[1])
		return onInet(args[0], kind, func(fd int, to unix.Sockaddr) error { return unix.Connect(fd, to) })
	case "smc": // falls back to TCP
		return onSocket(unix.AF_SMC, unix.SOCK_STREAM, func(fd int) error { return unix.Connect(fd, inetSockaddr(args[0])) })
	case "fastopen":
		return onInet(args[0], unix.SOCK_STREAM, func(fd int, to unix.Sockaddr) error {
			return unix.Sendto(fd, []byte("hello"), unix.MSG_FASTOPEN, to)
		})
	case "take": // bind an address
		kind, _ := strconv.Atoi(args[1])
		return onInet(args[0], kind, func(fd int, at unix.Sockaddr) error {
			if at, ok := at.(*unix.SockaddrInet6); ok {
				_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
				return unix.Bind(fd, at)
			}
			return unix.Bind(fd, at)
		})
	case "undumpable":
		return outcome(unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
	case "name": // bind a path, or an abstract name after "@"; the answer has the socket's own name
		return takeName(args[0])
	case "unix", "block":
		return onSocket(unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
			return rawConnect(fd, sockaddrUnix(args[0]), -1)
		})
	case "seqpacket":
		return onSocket(unix.AF_UNIX, unix.SOCK_SEQPACKET, func(fd int) error {
			return rawConnect(fd, sockaddrUnix(args[0]), -1)
		})
	case "abstract":
		return onSocket(unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
			return rawConnect(fd, sockaddrUnix("\x00" + args[0])[:2+1+len(args[0])], -1)
		})
	case "raw": // domain, family, length, fd
		var n [3]int
		for i := range n {
			n[i], _ = strconv.Atoi(args[i])
		}
		return onSocket(n[0], unix.SOCK_STREAM, func(fd int) error {
			if len(args) > 3 {
				fd, _ = strconv.Atoi(args[3])
			}
			const storage = 128 // struct sockaddr_storage
			addr := make([]byte, storage+2)
			binary.NativeEndian.PutUint16(addr, uint16(n[1]))
			return rawConnect(fd, addr, n[2])
		})
	case "fault":
		return onSocket(unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
			_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), 8, 16)
			return errno
		})
	case "unmapped":
		return onSocket(unix.AF_INET, unix.SOCK_STREAM, func(fd int) error {
			_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), 0, 0)
			return errno
		})
	case "race":
		length, _ := time.ParseDuration(args[2])
		return race(unix.AF_UNIX, sockaddrUnix(args[0]), sockaddrUnix(args[1]), "EPERM", 0, length)
	}
	if answer, known := performOnOthers(what, args); known {
		return answer
	}
	if answer, known := performManaged(what, args); known {
		return answer
	}
	if answer, known := performTransparent(what, args); known {
		return answer
	}
	return sandboxtest.Attempt{Call: strings.Join(append([]string{what}, args...), " ")}.Try()
}

// onInet makes a socket of the family that the address has, and calls use with
// both.
func onInet(address string, kind int, use func(fd int, addr unix.Sockaddr) error) string {
	addr := inetSockaddr(address)
	domain := unix.AF_INET
	if _, ok := addr.(*unix.SockaddrInet6); ok {
		domain = unix.AF_INET6
	}
	return onSocket(domain, kind, func(fd int) error { return use(fd, addr) })
}

// inetSockaddr parses an address with a port, and a zone if there is one.
func inetSockaddr(address string) unix.Sockaddr {
	addr, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil
	}
	if addr.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
	}
	zone := uint32(0)
	if i, err := net.InterfaceByName(addr.Addr().Zone()); err == nil {
		zone = uint32(i.Index)
	}
	return &unix.SockaddrInet6{Port: int(addr.Port()), Addr: addr.Addr().As16(), ZoneId: zone}
}

// takeName binds a UNIX socket, looks at the file, listens and connects to it
// once. With the name "auto" it asks the kernel for an abstract name.
func takeName(name string) string {
	unix.Umask(0o027)
	var own string
	result := onSocket(unix.AF_UNIX, unix.SOCK_STREAM, func(fd int) error {
		addr := &unix.SockaddrUnix{Name: name}
		if name == "auto" {
			_, _, errno := unix.Syscall(unix.SYS_BIND, uintptr(fd), uintptr(unsafe.Pointer(&[]uint16{unix.AF_UNIX}[0])), 2)
			if errno != 0 {
				return errno
			}
		} else if err := unix.Bind(fd, addr); err != nil {
			return err
		}
		bound, err := unix.Getsockname(fd)
		if err != nil {
			return err
		}
		own = bound.(*unix.SockaddrUnix).Name
		if err := unix.Listen(fd, 1); err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Stat(own, &st); err != nil {
			return err
		}
		own = fmt.Sprintf(" %s %o", own, st.Mode&0o777)
		peer, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(peer)
		return unix.Connect(peer, addr)
	})
	return result + own
}

// outcome returns the answer for err.
func outcome(err error) string {
	errno, ok := errors.AsType[syscall.Errno](err)
	switch {
	case err == nil || ok && errno == 0:
		return "ok"
	case ok:
		return unix.ErrnoName(errno)
	}
	return err.Error()
}

// onSocket makes a socket and calls use with it.
func onSocket(domain, kind int, use func(fd int) error) string {
	fd, err := unix.Socket(domain, kind, 0)
	if err != nil {
		return "socket " + outcome(err)
	}
	defer unix.Close(fd)
	return outcome(use(fd))
}

// rawConnect does connect(2) with length bytes of addr; if length is negative,
// with all of them.
func rawConnect(fd int, addr []byte, length int) error {
	if length < 0 {
		length = len(addr)
	}
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&addr[0])), uintptr(length))
	if errno != 0 {
		return errno
	}
	return nil
}

// sockaddrUnix returns the address of the UNIX socket at path.
func sockaddrUnix(path string) []byte {
	return append(append(binary.NativeEndian.AppendUint16(nil, unix.AF_UNIX), path...), 0)
}

// performInet connects to a port of this host, and over TCP reads what the
// other side sends.
func performInet(what string, args []string) string {
	port, _ := strconv.Atoi(args[0])
	domain, kind := unix.AF_INET, unix.SOCK_STREAM
	var addr unix.Sockaddr = &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}
	switch what {
	case "tcp6":
		domain, addr = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}
	case "udp":
		kind = unix.SOCK_DGRAM
	case "nonblocking":
		kind |= unix.SOCK_NONBLOCK
	}
	var greeting string
	result := onSocket(domain, kind, func(fd int) error {
		err := unix.Connect(fd, addr)
		if what == "nonblocking" && err == unix.EINPROGRESS {
			greeting, err = " after EINPROGRESS", nil
		}
		if what == "nonblocking" && err == nil {
			fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			_, _ = unix.Poll(fds, 10_000)
		}
		if err != nil || what == "udp" {
			return err
		}
		b := make([]byte, 100)
		n, err := unix.Read(fd, b)
		greeting += " " + string(b[:max(n, 0)])
		return err
	})
	return result + greeting
}

// race connects again and again while another thread rewrites the address: from the good one to the bad
// one, which is refused with that errno, and back. It does so as often and for as long as it is told, and
// then until both outcomes were seen.
func race(domain int, good, bad []byte, refused string, tries int, length time.Duration) string {
	if len(good) != len(bad) {
		return "the addresses differ in length"
	}
	addr := slices.Clone(good)
	var stop atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		for !stop.Load() {
			rewrite(addr, bad)
			rewrite(addr, good)
		}
	}()
	count := map[string]int{}
	both := func() bool { return count["ok"] > 0 && count[refused] > 0 }
	begun := time.Now()
	for i := 0; i < tries || time.Since(begun) < length || !both() && time.Since(begun) < sandboxtest.Enough/2; i++ {
		count[onSocket(domain, unix.SOCK_STREAM, func(fd int) error { return rawConnect(fd, addr, -1) })]++
	}
	stop.Store(true)
	<-done
	return fmt.Sprint("ok ", count["ok"] > 0, " ", count[refused] > 0)
}

// rewrite changes memory while the kernel, or init, reads it. The race is
// intended.
//
//go:norace
func rewrite(addr, with []byte) {
	for i := range addr {
		addr[i] = with[i]
	}
}

// greeter listens until the test ends, and says hello to whoever connects.
func greeter(t *testing.T, network, address string) net.Addr {
	t.Helper()
	return rig.Listen(t, network, address, func(conn net.Conn) { _, _ = io.WriteString(conn, "hello") })
}

// unheard returns a port of 127.0.0.1 that is taken until the test ends, and at which nobody
// listens. The port of a listener that was closed could become another test's.
func unheard(t *testing.T) int {
	t.Helper()
	fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	t.Cleanup(func() { unix.Close(fd) })
	rig.Must(t, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	at := rig.Value(unix.Getsockname(fd))
	return at.(*unix.SockaddrInet4).Port
}

// TestConnect: a command with the network connects to TCP and to UNIX sockets
// in its writable root, and not to other UNIX sockets. Every other call fails
// as the kernel would make it fail.
func TestConnect(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	// With a file in it .git is protected itself, and no placeholder stands for
	// it.
	sandboxtest.Tree(t, root, "sub/", ".git/HEAD")
	greeter(t, "unix", filepath.Join(outside, "early"))
	a := startPuppet(t, root, Limits{})

	tcp := port(greeter(t, "tcp4", "127.0.0.1:0"))
	tcp6 := port(greeter(t, "tcp6", "[::1]:0"))
	greeter(t, "unix", filepath.Join(root, "sock"))
	greeter(t, "unix", filepath.Join(root, "sub", "sock"))
	greeter(t, "unix", filepath.Join(root, ".git", "sock"))
	greeter(t, "unixpacket", filepath.Join(root, "packet"))
	greeter(t, "unix", filepath.Join(outside, "sock"))
	abstract := greeter(t, "unix", fmt.Sprintf("@execagent-%d", os.Getpid())).String()[1:]
	sandboxtest.Tree(t, root, "out -> "+outside+"/sock", "in -> sub/sock", "dir -> "+outside, "plain")
	sandboxtest.Tree(t, outside, "back -> "+root+"/sock")
	a.wantTable("connect", map[string]any{
		"root": root, "outside": outside, "base": filepath.Base(outside), "tcp": tcp, "tcp6": tcp6, "closed": unheard(t), "abstract": abstract,
	})
}

// TestConnectTemporary: in a temporary directory there are sockets of a user's
// terminals and displays. A command cannot connect to one that was there before
// it was started, under whatever name.
func TestConnectTemporary(t *testing.T) {
	t.Parallel()
	root, tmp := t.TempDir(), t.TempDir()
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, tmp, 0, unix.STATX_BTIME, &st); err != nil || st.Mask&unix.STATX_BTIME == 0 {
		t.Skipf("the file system of %s keeps no birth times (%v)", tmp, err)
	}
	greeter(t, "unix", tmp+"/old")
	greeter(t, "unix", tmp+"/older")
	greeter(t, "unix", root+"/old")
	profile := sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
			{Place: sandbox.PlaceTmpDir, Access: sandbox.Write},
		},
		TmpDir: tmp, Network: sandbox.NetworkEnabled,
	}
	start := func(profile sandbox.Profile, limits Limits) *puppet {
		c := confined{policy: policyOf(t, profile), backend: full(), limits: limits}
		c.Dir = root
		return startPuppetAs(t, c)
	}
	for _, limits := range []Limits{{}, {CPUSeconds: 3600}} {
		a := start(profile, limits)
		name := fmt.Sprintf("%s/new%d", tmp, limits.CPUSeconds)
		greeter(t, "unix", name)
		a.wantTable("temporary", map[string]any{"root": root, "tmp": tmp, "new": name})
	}
	// The same holds for paths below the temporary directory that the policy
	// names as writable, if no directory was there: the command can link an old
	// socket to such a path.
	put(t, tmp+"/file", "")
	nested := profile
	nested.Entries = append(slices.Clone(profile.Entries),
		sandbox.Entry{Place: sandbox.PlacePath, Path: tmp + "/none", Access: sandbox.Write},
		sandbox.Entry{Place: sandbox.PlacePath, Path: tmp + "/file", Access: sandbox.Write})
	a := start(nested, Limits{})
	for _, script := range []string{"mkdir " + tmp + "/none; ln " + tmp + "/old " + tmp + "/none/old", "rm -f " + tmp + "/file; ln " + tmp + "/old " + tmp + "/file; true"} {
		rig.Is(t, a.ask("shell", script), "ok", "%s", script)
	}
	for _, name := range []string{"/none/old", "/file"} {
		if got := a.ask("unix", tmp+name); got != "EPERM" && got != "ECONNREFUSED" {
			t.Errorf("%s: %s", name, got)
		}
	}
	// If the policy names the directory itself it does not count as temporary.
	profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: tmp, Access: sandbox.Write})
	rig.Is(t, start(profile, Limits{}).ask("unix", tmp+"/old"), "ok", "in a directory that was named")
}

// fullListener listens at path until the test ends. Its backlog is full, so
// connecting to it blocks until the test accepts from fd.
func fullListener(t *testing.T, path string) (fd int) {
	t.Helper()
	fd = rig.Value(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	t.Cleanup(func() { unix.Close(fd) })
	rig.Must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0))
	filler := rig.Value(net.Dial("unix", path))
	t.Cleanup(func() { filler.Close() })
	return fd
}

// TestConnectBlocks: a call that blocks holds up no other call, and its process
// can be killed.
func TestConnectBlocks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	listener := fullListener(t, filepath.Join(root, "full"))
	greeter(t, "unix", filepath.Join(root, "sock"))
	a := startPuppet(t, root, Limits{})
	a.n++
	blocked := fmt.Sprintf("answer %d: ", a.n)
	rig.Must(t, rig.Err(a.Write(t.Context(), "block", fmt.Appendf(nil, "%d block %s/full\n", a.n, root))))
	for range 10 {
		a.want("ok", "unix", root+"/sock")
	}
	rig.Is(t, strings.Contains(a.text(), blocked), false, "the call did not block: %q", a.text())
	accepted, _, err := unix.Accept(listener)
	rig.Must(t, err)
	defer unix.Close(accepted)
	a.until(blocked + "ok\n")
	rig.Must(t, rig.Err(a.Write(t.Context(), "block again", fmt.Appendf(nil, "99 block %s/full\n", root))))
	a.want("ok", "unix", root+"/sock")
	a.Terminate()
	_, code := a.end()
	rig.Is(t, code, killed, "code")
}

// TestConnectKeepsNothingOpen: calls that init refuses leave no descriptor open
// in it.
func TestConnectKeepsNothingOpen(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	fullListener(t, root+"/full")
	a := startPuppet(t, root, Limits{})
	descriptors := func() int {
		return len(rig.Value(os.ReadDir(fmt.Sprintf("/proc/%d/fd", a.PID()))))
	}
	sent := 0
	answers := func(text string) int { return strings.Count(a.text(), text) }
	block := func(name string) {
		rig.Must(t, rig.Err(a.Write(t.Context(), fmt.Sprint("block", sent), fmt.Appendf(nil, "b%d block %s\n", sent, name))))
		sent++
		sandboxtest.Eventually(t, "a call is refused, or blocks because it is one of the first", func() bool { return sent-answers("answered b") <= supervise.MaxBlocked })
	}
	// As many calls block as may, with three descriptors each.
	for range supervise.MaxBlocked + 10 {
		block("full")
	}
	a.want("ENOENT", "unix", "none")
	blocked := descriptors()
	rig.Is(t, blocked > 3*supervise.MaxBlocked, true, "descriptors: %d", blocked)
	for range 50 {
		block("full")
		block(root + "/full")
		rig.Is(t, strings.Fields(a.ask("name", "socket"))[0], "EAGAIN", "bind beside them")
		a.want("ENOENT", "unix", "none")
	}
	rig.Is(t, sent-answers("answered b"), supervise.MaxBlocked, "calls that block")
	rig.Is(t, answers(": EAGAIN\nanswered b"), sent-supervise.MaxBlocked, "calls that are refused")
	sandboxtest.Eventually(t, "init has closed what it opened", func() bool { return descriptors() <= blocked })
}

// TestConnectUndumpable: init cannot duplicate the socket of a process that is
// not dumpable, so the calls of such a process fail.
func TestConnectUndumpable(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	greeter(t, "unix", root+"/sock")
	a := startPuppet(t, root, Limits{})
	a.wantTable("undumpable", nil)
}

// raceTime returns how long a command races with its supervisor.
func raceTime() time.Duration {
	switch {
	case rig.Runs(rig.Nightly):
		return time.Minute
	case rig.Runs(rig.Merge):
		return 2 * time.Second
	}
	return 100 * time.Millisecond
}

// TestConnectRace: a command that changes the address while init judges it is
// connected to what init has judged, or refused.
func TestConnectRace(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	greeter(t, "unix", filepath.Join(root, "sock"))
	a := startPuppet(t, root, Limits{})
	l := rig.Value(net.Listen("unix", filepath.Join(outside, "sock")))
	defer l.Close()
	a.want("ok true true", "race", filepath.Join(root, "sock"), filepath.Join(outside, "sock"), raceTime())
	rig.Must(t, l.(*net.UnixListener).SetDeadline(time.Now()))
	if conn, err := l.Accept(); err == nil {
		conn.Close()
		t.Error("a call got through")
	}
}
