package gate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Holder is the supervisor's end of the held connections of one command (transparent.md 2).
//
// All of it happens on the loopback interface, with the command's own socket, so that its options,
// its duplicates and an epoll(7) of the command stay right:
//
//	the command's socket ──SYN──► 127.0.0.1:gate     a listener with a full queue, so the kernel drops
//	                                                  the SYN: the socket goes on connecting
//	a socket of ours, bound to 127.0.0.1:gate too ──SYN──► the command's socket
//	                                                  both are connected (RFC 9293, 3.5)
//
// Our socket goes to the agent. If the connection is refused, the command's socket is disconnected
// instead, which wakes up who waits for it. In a namespace without other routes, and under a
// supervisor that lets no connect(2) of the command go on, no other connection can come to be.
type Holder struct {
	fd      int
	gate    netip.AddrPort
	sockets []int // the listener, and the sockets that fill its queue

	mu     sync.Mutex
	ended  bool
	number uint32 // of the last attempt
	places places
	byID   map[uint32]*Attempt
	byKey  map[uint64]*Attempt
	peers  memory[[]byte]        // the addresses that the command asked for, of joined sockets
	errnos memory[syscall.Errno] // for SO_ERROR of sockets whose connection failed
}

const (
	// maxPeers and maxErrnos bound what is remembered about sockets. The oldest is forgotten.
	maxPeers  = 1 << 16
	maxErrnos = 1 << 10
	// meetingTime is how long the two sockets may take to connect to each other. On one host that
	// takes no time.
	meetingTime = 5 * time.Second
)

// Attempt is a connection that is held.
type Attempt struct {
	// Done is closed at the end of the attempt. Then Errno is set.
	Done  chan struct{}
	Errno syscall.Errno // 0: the socket is connected

	number   uint32
	key      uint64
	c        connection
	from     netip.AddrPort
	sockaddr []byte
	waited   bool   // the caller of connect(2) waits for the end
	settled  bool   // it is decided who gets the error
	release  func() // called at the end, when the socket is not used any more
}

// NewHolder returns the end with the descriptor fd.
func NewHolder(fd int) (*Holder, error) {
	h := &Holder{
		fd: fd, byID: map[uint32]*Attempt{}, byKey: map[uint64]*Attempt{},
		peers: newMemory[[]byte](maxPeers), errnos: newMemory[syscall.Errno](maxErrnos),
	}
	if err := h.fill(); err != nil {
		h.closeSockets()
		return nil, fmt.Errorf("making the listener that holds connections: %w", err)
	}
	return h, nil
}

// fill makes a listener whose queue is full. A queue for one connection takes two. With a shorter
// queue the kernel logs that it is flooded.
func (h *Holder) fill() error {
	l, err := h.socket()
	if err != nil {
		return err
	}
	if err := unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	h.gate = connection{socket: l}.name()
	if err := unix.Listen(l, 1); err != nil {
		return os.NewSyscallError("listen", err)
	}
	for range 2 {
		filler, err := h.socket()
		if err != nil {
			return err
		}
		c := connection{filler, unix.AF_INET}
		if err := c.connect(time.Now().Add(meetingTime), h.gate); err != nil {
			return os.NewSyscallError("connect", err)
		}
	}
	return nil
}

// socket makes a socket that may share the port of the gate. Package net would make one of MPTCP,
// which connects in this way and then moves nothing.
func (h *Holder) socket() (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	h.sockets = append(h.sockets, fd)
	return fd, os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1))
}

func (h *Holder) closeSockets() {
	for _, fd := range h.sockets {
		unix.Close(fd)
	}
}

// ServeResolvers makes the sockets of the resolver in the network namespace of this process, and
// passes them on to the agent. The process needs CAP_NET_BIND_SERVICE in the namespace.
func (h *Holder) ServeResolvers() error {
	var sockets []int
	defer func() {
		for _, s := range sockets {
			unix.Close(s)
		}
	}()
	for _, addr := range resolverAddrs {
		for _, kind := range []int{unix.SOCK_DGRAM, unix.SOCK_STREAM} {
			s, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			sockets = append(sockets, s)
			if err := unix.Bind(s, &unix.SockaddrInet4{Port: DomainPort, Addr: addr.As4()}); err != nil {
				return fmt.Errorf("binding %v: %w", netip.AddrPortFrom(addr, DomainPort), os.NewSyscallError("bind", err))
			}
			if kind == unix.SOCK_DGRAM {
				continue
			}
			if err := unix.Listen(s, unix.SOMAXCONN); err != nil {
				return os.NewSyscallError("listen", err)
			}
		}
	}
	return h.send(note{kind: resolvers}, sockets...)
}

// Questions passes one end of a pair of sockets on, at which the resolver answers questions.
func (h *Holder) Questions(socket int) error { return h.send(note{kind: questions}, socket) }

// sendTime is how long send waits for the agent to read. On a busy machine the agent reads late. Callers
// may hold mu meanwhile, because until then nothing else gets to the agent either.
const sendTime = 5 * time.Second

// send sends a packet. If the agent reads nothing for sendTime, the error is EAGAIN.
func (h *Holder) send(n note, fds ...int) error {
	var control []byte
	if len(fds) > 0 {
		control = unix.UnixRights(fds...)
	}
	until := time.Now().Add(sendTime)
	for {
		err := unix.Sendmsg(h.fd, n.encode(), control, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if err == unix.EAGAIN && poll(h.fd, unix.POLLOUT, until) == nil {
			continue
		}
		if err != unix.EINTR {
			return err
		}
	}
}

// Serve completes or refuses connections as the agent answers, until the agent is gone. Then it
// refuses all of them. It closes the listener at the end.
func (h *Holder) Serve() {
	b := make([]byte, noteSize+1)
	for {
		size, _, err := unix.Recvfrom(h.fd, b, 0)
		if err == unix.EINTR {
			continue
		}
		n, ok := decodeNote(b[:max(size, 0)])
		if err != nil || !ok || n.kind != answer {
			break
		}
		h.answered(n)
	}
	h.mu.Lock()
	h.ended = true
	all := h.byID
	h.byID = map[uint32]*Attempt{}
	h.mu.Unlock()
	for _, a := range all {
		h.refuse(a, unix.ECONNREFUSED)
	}
	h.closeSockets()
}

// answered ends the attempt that the agent has answered.
func (h *Holder) answered(n note) {
	a := h.take(n.number)
	switch {
	case a == nil: // given up meanwhile
	case n.errno != 0:
		h.refuse(a, n.errno)
	default:
		h.complete(a)
	}
}

// take returns the attempt with that number, and makes the caller the one who ends it; nil if
// somebody else does.
func (h *Holder) take(number uint32) *Attempt {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.byID[number]
	delete(h.byID, number)
	return a
}

// Connect begins to connect the command's socket, of that family, to an address, and returns the
// attempt, which then owns the socket until it calls release. sockaddr is the address as the command
// passed it. The key identifies the socket as long as it is open. With waited the caller of
// connect(2) waits for the end of the attempt, and otherwise it asks for the error later.
//
// The error is an errno that connect(2) fails with. EALREADY means that an attempt is under way, and
// EISCONN that the socket is connected. After an error release was not called.
func (h *Holder) Connect(key uint64, socket, family int, to netip.AddrPort, sockaddr []byte, waited bool, release func()) (*Attempt, error) {
	c := connection{socket, family}
	a := &Attempt{Done: make(chan struct{}), key: key, c: c, sockaddr: sockaddr, waited: waited, release: release}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended {
		return nil, unix.ECONNREFUSED
	}
	if h.byKey[key] != nil {
		return nil, unix.EALREADY
	}
	if errno, ok := h.errnos.take(key); ok { // of the last attempt, which nobody has asked for
		c.forgetError()
		return nil, errno
	}
	if len(h.byID) >= MaxAsked {
		return nil, unix.EAGAIN
	}
	var err error
	if a.from, err = c.begin(h.gate, &h.places); err != nil {
		return nil, err
	}
	for {
		h.number++
		if h.byID[h.number] == nil {
			break
		}
	}
	a.number = h.number
	if err := h.send(note{kind: ask, number: a.number, to: to, from: a.from}); err != nil {
		c.disconnect()
		c.forgetError()
		if err == unix.EAGAIN {
			return nil, err
		}
		return nil, unix.ECONNREFUSED
	}
	h.byID[a.number], h.byKey[key] = a, a
	return a, nil
}

// begin has the socket connect to the gate, and returns the address of the socket.
func (c connection) begin(gate netip.AddrPort, free *places) (from netip.AddrPort, err error) {
	if c.family == unix.AF_INET6 {
		// The gate has an IPv4 address. A socket that has an IPv6 address cannot reach it.
		_ = unix.SetsockoptInt(c.socket, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0)
		if at := c.name().Addr(); at.Is6() && !at.IsUnspecified() {
			return from, unix.ENETUNREACH
		}
	}
	c.clear()
	flags, err := unix.FcntlInt(uintptr(c.socket), unix.F_GETFL, 0)
	if err != nil {
		return from, err
	}
	if flags&unix.O_NONBLOCK == 0 {
		if _, err := unix.FcntlInt(uintptr(c.socket), unix.F_SETFL, flags|unix.O_NONBLOCK); err != nil {
			return from, err
		}
		defer func() { _, _ = unix.FcntlInt(uintptr(c.socket), unix.F_SETFL, flags) }()
	}
	switch {
	case c.hasPeer():
		return from, unix.EISCONN
	case c.name().Port() == 0:
		if err := free.bind(c); err != nil {
			return from, err
		}
	}
	switch err := unix.Connect(c.socket, c.sockaddr(gate)); err {
	case unix.EINPROGRESS:
		return c.name(), nil
	case nil: // the queue of the gate is not full, which cannot be
		c.disconnect()
		return from, unix.ECONNREFUSED
	default:
		return from, err
	}
}

// places are the addresses that sockets of the command are bound to, one after the other. The kernel
// remembers the two ends of an ended connection for a minute, and then refuses to connect our socket to
// the same address again. So an address comes back only after that time.
type places struct {
	first int       // number of the first port, so that commands that share an interface begin elsewhere
	taken int       // ports of this address that were taken
	host  int       // number of the address
	begun time.Time // when 127.0.0.1 was begun
}

const (
	firstFree, countFree = 32768, 28232
	maxHosts             = 200
	// rememberedTime is longer than the time for which the kernel remembers a connection (TIME-WAIT).
	rememberedTime = 65 * time.Second
)

// bind binds the socket to the next address.
func (p *places) bind(c connection) error {
	const tries = 1024
	for range tries {
		switch {
		case p.begun.IsZero():
			p.first, p.begun = rand.IntN(countFree), time.Now()
		case p.taken < countFree:
		case time.Since(p.begun) > rememberedTime:
			p.taken, p.host, p.begun = 0, 0, time.Now()
		default: // 127.0.0.1 is still remembered
			p.taken, p.host = 0, (p.host+1)%maxHosts
		}
		host := netip.AddrFrom4([4]byte{127, 0, 0, byte(1 + p.host)})
		at := netip.AddrPortFrom(host, uint16(firstFree+(p.first+p.taken)%countFree))
		p.taken++
		if err := unix.Bind(c.socket, c.sockaddr(at)); err != unix.EADDRINUSE {
			return err
		}
	}
	return unix.EADDRNOTAVAIL
}

// complete connects the command's socket to one of ours, which it passes on to the agent.
func (h *Holder) complete(a *Attempt) {
	h.mu.Lock()
	h.peers.put(a.key, a.sockaddr) // before the command can see that its socket is connected
	h.mu.Unlock()
	s, err := h.meet(a)
	if err == errSlow {
		go func() { // nearly never
			err := poll(s, unix.POLLOUT, time.Now().Add(meetingTime))
			h.completed(a, s, err)
		}()
		return
	}
	h.completed(a, s, err)
}

// errSlow says that the sockets have not met yet.
var errSlow = fmt.Errorf("the sockets have not met yet: %w", unix.EINPROGRESS)

// meet makes a socket at the gate that connects to the command's.
func (h *Holder) meet(a *Attempt) (s int, err error) {
	s, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		return -1, err
	}
	ours := connection{s, unix.AF_INET}
	if err = unix.SetsockoptInt(s, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err == nil {
		err = unix.Bind(s, ours.sockaddr(h.gate))
	}
	if err == nil {
		err = unix.Connect(s, ours.sockaddr(a.from))
	}
	if err == unix.EINPROGRESS && ours.hasPeer() {
		err = nil // the kernel has delivered everything at once
	}
	if err == unix.EINPROGRESS {
		err = errSlow
	}
	return s, err
}

// completed ends an attempt whose sockets have met, or have not.
func (h *Holder) completed(a *Attempt, s int, err error) {
	if err == nil && !(connection{s, unix.AF_INET}).hasPeer() {
		err = unix.ECONNREFUSED
	}
	if err == nil {
		err = h.send(note{kind: joined, number: a.number}, s)
	}
	if s >= 0 {
		unix.Close(s)
	}
	if err == nil {
		h.end(a, 0)
		return
	}
	_ = h.send(note{kind: left, number: a.number})
	h.refuse(a, unix.ECONNREFUSED)
}

// refuse ends an attempt with an errno, and disconnects its socket.
func (h *Holder) refuse(a *Attempt, errno syscall.Errno) {
	h.mu.Lock()
	h.peers.forget(a.key)
	waited := a.waited
	if a.settled = true; !waited {
		h.errnos.put(a.key, errno) // before anybody is woken up
	}
	h.mu.Unlock()
	a.c.disconnect()
	if waited {
		a.c.forgetError()
	}
	h.end(a, errno)
}

// end tells who waits that an attempt has ended.
func (h *Holder) end(a *Attempt, errno syscall.Errno) {
	h.mu.Lock()
	if h.byKey[a.key] == a {
		delete(h.byKey, a.key)
	}
	h.mu.Unlock()
	a.Errno = errno
	close(a.Done)
	a.release()
}

// Later makes the attempt one that nobody waits for any more: the command asks for its error. It
// returns false if the attempt is about to end.
func (h *Holder) Later(a *Attempt) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a.settled {
		return false
	}
	a.waited = false
	return true
}

// GiveUp ends the attempt with the socket of that key, if there is one, and disconnects the socket.
func (h *Holder) GiveUp(key uint64) {
	h.mu.Lock()
	a := h.byKey[key]
	h.errnos.forget(key)
	h.mu.Unlock()
	if a == nil || h.take(a.number) == nil {
		return
	}
	_ = h.send(note{kind: left, number: a.number})
	h.mu.Lock()
	a.waited = true // so that no errno is kept
	h.mu.Unlock()
	h.refuse(a, unix.ECONNABORTED)
}

// Peer returns the address that a connected socket was asked to connect to, as the command passed it;
// nil if it was not held.
func (h *Holder) Peer(key uint64) []byte {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.peers.get(key)
}

// Error returns the error of the last attempt with a socket, once; ok is false if none is kept.
func (h *Holder) Error(key uint64, socket int) (errno syscall.Errno, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if errno, ok = h.errnos.take(key); ok {
		connection{socket: socket}.forgetError()
	}
	return errno, ok
}

// Used reports whether anything is remembered about a socket.
func (h *Holder) Used() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.peers.values)+len(h.errnos.values) > 0
}

// forgetError takes the error of a disconnected socket away, because it is not the errno that the
// command gets.
func (c connection) forgetError() {
	_, _ = unix.GetsockoptInt(c.socket, unix.SOL_SOCKET, unix.SO_ERROR)
}

// Forget forgets everything about a key, because another socket has it now.
func (h *Holder) Forget(key uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers.forget(key)
	h.errnos.forget(key)
}

// memory remembers values by key, at most so many of them. The oldest is forgotten first.
type memory[V any] struct {
	values map[uint64]remembered[V]
	order  []place // a ring, once it is full
	next   int
	turn   uint64
	most   int
}

type remembered[V any] struct {
	value V
	turn  uint64
}

// place is the place of a value in the order. If its turn is another than that of the value, the value
// is newer.
type place struct {
	key, turn uint64
}

func newMemory[V any](most int) memory[V] {
	return memory[V]{values: map[uint64]remembered[V]{}, most: most}
}

func (m *memory[V]) put(key uint64, v V) {
	m.turn++
	p := place{key, m.turn}
	if len(m.order) < m.most {
		m.order = append(m.order, p)
	} else {
		if old := m.order[m.next]; m.values[old.key].turn == old.turn {
			delete(m.values, old.key)
		}
		m.order[m.next] = p
		m.next = (m.next + 1) % m.most
	}
	m.values[key] = remembered[V]{v, m.turn}
}

func (m *memory[V]) get(key uint64) (v V) { return m.values[key].value }

func (m *memory[V]) take(key uint64) (v V, ok bool) {
	found, ok := m.values[key]
	delete(m.values, key)
	return found.value, ok
}

func (m *memory[V]) forget(key uint64) { delete(m.values, key) }
