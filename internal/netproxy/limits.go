package netproxy

import (
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of one proxy. Those on heads are in package head.
const (
	// maxConnections bounds the connections of a command to its proxies. Each may have one more on
	// its other side. More are closed as they come.
	maxConnections = 10_240
	// descriptorShare is the share of the process's descriptors that the connections of a command
	// may have, and that of all commands together: they could take those of all others else.
	descriptorShare, totalShare = 4, 2
	// perConnection is how many descriptors a connection has at most: its own, that of its other
	// side, and a pipe for each direction in which bytes move.
	perConnection = 6

	lookupTime = 5 * time.Second  // for the addresses of a name
	dialTime   = 30 * time.Second // for a connection, over all addresses
	tryTime    = 5 * time.Second  // for one address, while there are others

	// maxHeads bounds the heads that are larger than usual, of all connections together, in bytes.
	maxHeads = 32 << 20

	// maxLookups bounds the names that are resolved at once. Each takes descriptors and goroutines
	// of the resolver, and may have been made up to tell somebody's name server something.
	maxLookups = 32

	maxTries   = 8 // addresses of one name that are dialled; all are judged
	maxInterim = 8 // answers before the answer (100 Continue)

	// maxGreeting bounds what is kept of a tunnel until the name in the greeting of TLS is known.
	maxGreeting = 16 << 10
	// maxUnread bounds what is read of a request that was refused, so that the answer arrives
	// and the next request can follow.
	maxUnread = 256 << 10

	// maxHTTP2 bounds the tunnels in which HTTP/2 is offered while they are looked into: each may
	// have many requests and their bodies under way. In further ones HTTP/1 is spoken.
	maxHTTP2 = 32

	maxAssociations = 32      // for datagrams; each has a buffer for the largest
	maxFlows        = 32      // destinations of each, at once
	maxDatagram     = 1 << 16 // bytes
	maxName         = 255     // bytes of a name, in SOCKS5

	// maxMethod bounds what a report has of a method, in bytes: a command may make one up that
	// is as long as a head, and reports wait in memory.
	maxMethod = 64
)

// timing has the limits of time that the command's side of a connection sets off.
type timing struct {
	idle     time.Duration // between two requests on a connection
	head     time.Duration // for a head, from its first byte on; for the greeting of TLS in a tunnel
	tunnel   time.Duration // without a byte in either direction of a tunnel
	patience time.Duration // after which who waits for an answer looks whether the command still does
	drain    time.Duration // for what is read of a request that was refused
	flow     time.Duration // without a datagram from a destination
}

// usual is the timing outside of tests.
var usual = timing{idle: 5 * time.Minute, head: 30 * time.Second, tunnel: time.Hour, patience: 10 * time.Second, drain: 2 * time.Second, flow: 2 * time.Minute}

// connections returns how many connections the command may have, from what the process may
// have open.
func connections() int {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return maxConnections / descriptorShare
	}
	return int(min(maxConnections, max(limit.Cur/(perConnection*descriptorShare), 16)))
}

// places are for the connections of many commands.
type places struct {
	limit int32
	taken atomic.Int32
}

// together are for those of this program.
var together = &places{limit: int32(connections() * descriptorShare / totalShare)}

// take takes a place, if there is one.
func (s *places) take() bool {
	if s.taken.Add(1) <= s.limit {
		return true
	}
	s.give()
	return false
}

func (s *places) give() { s.taken.Add(-1) }
