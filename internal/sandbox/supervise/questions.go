package supervise

import (
	"encoding/binary"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/gate"
	"github.com/execagent/execagent/internal/sandbox/supervise/sockfd"
)

// A supervised command has the network of the host, where the agent cannot be the name server at the
// address that the command's resolver asks. So whatever server a program asks at port 53, the agent
// answers (transparent.md 3.3). No socket for datagrams is needed for that, and none would be safe:
// such a socket names a peer with each message, in memory that the command can change. The command
// gets one end of a pair of UNIX sockets instead. All that is sent there leads to the agent's resolver,
// whatever address the message has. The calls that would show the difference are answered here.

// openQuestions makes a socket for questions.
func (r *request) openQuestions(family, kind int) (*sockfd.Copy, error) {
	c, other, err := r.n.sockets.MakeQuestions(family, kind)
	if err != nil {
		return nil, err
	}
	err = r.n.config.Holder.Questions(other)
	unix.Close(other)
	if err != nil {
		c.Given(err)
		return nil, unix.ENOBUFS
	}
	return c, nil
}

// ask lets the command ask a name server, and nobody else.
func (r *request) ask(c *sockfd.Copy, server netip.AddrPort) error {
	if server.Port() != gate.DomainPort {
		return unix.ENETUNREACH
	}
	c.SetServer(server)
	return nil
}

// questionsAt returns the caller's socket for questions; nil if it is none.
func (r *request) questionsAt(fd int) *sockfd.Copy {
	c, err := r.copyOf(fd)
	if err != nil {
		return nil
	}
	if !c.Questions {
		c.Release()
		return nil
	}
	return c
}

// askNamed decides about a message with the address name. The kernel then sends it to the resolver,
// which is the only place that it can lead to.
func (r *request) askNamed(c *sockfd.Copy, name []byte) error {
	if len(name) == 0 {
		return nil
	}
	to, _, ok := inetAddress(name)
	switch {
	case !ok:
		return unix.EINVAL
	case int(binary.NativeEndian.Uint16(name)) != c.Family:
		return unix.EAFNOSUPPORT
	}
	return r.ask(c, to)
}

// sendQuestion does sendto(2) for a socket for questions.
func (r *request) sendQuestion(c *sockfd.Copy) callResult {
	name, err := r.takeSockaddr(r.pointer(4), r.int(5))
	if err == nil {
		err = r.askNamed(c, name)
	}
	if err != nil {
		return fail(err)
	}
	return proceed()
}

// sendQuestions does sendmsg(2) and sendmmsg(2), for messages whose struct msghdr is at these
// addresses, so many bytes from each other.
func (r *request) sendQuestions(c *sockfd.Copy, at uint64, count, distance int) callResult {
	for i := range count {
		name, err := sockfd.ReadName(r.memory, at+uint64(i*distance))
		if err = r.there(err); err == nil {
			err = r.askNamed(c, name)
		}
		if err != nil {
			return fail(err)
		}
	}
	return proceed()
}

// recvfrom does recvfrom(2) with an address.
func (r *request) recvfrom() callResult {
	c := r.questionsAt(r.int(0))
	if c == nil {
		return proceed()
	}
	to, room, at, length := r.pointer(1), r.pointer(2), r.pointer(4), r.pointer(5)
	return r.receive(c, r.int(3), 0, func(r *request, message []byte) callResult {
		if err := r.store(to, message[:min(room, uint64(len(message)))]); err != nil {
			return fail(err)
		}
		if err := r.storeAddress(serverAddress(c), at, length); err != nil {
			return fail(err)
		}
		return callResult{value: r.received(r.int(3), len(message), room)}
	})
}

// received returns what a call that receives returns.
func (r *request) received(flags, size int, room uint64) int64 {
	if flags&unix.MSG_TRUNC != 0 {
		return int64(size)
	}
	return int64(min(room, uint64(size)))
}

// serverAddress returns the address that answers seem to come from.
func serverAddress(c *sockfd.Copy) []byte {
	server := c.Server()
	if !server.IsValid() {
		server = netip.AddrPortFrom(netip.IPv6Unspecified(), gate.DomainPort)
		if c.Family == unix.AF_INET {
			server = netip.AddrPortFrom(netip.IPv4Unspecified(), gate.DomainPort)
		}
	}
	return addressOf(c.Family, server)
}

// recvmsg does recvmsg(2).
func (r *request) recvmsg() callResult {
	c := r.questionsAt(r.int(0))
	if c == nil {
		return proceed()
	}
	return r.receive(c, r.int(2), 0, func(r *request, message []byte) callResult {
		size, err := r.scatter(c, r.pointer(1), r.int(2), message)
		if err != nil {
			return fail(err)
		}
		return callResult{value: size}
	})
}

// recvmmsg does recvmmsg(2), and returns after the first message.
func (r *request) recvmmsg() callResult {
	c := r.questionsAt(r.int(0))
	if c == nil {
		return proceed()
	}
	if uint32(r.pointer(2)) == 0 {
		c.Release()
		return callResult{}
	}
	var patience time.Duration
	if at := r.pointer(4); at != 0 {
		b, err := r.memory(at, 16) // struct timespec
		if err = r.there(err); err != nil {
			c.Release()
			return fail(err)
		}
		patience = max(time.Duration(int64(binary.NativeEndian.Uint64(b)))*time.Second+time.Duration(binary.NativeEndian.Uint64(b[8:])), 1)
	}
	return r.receive(c, r.int(3), patience, func(r *request, message []byte) callResult {
		size, err := r.scatter(c, r.pointer(1), r.int(3), message)
		if err == nil {
			err = r.tell(r.pointer(1), int(size))
		}
		if err != nil {
			return fail(err)
		}
		return callResult{value: 1}
	})
}

// scatter stores a message where the struct msghdr at that address says, and returns what recvmsg(2)
// returns.
func (r *request) scatter(c *sockfd.Copy, at uint64, flags int, message []byte) (int64, error) {
	parts, err := sockfd.ReadBuffers(r.memory, at)
	if err = r.there(err); err != nil {
		return 0, err
	}
	stored := uint64(0)
	for rest := message; len(rest) > 0 && len(parts.Vectors) > 0; parts.Vectors = parts.Vectors[1:] {
		v := parts.Vectors[0]
		part := rest[:min(v.Size, uint64(len(rest)))]
		if err := r.store(v.Base, part); err != nil {
			return 0, err
		}
		rest, stored = rest[len(part):], stored+uint64(len(part))
	}
	said := 0
	if stored < uint64(len(message)) {
		said = unix.MSG_TRUNC
	}
	name := serverAddress(c)
	if parts.Name != 0 {
		if err := r.store(parts.Name, name[:min(parts.NameRoom, len(name))]); err != nil {
			return 0, err
		}
		if err := r.store(at+sockfd.NameSizeAt, binary.NativeEndian.AppendUint32(nil, uint32(len(name)))); err != nil {
			return 0, err
		}
	}
	if err := r.store(at+sockfd.ControlSizeAt, make([]byte, 8)); err != nil {
		return 0, err
	}
	if err := r.store(at+sockfd.FlagsAt, binary.NativeEndian.AppendUint32(nil, uint32(said))); err != nil {
		return 0, err
	}
	return r.received(flags, len(message), stored), nil
}

// maxAnswer bounds an answer, in bytes.
const maxAnswer = 64 << 10

// receive receives a message on a socket for questions, and ends the call with deliver. If there is no
// message and the caller would wait, it waits apart, at most for that time, or for the time of the
// socket. It releases the copy.
func (r *request) receive(c *sockfd.Copy, flags int, patience time.Duration, deliver func(*request, []byte) callResult) callResult {
	try := func(r *request) (callResult, bool) {
		message, err := receiveNow(c.FD, flags)
		switch {
		case err == unix.EAGAIN:
			return fail(err), false
		case err != nil:
			return fail(err), true
		}
		return deliver(r, message), true
	}
	if done, ok := try(r); ok || flags&unix.MSG_DONTWAIT != 0 || isNonblocking(c.FD) {
		c.Release()
		return done
	}
	if patience == 0 {
		patience = timeoutOf(c.FD, unix.SO_RCVTIMEO)
	}
	return r.apart(func(r *request) callResult {
		defer c.Release()
		var until time.Time
		if patience > 0 {
			until = time.Now().Add(patience)
		}
		for {
			wait := look
			if patience > 0 {
				wait = min(wait, time.Until(until))
			}
			if wait <= 0 {
				return fail(unix.EAGAIN)
			}
			ready := []unix.PollFd{{Fd: int32(c.FD), Events: unix.POLLIN}}
			if n, err := unix.Poll(ready, int(wait.Milliseconds())+1); n == 0 || err != nil {
				if err := r.interrupted(); err != nil {
					return fail(err)
				}
				continue
			}
			if done, ok := try(r); ok {
				return done
			}
		}
	}, c.Release)
}

// receiveNow receives a whole message, or fails with EAGAIN. The end of the resolver is ECONNREFUSED.
func receiveNow(fd, flags int) ([]byte, error) {
	b := make([]byte, maxAnswer)
	n, _, err := unix.Recvfrom(fd, b, flags&unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err != nil:
		return nil, err
	case n == 0:
		return nil, unix.ECONNREFUSED
	}
	return b[:n], nil
}
