package rpc

import (
	"errors"
	"iter"
	"net"
)

// ErrRevoked is the error of Read after the other side lost its right to
// connect: it will not come back, so its session can end.
var ErrRevoked = errors.New("the right to this connection was revoked")

// Conn carries whole messages between two peers. WebSocket, stdio and the
// relay's streams implement it; [Pipe] is the in-memory pair for tests.
// rpctest.TestConn tests a new implementation in this module.
type Conn interface {
	// Read returns the next whole message. It is called by one goroutine at a time.
	// The slice belongs to the caller. An
	// orderly end is io.EOF; see also [ErrRevoked]. After any error every further
	// call fails too.
	Read() ([]byte, error)
	// Write sends one whole message. Any number of goroutines may call it;
	// messages are never interleaved. It blocks while the other side does
	// not read, and does not keep the slice.
	Write(message []byte) error
	// Close ends the connection at once and unblocks Read and Write. It may be
	// called more than once, and at the same time as them.
	Close() error
}

// Identified is a [Conn] whose other end has proven its identity.
type Identified interface {
	// Principal names that identity, the same for all its connections: "uid:1000",
	// "sub:alice", "cert:CN=ci"; "" if anybody may connect.
	Principal() string
}

// Located is a [Conn] that knows the address of its other end.
type Located interface {
	// Remote returns the address as text, for logs: "192.0.2.1:44696", "uid:1000".
	Remote() string
}

// Revocable is a [Conn] whose other end may lose its right to connect, even after
// the connection has ended.
type Revocable interface {
	// Holder names the holder of that right, in the words of the party that revokes it:
	// the same for all connections of the holder, "" if unknown. It does not prove an
	// identity.
	Holder() string
}

// Rejecter is a [Conn] that ends with the first message that is not JSON-RPC. On
// any other Conn a [Peer] answers such a message with an error, and reads on.
type Rejecter interface {
	// Reject ends the connection because of the message that was read last.
	Reject(reason error)
}

// Metered is a [Conn] whose messages take from a [Budget]. The caller of Read
// returns each message with [Intake.Recycle].
type Metered interface {
	Intake() *Intake
}

// ErrParts says that the parts of a message together have another length than
// their writer announced: a bug of the writer.
var ErrParts = errors.New("the parts of a message are not as long as was said")

// PartsWriter is a [Conn] that can send a message piece by piece, so that the whole
// message never lies in memory.
type PartsWriter interface {
	// WriteParts is Write for the message that parts yields, size bytes in total.
	// If the parts have another length in total, the error is [ErrParts], and the
	// connection ends. WriteParts keeps no part once it asks for the next one.
	WriteParts(size int, parts iter.Seq[[]byte]) error
}

// Listener yields connections, as net.Listener does.
type Listener interface {
	// Accept returns the next connection. After Close it returns net.ErrClosed.
	Accept() (Conn, error)
	// Close stops accepting and unblocks Accept; accepted connections live on.
	Close() error
	// Addr is the address of the listener, nil if there is none.
	Addr() net.Addr
}
