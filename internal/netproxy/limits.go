package netproxy

import (
	"time"

	"github.com/execagent/execagent/internal/share"
)

// Limits of one proxy. Limits on heads are in package head.
const (
	// maxConnections bounds the connections of a command to its proxies. Each of them may have one
	// more connection to a destination. Connections above the limit are closed when they arrive.
	maxConnections = 10_240
	// descriptorShare is a divisor. The connections of one command may use 1/descriptorShare of the
	// process's descriptors. Besides, they count as descriptors of the command's owner.
	descriptorShare = 4
	// perConnection is the highest number of descriptors for one connection: its own, that of the
	// connection to its destination, and a pipe (two descriptors) for each direction in which bytes
	// move.
	perConnection = 6
	// connectionMemory is about what a connection takes while bytes move, in bytes.
	connectionMemory = 48 << 10
	// DefaultMemory bounds the memory of all connections of all commands, in bytes.
	DefaultMemory = 256 << 20

	lookupTime = 5 * time.Second  // for resolving a name
	dialTime   = 30 * time.Second // for making a connection, over all addresses
	tryTime    = 5 * time.Second  // for one address, if there are more addresses to try
	heldTime   = 10 * time.Second // for making a connection that a connect(2) of the command waits for

	// maxHeads bounds the memory for heads that are larger than usual, in bytes, for all connections
	// together.
	maxHeads = 32 << 20

	// maxLookups bounds the names that are resolved at once. Each lookup takes descriptors and
	// goroutines of the resolver. A command may also invent names in order to send data to a name
	// server.
	maxLookups = 32

	maxTries   = 8 // number of addresses of one name that are dialled; all addresses are judged
	maxInterim = 8 // number of interim answers (such as 100 Continue) before the final answer

	// maxGreeting bounds the bytes of a tunnel that are kept until the name in the TLS greeting is
	// known.
	maxGreeting = 16 << 10
	// maxUnread bounds the bytes that are read of a refused request, in order that the answer arrives
	// and the next request can follow.
	maxUnread = 256 << 10

	// maxHTTP2 bounds the tunnels that are looked into and in which HTTP/2 is offered, because each
	// may carry many requests and bodies at once. Further tunnels use HTTP/1.
	maxHTTP2 = 32

	maxAssociations = 32      // of UDP ASSOCIATE; each has a buffer for the largest datagram
	maxFlows        = 32      // destinations of one association at the same time
	maxDatagram     = 1 << 16 // bytes
	maxName         = 255     // bytes of a name in SOCKS5

	// maxMethod bounds the bytes of a method in a report. A command may invent a method that is as
	// long as a head, and reports wait in memory.
	maxMethod = 64
	// maxPath bounds the bytes of a path in a question and in a report, before the "..." of a path that is cut.
	maxPath = 512
)

// timing has the time limits for the command's side of a connection.
type timing struct {
	idle     time.Duration // between two requests of one connection
	head     time.Duration // for a head, counted from its first byte; also for the TLS greeting in a tunnel
	tunnel   time.Duration // for a tunnel in which no byte moves in either direction
	patience time.Duration // interval at which a waiting exchange checks whether the command has hung up
	drain    time.Duration // for reading the rest of a refused request
	family   time.Duration // after a failed attempt at an address of a name, for one at the address of the other family
	flow     time.Duration // for a flow on which no datagram comes from the destination
}

// usual is the timing; only tests use another.
var usual = timing{idle: 5 * time.Minute, head: 30 * time.Second, tunnel: time.Hour, patience: 10 * time.Second, drain: 2 * time.Second, family: 3 * time.Second, flow: 2 * time.Minute}

// Memory is the memory of the connections of all commands of this process. A program that has less
// lowers Max.
var Memory = &share.Pool{What: "bytes for connections through proxies", Max: DefaultMemory}

// connections returns how many connections the command may have. The number depends on the
// process's limit of open descriptors (RLIMIT_NOFILE).
func connections() int {
	return int(min(maxConnections, max(share.Limit()/(perConnection*descriptorShare), 16)))
}

// takeShare counts a connection of the command. It reports whether the command's owner may have one more.
func (p *Proxy) takeShare() bool {
	if p.memory.Take(p.cfg.Owner, connectionMemory) != nil {
		return false
	}
	if share.Descriptors().Take(p.cfg.Owner, perConnection) != nil {
		p.memory.Give(p.cfg.Owner, connectionMemory)
		return false
	}
	return true
}

func (p *Proxy) giveShare() {
	share.Descriptors().Give(p.cfg.Owner, perConnection)
	p.memory.Give(p.cfg.Owner, connectionMemory)
}
