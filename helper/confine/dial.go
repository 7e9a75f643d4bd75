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

	"github.com/execagent/execagent/procs"
)

// A connection that a policy has to allow is made by an init too: a thread of it
// that is confined as a command would be makes the socket and connects it, and
// nothing else decides whether it may. The init passes the socket on, on one more
// descriptor, and ends.
//
//	agent ──► init ── T1, confined: socket(2), connect(2)
//	  ▲         │
//	  └─────────┘ result: the socket, or why there is none
//
// A name of a host is looked up by threads of init that are not confined, but in
// the command's view and its namespaces, and only once T1 has been given a socket:
// a command without a network asks nobody for names.

// Endpoint is what to connect to.
type Endpoint struct {
	Network string // tcp or unix
	Target  string // HOST:PORT, or an absolute path
}

const (
	// resultFD is where an init that connects tells the outcome, a SEQPACKET socket.
	resultFD = leashFD + 1
	// maxResult bounds a packet of that, in bytes.
	maxResult = 1 << 10
)

// The first byte of the packet.
const (
	resultSocket = 's' // the packet has the descriptor
	resultErrno  = 'e' // 4 bytes of errno, and the name of the call
	resultText   = 't' // why, in words
)

// Connecting is an endpoint that is being connected to from inside a sandbox.
type Connecting struct {
	held     *Held
	endpoint Endpoint
	theirs   *os.File // nil once the stage has it
	result   *net.UnixConn
}

// ErrNoResult is the error of [Connecting.Await] for an init that has ended without
// a word there: what it said on stderr says why.
var ErrNoResult = errors.New("the sandbox has ended before it connected")

// Connect prepares to connect from inside the sandbox. The caller starts a process
// with the stage that [Connecting.Stage] makes, awaits the result, and closes both.
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

// Stage makes the stage that connects; it is meant for [procs.Spec.Stage].
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

// Await returns the connection, or an error of the system with its errno in it.
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

// Close ends the wait for a result.
func (c *Connecting) Close() {
	_ = c.result.Close()
	if c.theirs != nil {
		_ = c.theirs.Close()
	}
}

// decodeResult reads what an init has passed on.
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

// connects tells whether this init connects to an endpoint, and runs no program.
func (c *config) connects() bool { return c.Endpoint != (Endpoint{}) }

// startConnecting confines T1 and connects there.
func (t *target) startConnecting(*supervisor) error {
	return t.config.pass(onThreadOfItsOwn(func() error {
		if err := t.confineHere(); err != nil {
			return err
		}
		if t.listener > 0 {
			t.serve(t.listener)
		}
		return t.config.Endpoint.connectHere()
	}))
}

// connectNetworkOnly does that for a policy that restricts only the network.
func (c *config) connectNetworkOnly() error {
	t := &target{config: c, policy: c.Policy}
	if err := t.addLayers(); err != nil {
		return err
	}
	return c.Endpoint.connectHere()
}

// pass tells the agent the outcome of connectHere. Any other error is one of the
// sandbox, which the caller tells.
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

// connected is the outcome of connectHere, as the error of a function that runs on
// a thread of its own.
type connected struct {
	fd   int
	call string // that has failed
	err  error
}

func (c *connected) Error() string { return "the outcome of a connection" }

func failed(call string, err error) *connected { return &connected{call: call, err: err} }

// connectHere makes a socket on the calling thread and connects it there. The result is always a
// *connected.
func (e Endpoint) connectHere() *connected {
	if e.Network == "unix" {
		return connectSocket(unix.AF_UNIX, &unix.SockaddrUnix{Name: e.Target})
	}
	// Without a network this fails, and no name is looked up.
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
		// An interrupted one goes on, and the next call waits for it.
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

// resolve looks the host up, on another thread than the confined one that calls it.
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
	found, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip", host)
	if err != nil {
		return nil, err
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
