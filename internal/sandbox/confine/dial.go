package confine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/procs"
)

// An init also makes the connections that a policy has to allow. One of its threads,
// confined as a command would be, makes the socket and connects it; nothing
// else decides whether the connection is allowed. The init sends the socket on one
// more descriptor, and ends.
//
//	agent ──► init ── T1, confined: socket(2), connect(2)
//	  ▲         │
//	  └─────────┘ result: the socket, or why there is none
//
// Threads of init that are not confined look up host names, in the command's view
// and namespaces. They do so only after T1 could make a socket, because a
// command without a network may not look up names.

// Endpoint is an address to connect to.
type Endpoint struct {
	Network string // tcp or unix
	Target  string // HOST:PORT, or an absolute path
}

const (
	// resultFD is a SEQPACKET socket, to which an init that connects sends the outcome.
	resultFD = leashFD + 1
	// maxResult bounds a packet on that socket, in bytes.
	maxResult = 1 << 10
)

// The first byte of the packet.
const (
	resultSocket = 's' // the descriptor comes with the packet
	resultErrno  = 'e' // 4 bytes of errno, and the name of the call
	resultText   = 't' // the reason in words
)

// Connecting is an attempt to connect to an endpoint from inside a sandbox.
type Connecting struct {
	held     *Held
	endpoint Endpoint
	theirs   *os.File // nil once the stage has it
	result   *net.UnixConn
}

// ErrNoResult is the error of [Connecting.Await] for an init that has ended without
// a result. It has written the reason to stderr.
var ErrNoResult = errors.New("the sandbox has ended before it connected")

// Connect prepares a connection from inside the sandbox. The caller starts a process
// with the stage that [Connecting.Stage] makes, awaits the result, and closes the process
// and the Connecting.
func (h *Held) Connect(e Endpoint) (*Connecting, error) {
	if h.gate != nil {
		return nil, errConnects
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socketpair", err)
	}
	ours := os.NewFile(uintptr(ends[0]), "result")
	defer ours.Close() // FileConn has its own
	theirs := os.NewFile(uintptr(ends[1]), "result")
	result, err := net.FileConn(ours)
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	return &Connecting{held: h, endpoint: e, theirs: theirs, result: result.(*net.UnixConn)}, nil
}

// Stage makes the stage that connects, for [procs.Spec.Stage].
func (c *Connecting) Stage(procs.Program) (*procs.Stage, error) {
	if c.held.refusal != nil {
		return nil, c.held.refusal
	}
	command := c.held.command
	command.Endpoint, command.NewSession = c.endpoint, true
	stage, err := command.Prepare()
	if err != nil {
		return nil, err
	}
	stage.Files = append(stage.Files, c.theirs)
	c.theirs = nil
	return stage, nil
}

// Await returns the connection, or an error. If a system call has failed the error wraps its errno.
func (c *Connecting) Await(ctx context.Context) (net.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.result.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	data, control := make([]byte, maxResult), make([]byte, unix.CmsgSpace(4))
	n, size, _, _, err := c.result.ReadMsgUnix(data, control)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, context.Cause(ctx)
	case err != nil || n == 0:
		return nil, ErrNoResult
	}
	return decodeResult(data[:n], control[:size])
}

// Close releases the sockets, once the result is no longer needed.
func (c *Connecting) Close() {
	_ = c.result.Close()
	if c.theirs != nil {
		_ = c.theirs.Close()
	}
}

// decodeResult reads the packet that an init has sent.
func decodeResult(data, control []byte) (net.Conn, error) {
	switch what, rest := data[0], data[1:]; {
	case what == resultErrno && len(rest) >= 4:
		return nil, os.NewSyscallError(string(rest[4:]), syscall.Errno(binary.LittleEndian.Uint32(rest)))
	case what == resultText:
		return nil, errors.New(string(rest))
	case what != resultSocket:
		return nil, fmt.Errorf("result %q: %w", what, unix.EPROTO)
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) != 1 {
		return nil, fmt.Errorf("the result has %d control messages: %w", len(messages), unix.EPROTO)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return nil, fmt.Errorf("the result has %d descriptors: %w", len(fds), unix.EPROTO)
	}
	socket := os.NewFile(uintptr(fds[0]), "socket")
	defer socket.Close() // FileConn has its own
	return net.FileConn(socket)
}

// connects reports whether this init connects to an endpoint and runs no program.
func (c *config) connects() bool { return c.Endpoint != (Endpoint{}) }

// connect connects to the endpoint as the command would have to, in its view.
func (c *config) connect() error {
	t, err := c.prepare(roleConnect)
	if err != nil {
		return err
	}
	if err := t.launch((*target).startConnecting); err != nil {
		return err
	}
	t.supervisor.finish()
	return nil
}

// startConnecting connects on a confined thread.
func (t *target) startConnecting() error {
	return t.config.pass(onThreadOfItsOwn(func() error {
		if err := t.confineHere(); err != nil {
			return err
		}
		if t.listener > 0 {
			t.serve()
		}
		return t.config.Endpoint.connectHere()
	}))
}

// connectOnly connects under a policy that restricts only the network.
func (c *config) connectOnly() error {
	return c.pass(onThreadOfItsOwn(func() error {
		t := &target{config: c, policy: c.Policy}
		if err := t.addLayers(); err != nil {
			return err
		}
		return c.Endpoint.connectHere()
	}))
}

// pass sends the agent the outcome of connectHere. It returns any other error, which is an error of
// the sandbox.
func (c *config) pass(outcome error) error {
	connected, ok := errors.AsType[*connected](outcome)
	if !ok {
		return outcome
	}
	packet := []byte{resultSocket}
	var rights []byte
	errno, isErrno := errors.AsType[syscall.Errno](connected.err)
	switch {
	case connected.err == nil:
		rights = unix.UnixRights(connected.fd)
	case isErrno:
		packet = binary.LittleEndian.AppendUint32([]byte{resultErrno}, uint32(errno))
		packet = append(packet, connected.call...)
	default:
		packet = append([]byte{resultText}, connected.err.Error()...)
		packet = packet[:min(len(packet), maxResult)]
	}
	return os.NewSyscallError("sendmsg", unix.Sendmsg(resultFD, packet, rights, nil, 0))
}

// connected is the outcome of connectHere. It is an error, so that the function that runs on a
// thread of its own can return it.
type connected struct {
	fd   int
	call string // the call that has failed
	err  error
}

func (c *connected) Error() string { return "the outcome of a connection" }

func failed(call string, err error) *connected { return &connected{call: call, err: err} }

// connectHere makes a socket on the calling thread and connects it there. It never returns nil.
func (e Endpoint) connectHere() *connected {
	if e.Network == "unix" {
		return connectSocket(unix.AF_UNIX, &unix.SockaddrUnix{Name: e.Target})
	}
	// Without a network this call fails, and no name is looked up.
	probe, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("socket", err)
	}
	unix.Close(probe)
	addresses, err := e.resolve()
	if err != nil {
		return failed("lookup", err)
	}
	outcome := failed("lookup", &net.DNSError{Err: "no such host", Name: e.Target, IsNotFound: true})
	for _, a := range addresses {
		if outcome = connectSocket(a.domain, a.sockaddr); outcome.err == nil {
			break
		}
	}
	return outcome
}

func connectSocket(domain int, to unix.Sockaddr) *connected {
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return failed("socket", err)
	}
	for {
		// An interrupted connect goes on, and the next call waits for it.
		switch err = unix.Connect(fd, to); err {
		case unix.EINTR, unix.EALREADY:
			continue
		case nil, unix.EISCONN:
			return &connected{fd: fd}
		}
		unix.Close(fd)
		return failed("connect", err)
	}
}

// inetAddress is one address of a host.
type inetAddress struct {
	domain   int
	sockaddr unix.Sockaddr
}

// resolve looks up the host on another thread, because the calling one is confined.
func (e Endpoint) resolve() (addresses []inetAddress, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		addresses, err = e.lookUp()
	}()
	<-done
	return addresses, err
}

func (e Endpoint) lookUp() ([]inetAddress, error) {
	host, service, err := net.SplitHostPort(e.Target)
	if err != nil {
		return nil, err
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return nil, err
	}
	port := int(n)
	found := conns.Loopback(host)
	if found == nil {
		if found, err = net.DefaultResolver.LookupNetIP(context.Background(), "ip", host); err != nil {
			return nil, err
		}
	}
	addresses := make([]inetAddress, len(found))
	for i, ip := range found {
		if ip = ip.Unmap(); ip.Is4() {
			addresses[i] = inetAddress{unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: ip.As4()}}
			continue
		}
		zone, err := zoneOf(ip.Zone())
		if err != nil {
			return nil, err
		}
		addresses[i] = inetAddress{unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: ip.As16(), ZoneId: zone}}
	}
	return addresses, nil
}

// zoneOf returns the number of the interface that an IPv6 address names, 0 without one.
func zoneOf(name string) (uint32, error) {
	if name == "" {
		return 0, nil
	}
	found, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return uint32(found.Index), nil
}
