package gate

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// destinations answers held connections: a port is the errno, and 0 leads to an echo.
type destinations struct {
	mu     sync.Mutex
	open   int           // connections that are prepared and neither joined nor closed
	asked  []string      // what was asked for
	begun  chan struct{} // an element for each that is asked for
	wait   chan struct{} // if it is there, prepared connections wait for it
	ended  chan struct{} // an element for each whose context has ended while it waited
	served chan struct{} // an element for each socket of a resolver
}

func (d *destinations) prepare(ctx context.Context, to, from netip.AddrPort) (Prepared, syscall.Errno) {
	d.mu.Lock()
	d.asked = append(d.asked, to.String())
	d.mu.Unlock()
	if !from.Addr().IsLoopback() || from.Port() == 0 {
		return nil, unix.EBADMSG
	}
	if d.wait != nil {
		d.begun <- struct{}{}
		select {
		case <-d.wait:
		case <-ctx.Done():
			d.ended <- struct{}{}
			return nil, unix.EACCES
		}
	}
	if errno := syscall.Errno(to.Port()); errno != 0 {
		return nil, errno
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.open++
	return &echo{d: d}, 0
}

// echo is a prepared connection to an echo.
type echo struct {
	d    *destinations
	once sync.Once
}

func (e *echo) done() {
	e.d.mu.Lock()
	defer e.d.mu.Unlock()
	e.d.open--
}

func (e *echo) Close() { e.once.Do(e.done) }

func (e *echo) Join(conn *net.TCPConn) {
	e.once.Do(func() {
		e.done()
		go func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn)
		}()
	})
}

// none waits until nobody has a connection that is prepared.
func (d *destinations) none(t *testing.T) {
	t.Helper()
	sandboxtest.Eventually(t, "there is no connection that nobody has", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.open == 0
	})
}

func (d *destinations) Datagrams(conn net.PacketConn) { _ = conn.Close(); d.served <- struct{}{} }
func (d *destinations) Packets(conn net.Conn)         { _ = conn.Close(); d.served <- struct{}{} }
func (d *destinations) Listen(l net.Listener)         { _ = l.Close(); d.served <- struct{}{} }

// holding returns a gate with held connections, and the supervisor's end.
func holding(t *testing.T, d *destinations) (*Gate, *Holder) {
	t.Helper()
	g := new(Gate)
	h := holder(t, g)
	g.Held().Serve(Handler{Prepare: d.prepare, Resolver: d})
	return g, h
}

// holder returns the supervisor's end of a gate.
func holder(t *testing.T, g *Gate) *Holder {
	t.Helper()
	theirs := rig.Value(g.Hold())
	t.Cleanup(g.Close)
	fd := rig.Value(unix.FcntlInt(theirs.Fd(), unix.F_DUPFD_CLOEXEC, 0))
	rig.Must(t, theirs.Close())
	h := rig.Value(NewHolder(fd))
	served := make(chan struct{})
	go func() {
		defer close(served)
		h.Serve()
		unix.Close(fd)
	}()
	t.Cleanup(func() { g.Close(); <-served })
	return h
}

// key is the key of a socket.
func key(fd int) uint64 { return rig.Value(unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_COOKIE)) }

// begin begins to connect.
func begin(h *Holder, fd, family int, to string, waited bool) (*Attempt, error) {
	return h.Connect(key(fd), fd, family, netip.MustParseAddrPort(to), []byte(to), waited, func() {})
}

// TestHeld: a socket is connected once its destination is there, and gets the errno otherwise.
func TestHeld(t *testing.T) {
	t.Parallel()
	d := new(destinations)
	_, h := holding(t, d)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for range 3 {
			fd := socket(t, family)
			a := rig.Value(begin(h, fd, family, "11.22.33.44:0", true))
			<-a.Done
			rig.Is(t, a.Errno, 0, "the errno")
			rig.Must(t, rig.Err(unix.Write(fd, []byte("hello"))), unix.Shutdown(fd, unix.SHUT_WR))
			rig.Is(t, text(fd), "hello", "the echo")
			rig.Is(t, string(h.Peer(key(fd))), "11.22.33.44:0", "the address that was asked for")
			_, err := begin(h, fd, family, "11.22.33.44:0", true)
			rig.Is(t, err, error(unix.EISCONN), "a second attempt")
		}
		fd := socket(t, family)
		for _, errno := range []syscall.Errno{unix.EACCES, unix.ECONNREFUSED, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH} {
			a := rig.Value(begin(h, fd, family, netip.AddrPortFrom(netip.MustParseAddr("2600::1"), uint16(errno)).String(), true))
			<-a.Done
			rig.Is(t, a.Errno, errno, "the errno")
			rig.Is(t, rig.Value(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)), 0, "what the kernel has")
			_, kept := h.Error(key(fd), fd)
			rig.Is(t, kept, false, "who waits gets the errno only once")
		}
		a := rig.Value(begin(h, fd, family, "11.22.33.44:0", true))
		<-a.Done
		rig.Is(t, a.Errno, 0, "the errno after refusals")
	}
	d.none(t)
}

// TestHeldNonblocking: a caller that does not wait is woken up, and asks for the error.
func TestHeldNonblocking(t *testing.T) {
	t.Parallel()
	_, h := holding(t, new(destinations))
	fd := socket(t, unix.AF_INET)
	rig.Must(t, unix.SetNonblock(fd, true))
	set := rig.Value(unix.EpollCreate1(unix.EPOLL_CLOEXEC))
	defer unix.Close(set)
	// Registered before connect, and told of changes only.
	const edge = unix.EPOLLET & 0xffffffff
	rig.Must(t, unix.EpollCtl(set, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | edge}))
	wait := func(want uint32, what string) {
		events := make([]unix.EpollEvent, 1)
		for {
			_, err := unix.EpollWait(set, events, 60_000)
			if err == unix.EINTR {
				continue
			}
			rig.Must(t, err)
			if events[0].Events&unix.EPOLLHUP != 0 && want&unix.EPOLLERR == 0 {
				continue // of a socket that is not connected yet
			}
			rig.Is(t, events[0].Events&want, want, "events: %s", what)
			return
		}
	}
	a := rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:111", false))
	<-a.Done
	wait(unix.EPOLLERR|unix.EPOLLOUT, "refused")
	errno, kept := h.Error(key(fd), fd)
	rig.Is(t, errno, unix.ECONNREFUSED, "the errno")
	rig.Is(t, kept, true, "the errno is kept")
	_, kept = h.Error(key(fd), fd)
	rig.Is(t, kept, false, "the errno is kept once it was read")
	rig.Is(t, rig.Value(unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)), 0, "what the kernel has then")

	a = rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:13", false))
	<-a.Done
	_, err := begin(h, fd, unix.AF_INET, "11.22.33.44:0", false)
	rig.Is(t, err, error(unix.EACCES), "a second connect gets the errno of the first")

	a = rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:0", false))
	<-a.Done
	wait(unix.EPOLLOUT, "connected")
	rig.Is(t, a.Errno, 0, "the errno")
	rig.Is(t, h.Used(), true, "something is remembered")
	h.Forget(key(fd))
	rig.Is(t, h.Used(), false, "something is remembered of a socket that is gone")
}

// TestGiveUp: an attempt can be given up at each step, and leaves nothing behind.
func TestGiveUp(t *testing.T) {
	t.Parallel()
	d := &destinations{wait: make(chan struct{}), begun: make(chan struct{}, 10), ended: make(chan struct{}, 10)}
	g, h := holding(t, d)
	fd := socket(t, unix.AF_INET)
	a := rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:0", true))
	<-d.begun
	_, err := begin(h, fd, unix.AF_INET, "11.22.33.44:0", true)
	rig.Is(t, err, error(unix.EALREADY), "a second attempt while the first is held")
	h.GiveUp(key(fd))
	<-a.Done
	rig.Is(t, a.Errno, unix.ECONNABORTED, "the errno of what was given up")
	<-d.ended
	h.GiveUp(key(fd)) // there is nothing

	// An attempt that nobody waits for any more.
	a = rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:113", true))
	<-d.begun
	rig.Is(t, h.Later(a), true, "the attempt goes on")
	d.wait <- struct{}{}
	<-a.Done
	rig.Is(t, h.Later(a), false, "the attempt has ended")
	errno, _ := h.Error(key(fd), fd)
	rig.Is(t, errno, unix.EHOSTUNREACH, "the errno that is asked for later")

	// The gate is closed meanwhile.
	a = rig.Value(begin(h, fd, unix.AF_INET, "11.22.33.44:0", true))
	<-d.begun
	g.Close()
	<-a.Done
	rig.Is(t, a.Errno, unix.ECONNREFUSED, "the errno without an agent")
	for err == unix.EALREADY || err == nil { // until the end is noticed
		_, err = begin(h, socket(t, unix.AF_INET), unix.AF_INET, "11.22.33.44:0", true)
	}
	rig.Is(t, err, error(unix.ECONNREFUSED), "an attempt without an agent")
	d.none(t)
}

// TestBound: a socket that has an address keeps it, if the gate can be reached from there.
func TestBound(t *testing.T) {
	t.Parallel()
	_, h := holding(t, new(destinations))
	for _, tt := range []struct {
		family int
		at     unix.Sockaddr
		want   error
	}{
		{unix.AF_INET, &unix.SockaddrInet4{}, nil},
		{unix.AF_INET, &unix.SockaddrInet4{Addr: [4]byte{127, 1, 2, 3}}, nil},
		{unix.AF_INET6, &unix.SockaddrInet6{}, nil},
		{unix.AF_INET6, &unix.SockaddrInet6{Addr: [16]byte{15: 1}}, unix.ENETUNREACH},
	} {
		fd := socket(t, tt.family)
		if err := unix.Bind(fd, tt.at); err == unix.EADDRNOTAVAIL {
			continue // no IPv6 here
		}
		port := connection{fd, tt.family}.name().Port()
		a, err := begin(h, fd, tt.family, "11.22.33.44:0", true)
		rig.Is(t, err, tt.want, "bound to %v", tt.at)
		if err == nil {
			<-a.Done
			rig.Is(t, a.Errno, 0, "the errno")
			rig.Is(t, connection{fd, tt.family}.name().Port(), port, "the port")
		}
	}
}

// TestLateAgent: while the agent does not read, a connection waits for it.
func TestLateAgent(t *testing.T) {
	t.Parallel()
	g, d := new(Gate), new(destinations)
	h := holder(t, g)
	var attempts []*Attempt
	for waited := false; !waited; { // of MaxAsked at most
		fd, begun := socket(t, unix.AF_INET), make(chan error, 1)
		go func() {
			a, err := begin(h, fd, unix.AF_INET, "11.22.33.44:0", true)
			attempts = append(attempts, a)
			begun <- err
		}()
		select {
		case err := <-begun:
			rig.Must(t, err)
		case <-time.After(50 * time.Millisecond):
			waited = true
			g.Held().Serve(Handler{Prepare: d.prepare, Resolver: d})
			rig.Must(t, <-begun)
		}
	}
	for _, a := range attempts {
		<-a.Done // it owns its socket until then
	}
}

// TestMany: connections at once are not mixed up.
func TestMany(t *testing.T) {
	t.Parallel()
	many, rounds := 50, 4
	if rig.Runs(rig.Nightly) {
		rounds = 2000
	}
	_, h := holding(t, new(destinations))
	var all sync.WaitGroup
	for range many {
		all.Go(func() {
			for i := range rounds {
				fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
				rig.Check(t, err)
				to := "11.22.33.44:0"
				if i%4 == 3 {
					to = "11.22.33.44:111"
				}
				a, err := begin(h, fd, unix.AF_INET, to, true)
				if err != nil {
					t.Error(err)
					return
				}
				if i%10 == 2 {
					h.GiveUp(key(fd))
				}
				switch <-a.Done; {
				case a.Errno == 0:
					want := "this is " + string(rune('A'+i%26))
					rig.Check(t, rig.Err(unix.Write(fd, []byte(want))), unix.Shutdown(fd, unix.SHUT_WR))
					rig.Is(t, text(fd), want, "the echo")
				case to == "11.22.33.44:0" && i%10 != 2:
					t.Errorf("not connected: %v", a.Errno)
				}
				unix.Close(fd)
			}
		})
	}
	all.Wait()
	rig.Is(t, len(h.byID)+len(h.byKey), 0, "attempts that are left")
}

// TestResolverSockets: the agent gets what a command asks its questions at.
func TestResolverSockets(t *testing.T) {
	t.Parallel()
	d := &destinations{served: make(chan struct{}, 10)}
	_, h := holding(t, d)
	pair := rig.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))
	rig.Must(t, h.Questions(pair[1]), unix.Close(pair[1]))
	<-d.served
	rig.Is(t, rig.Value(unix.Read(pair[0], make([]byte, 1))), 0, "the other end is closed")
	rig.Must(t, unix.Close(pair[0]))
}

// TestNotes: what is sent is what arrives, and a packet without a meaning ends the gate.
func TestNotes(t *testing.T) {
	t.Parallel()
	for _, n := range []note{
		{kind: ask, number: 7, to: netip.MustParseAddrPort("[2600::1]:443"), from: netip.MustParseAddrPort("127.1.2.3:40000")},
		{kind: ask, number: 1 << 31, to: netip.MustParseAddrPort("11.22.33.44:1"), from: netip.MustParseAddrPort("127.0.0.1:1")},
	} {
		got, ok := decodeNote(n.encode())
		rig.Is(t, got, n, "what was decoded")
		rig.Is(t, ok, true, "it is a packet")
	}
	for name, b := range map[string][]byte{
		"short":                    note{kind: ask}.encode()[1:],
		"an unknown kind":          note{kind: 'x'}.encode(),
		"an answer to the agent":   note{kind: answer}.encode(),
		"a socket that is missing": note{kind: joined, number: 1}.encode(),
	} {
		g := new(Gate)
		theirs := rig.Value(g.Hold())
		g.Held().Serve(Handler{Prepare: new(destinations).prepare})
		rig.Must(t, rig.Err(theirs.Write(b)))
		_, err := theirs.Read(make([]byte, 1))
		rig.Is(t, errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET), true, "%s: the gate is open: %v", name, err)
		rig.Must(t, theirs.Close())
		g.Close()
	}
	var none *Held
	none.close()
}

func FuzzNote(f *testing.F) {
	f.Add(note{kind: ask, to: netip.MustParseAddrPort("[2600::1]:443"), from: netip.MustParseAddrPort("127.1.2.3:40000")}.encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		n, ok := decodeNote(b)
		if !ok {
			return
		}
		again, ok := decodeNote(n.encode())
		rig.Is(t, again, n, "decoded again")
		rig.Is(t, ok, true, "a packet again")
	})
}

// TestPlaces: an address comes back only after the kernel has forgotten it.
func TestPlaces(t *testing.T) {
	t.Parallel()
	var p places
	bound := func() string {
		fd := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		defer unix.Close(fd)
		c := connection{fd, unix.AF_INET}
		rig.Must(t, p.bind(c))
		return c.name().Addr().String()
	}
	rig.Is(t, bound(), "127.0.0.1", "the first")
	p.taken = countFree
	rig.Is(t, bound(), "127.0.0.2", "once all ports were taken")
	p.taken, p.begun = countFree, p.begun.Add(-rememberedTime)
	rig.Is(t, bound(), "127.0.0.1", "a minute later")
}

// TestMemory: the oldest is forgotten, and what was put again is new.
func TestMemory(t *testing.T) {
	t.Parallel()
	m := newMemory[int](2)
	m.put(1, 10)
	m.put(2, 20)
	m.put(1, 11)
	m.put(3, 30)
	rig.Is(t, [3]int{m.get(1), m.get(2), m.get(3)}, [3]int{11, 0, 30}, "what is remembered")
	m.forget(3)
	_, ok := m.take(3)
	rig.Is(t, ok, false, "what was forgotten")
	rig.Is(t, len(m.values), 1, "values")
}
