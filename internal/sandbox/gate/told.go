package gate

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Every process of the host reaches a listener on the loopback interface. So the supervisor, which
// connects for the command, announces the address and port of the socket to the gate before it
// connects. The gate reads announcements before it judges a connection, answers when the announced
// connection has come, and closes all others.
//
//	supervisor                              gate
//	    coming: number, from, to ──►
//	    connect(2)               ─ ─ ─ ─►   accept(2): from and to are those that were told
//	                             ◄── arrived: number
//	    gone: number             ──►        only if it has not come, or not in time
//
// The supervisor makes one connection after the other, so at most one port is announced
// and not connected. It keeps the socket open from before the announcement until the
// answer, or until it has withdrawn the announcement, so that no other socket gets the
// port in between. Each connection has its own number, because the kernel reuses ports.

// arrivalTime is how long a connection may take to get through to the proxy's Accept. On
// one host that time depends only on the proxy, which does not accept while it has too many
// connections.
const arrivalTime = 10 * time.Second

// The packets of the pair.
const (
	coming  = 'c'
	gone    = 'g'
	arrived = 'a'

	packetSize = 1 + 4 + 4 + 2 + 2
)

// packet is one packet, about one connection.
type packet struct {
	kind   byte
	number uint32
	from   netip.AddrPort // of IPv4
	to     uint16         // the port of the gate
}

func (p packet) encode() []byte {
	b := binary.LittleEndian.AppendUint32([]byte{p.kind}, p.number)
	from := p.from.Addr().As4()
	b = binary.LittleEndian.AppendUint16(append(b, from[:]...), p.from.Port())
	return binary.LittleEndian.AppendUint16(b, p.to)
}

// decodePacket reads a packet; ok is false if b is none.
func decodePacket(b []byte) (p packet, ok bool) {
	if len(b) != packetSize {
		return packet{}, false
	}
	p = packet{kind: b[0], number: binary.LittleEndian.Uint32(b[1:]), to: binary.LittleEndian.Uint16(b[11:])}
	p.from = netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[5:9])), binary.LittleEndian.Uint16(b[9:]))
	return p, p.kind == coming || p.kind == gone || p.kind == arrived
}

// Told returns a gate with n listeners at ports of the host, which only yield
// connections that the command's supervisor announces. The supervisor uses the
// descriptor theirs for its [Teller]; the caller closes theirs here.
func Told(n int) (g *Gate, theirs *os.File, err error) {
	ours, theirs, err := seqpacket()
	if err != nil {
		return nil, nil, err
	}
	a := &announced{fd: int(ours.Fd())}
	g, err = onHost(n, a.admit)
	if err != nil {
		_, _ = ours.Close(), theirs.Close()
		return nil, nil, err
	}
	g.end = func() { _ = a.close(ours) }
	return g, theirs, nil
}

// announced holds the supervisor's announcement.
type announced struct {
	mu   sync.Mutex
	fd   int     // of the gate's end; -1 once the gate is closed
	next *packet // the announced connection; nil: none
}

// close closes the gate's end, so that the supervisor makes no more connections.
func (a *announced) close(end *os.File) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fd, a.next = -1, nil
	return end.Close()
}

// admit reports whether a connection is the announced one.
func (a *announced) admit(conn *net.TCPConn) bool {
	from, to := addrPort(conn.RemoteAddr()), addrPort(conn.LocalAddr())
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fd >= 0 {
		a.readLocked()
	}
	if a.next == nil || from != a.next.from || to != loopback(a.next.to) {
		return false
	}
	answer := *a.next
	answer.kind = arrived
	a.next = nil
	return unix.Send(a.fd, answer.encode(), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) == nil
}

// readLocked reads all packets that are there.
func (a *announced) readLocked() {
	b := make([]byte, packetSize+1)
	for {
		n, _, err := unix.Recvfrom(a.fd, b, unix.MSG_DONTWAIT)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return // there are no more
		case err != nil || n == 0:
			a.next = nil // the supervisor is gone
			return
		}
		switch p, ok := decodePacket(b[:n]); {
		case ok && p.kind == coming:
			a.next = &p
		default:
			a.next = nil // gone, or not understood
		}
	}
}

// addrPort returns an address of TCP, without the form that IPv6 has for one of IPv4.
func addrPort(addr net.Addr) netip.AddrPort {
	a := addr.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

// Teller is the supervisor's end of a gate that was made by [Told].
type Teller struct {
	fd     int
	ports  []uint16
	mu     sync.Mutex // held while a connection is made
	number uint32     // of the last one
}

// NewTeller returns the end with the descriptor fd, of a gate with those ports.
func NewTeller(fd int, ports []uint16) *Teller { return &Teller{fd: fd, ports: ports} }

// Leads reports whether the address is that of one of the gate's listeners.
func (t *Teller) Leads(to netip.AddrPort) bool {
	return to == loopback(to.Port()) && slices.Contains(t.ports, to.Port())
}

// tell makes the connection to a port of the gate, and waits until the gate has it, at
// most until then. After an error there is no connection.
func (t *Teller) tell(to uint16, until time.Time, c connection) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !time.Now().Before(until) {
		return unix.ETIMEDOUT // earlier connections took all of its time
	}
	from, err := c.source()
	if err != nil {
		return err
	}
	t.number++
	p := packet{kind: coming, number: t.number, from: from, to: to}
	if err := t.send(p); err != nil {
		return err
	}
	if err = c.connect(until, loopback(to)); err == nil {
		err = t.await(until)
	}
	if err != nil {
		p.kind = gone
		_ = t.send(p) // a gate that is gone needs no message
		c.disconnect()
	}
	return err
}

func (t *Teller) send(p packet) error {
	if unix.Send(t.fd, p.encode(), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) != nil {
		return unix.ECONNREFUSED
	}
	return nil
}

// await waits until the last connection has arrived.
func (t *Teller) await(until time.Time) error {
	b := make([]byte, packetSize+1)
	for {
		if err := poll(t.fd, unix.POLLIN, until); err != nil {
			return err
		}
		n, _, err := unix.Recvfrom(t.fd, b, unix.MSG_DONTWAIT)
		if err == unix.EAGAIN || err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return unix.ECONNREFUSED
		}
		// Another number belongs to an abandoned connection.
		if p, ok := decodePacket(b[:n]); ok && p.kind == arrived && p.number == t.number {
			return nil
		}
	}
}
