package supervise

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
	"github.com/execagent/execagent/sandbox"
)

// A command with transparent connections may connect to any address (transparent.md 2). Each connect(2)
// is held until the agent has judged and dialled the destination. The command's own socket is then
// connected, but to a socket of the agent. So the calls that ask for the peer, or for the error of a
// connection, are answered here.
//
// In a network namespace the kernel may go on with every call, because no route leads out. If the policy
// names UNIX sockets it may not, because another thread could put a UNIX socket under the number. Elsewhere
// it goes on with no call that could connect a socket of the internet.

// look is how often a caller that waits is looked at: it may have been killed.
const look = 500 * time.Millisecond

// connectAnywhere does connect(2) on a socket of the internet.
func (r *request) connectAnywhere(a *address) callResult {
	inNamespace := a.held == nil
	kernel := func(errno error) callResult {
		if inNamespace && len(r.n.config.Policy.Sockets) > 0 {
			return r.connectHere(a)
		}
		a.close()
		if inNamespace {
			return proceed()
		}
		return fail(errno)
	}
	to, _, ok := inetAddress(a.sockaddr)
	at := to.Addr().Unmap()
	stream := a.kind == unix.SOCK_STREAM
	switch {
	case a.family() == unix.AF_UNSPEC && !stream && !inNamespace:
		a.held.SetServer(netip.AddrPort{})
		a.close()
		return callResult{}
	case a.family() == unix.AF_UNSPEC:
		if key, err := r.keyOf(a); err == nil && stream {
			r.n.config.Holder.GiveUp(key)
		}
		if inNamespace {
			return kernel(nil)
		}
		a.close()
		return callResult{} // what was held is disconnected, and nothing else is connected
	case !ok:
		return kernel(unix.EINVAL)
	case int(a.family()) != a.domain:
		return kernel(unix.EAFNOSUPPORT)
	case !stream && !inNamespace:
		err := r.ask(a.held, to)
		a.close()
		return result(err)
	case !stream, at.IsMulticast(), at == broadcast:
		return kernel(unix.ENETUNREACH)
	case !inNamespace && r.n.config.Proxy.Leads(netip.AddrPortFrom(at, to.Port())):
		return r.connectGate(a)
	case at.IsLoopback(), at.IsUnspecified():
		if inNamespace || to.Port() != gate.DomainPort {
			return kernel(unix.ECONNREFUSED)
		}
		// It may be a name server of this host, in whose place the agent answers.
	}
	return r.holdConnection(a, netip.AddrPortFrom(at.WithZone(""), to.Port()))
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// holdConnection holds a connection. A caller that does not wait gets EINPROGRESS, and asks for the error later.
func (r *request) holdConnection(a *address, to netip.AddrPort) callResult {
	holder := r.n.config.Holder
	key, err := r.keyOf(a)
	if err != nil {
		a.close()
		return fail(err)
	}
	waited := !isNonblocking(a.socket)
	patience := timeoutOf(a.socket, unix.SO_SNDTIMEO)
	attempt, err := holder.Connect(key, a.socket, a.domain, to, peerAddress(a.sockaddr), waited, func() {
		if a.held != nil {
			a.held.Attempted(unix.ECONNREFUSED) // a socket that is connected needs no copy
		}
		a.close()
	})
	if err != nil {
		a.close()
		return fail(err)
	}
	if !waited {
		return fail(unix.EINPROGRESS)
	}
	return r.apart(func(r *request) callResult { return r.await(attempt, key, patience) }, func() { holder.GiveUp(key) })
}

// await waits for the end of an attempt, or until the caller waits no longer.
func (r *request) await(attempt *gate.Attempt, key uint64, patience time.Duration) callResult {
	holder := r.n.config.Holder
	var late <-chan time.Time
	if patience > 0 {
		late = time.After(patience)
	}
	looks := time.NewTicker(look)
	defer looks.Stop()
	for {
		select {
		case <-attempt.Done:
			if attempt.Errno != 0 {
				return fail(attempt.Errno)
			}
			return callResult{}
		case <-late:
			late = nil
			if holder.Later(attempt) {
				return fail(unix.EINPROGRESS)
			}
		case <-looks.C:
			if r.there(nil) != nil {
				holder.GiveUp(key)
				return fail(errGone)
			}
		}
	}
}

// timeoutOf returns the time limit of a socket's calls; 0: there is none.
func timeoutOf(fd, option int) time.Duration {
	limit, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return time.Duration(limit.Nano())
}

// keyOf returns the key of a socket, by which its peer is remembered. A supervisor has no descriptor
// of a connected socket, so there the key is the inode. In a namespace the key is the cookie, which
// the kernel never uses again.
func (r *request) keyOf(a *address) (uint64, error) {
	if a.held != nil {
		return a.held.Inode(), nil
	}
	return unix.GetsockoptUint64(a.socket, unix.SOL_SOCKET, unix.SO_COOKIE)
}

// heldSocket is a socket of the caller, as far as it is known here.
type heldSocket struct {
	key  uint64
	fd   int          // -1: there is no descriptor of it here
	copy *sockfd.Copy // nil: there is none
}

func (s heldSocket) close() {
	switch {
	case s.copy != nil:
		s.copy.Release()
	case s.fd >= 0:
		unix.Close(s.fd)
	}
}

// heldSocket returns the caller's socket fd; ok is false if the kernel should answer about it.
func (r *request) heldSocket(fd int) (s heldSocket, ok bool) {
	if r.n.config.Level == sandbox.NoLevel {
		own, err := linux.DuplicateFD(r.thread(), fd)
		if err != nil {
			return s, false
		}
		key, err := unix.GetsockoptUint64(own, unix.SOL_SOCKET, unix.SO_COOKIE)
		if err != nil || r.there(nil) != nil {
			unix.Close(own)
			return s, false
		}
		return heldSocket{key: key, fd: own}, true
	}
	inode, err := r.socketInode(fd)
	if err != nil {
		return s, false
	}
	s = heldSocket{key: inode, fd: -1, copy: r.n.sockets.Of(inode)}
	if s.copy != nil {
		s.fd = s.copy.FD
	}
	return s, true
}

// getpeername answers with the address that the command has connected to.
func (r *request) getpeername() callResult {
	if r.n.config.Level == sandbox.NoLevel && !r.n.config.Holder.Used() {
		return proceed()
	}
	s, ok := r.heldSocket(r.int(0))
	if !ok {
		return proceed()
	}
	defer s.close()
	if s.copy != nil && s.copy.Questions {
		at := s.copy.Server()
		if !at.IsValid() {
			return fail(unix.ENOTCONN)
		}
		return result(r.storeAddress(addressOf(s.copy.Family, at), r.pointer(1), r.pointer(2)))
	}
	peer := r.n.config.Holder.Peer(s.key)
	if peer == nil {
		return proceed()
	}
	if s.fd >= 0 {
		if _, err := unix.Getpeername(s.fd); err != nil {
			return proceed() // it is connected no more
		}
	}
	return result(r.storeAddress(peer, r.pointer(1), r.pointer(2)))
}

// getsockname answers for a socket for questions.
func (r *request) getsockname() callResult {
	s, ok := r.heldSocket(r.int(0))
	if !ok {
		return proceed()
	}
	defer s.close()
	if s.copy == nil || !s.copy.Questions {
		return proceed()
	}
	const first, count = 32768, 28232
	at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(first+s.key%count))
	return result(r.storeAddress(addressOf(s.copy.Family, at), r.pointer(1), r.pointer(2)))
}

// getsockopt answers SO_ERROR, once for each error.
func (r *request) getsockopt() callResult {
	if !r.n.config.Holder.Used() {
		return proceed()
	}
	s, ok := r.heldSocket(r.int(0))
	if !ok {
		return proceed()
	}
	defer s.close()
	if s.fd < 0 {
		return proceed()
	}
	errno, ok := r.n.config.Holder.Error(s.key, s.fd)
	if !ok {
		return proceed()
	}
	return result(r.storeSized(binary.NativeEndian.AppendUint32(nil, uint32(errno)), r.pointer(3), r.pointer(4), false))
}

// setsockopt accepts all options of IP and UDP for a socket for questions, which has none. It accepts SO_REUSEPORT too,
// which newer kernels refuse to UNIX sockets, because dig ends if it is refused.
func (r *request) setsockopt() callResult {
	s, ok := r.heldSocket(r.int(0))
	if !ok {
		return proceed()
	}
	defer s.close()
	if s.copy != nil && s.copy.Questions {
		return callResult{}
	}
	return proceed()
}

// storeAddress stores an address where the caller wants it.
func (r *request) storeAddress(sockaddr []byte, to, length uint64) error {
	return r.storeSized(sockaddr, to, length, true)
}

// storeSized stores a value whose size is at another place: there the caller has put the size of its
// buffer, and gets the size of the value, or with whole false of the part that was stored.
func (r *request) storeSized(value []byte, to, size uint64, whole bool) error {
	b, err := r.memory(size, 4)
	if err = r.there(err); err != nil {
		return err
	}
	room := int(int32(binary.NativeEndian.Uint32(b)))
	if room < 0 {
		return unix.EINVAL
	}
	part := value[:min(room, len(value))]
	if !whole {
		value = part
	}
	if err := r.store(to, part); err != nil {
		return err
	}
	return r.store(size, binary.NativeEndian.AppendUint32(nil, uint32(len(value))))
}

const sizeInet4, sizeInet6 = 16, 28 // struct sockaddr_in and sockaddr_in6, in bytes

// peerAddress returns a valid address as getpeername(2) returns it: whole, and with zeros in the rest.
func peerAddress(sockaddr []byte) []byte {
	if binary.NativeEndian.Uint16(sockaddr) == unix.AF_INET {
		return append(append([]byte{}, sockaddr[:8]...), make([]byte, sizeInet4-8)...)
	}
	b := append([]byte{}, sockaddr[:min(len(sockaddr), sizeInet6)]...)
	clear(b[4:8]) // the flow
	return append(b, make([]byte, sizeInet6-len(b))...)
}

// addressOf returns an address for a socket of that family.
func addressOf(family int, at netip.AddrPort) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(family))
	b = binary.BigEndian.AppendUint16(b, at.Port())
	if addr := at.Addr().Unmap(); family == unix.AF_INET && addr.Is4() {
		b = append(b, addr.AsSlice()...)
		return append(b, make([]byte, sizeInet4-len(b))...)
	}
	addr := at.Addr().As16()
	b = append(append(b, 0, 0, 0, 0), addr[:]...)
	return append(b, 0, 0, 0, 0)
}
