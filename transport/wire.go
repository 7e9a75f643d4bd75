package transport

import (
	"crypto/tls"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/conns"
)

// stream is what *net.TCPConn and *net.UnixConn both are.
type stream interface {
	net.Conn
	conns.Stream
}

// wire is the connection under a WebSocket. It adds what gorilla's websocket.Conn
// leaves to its user: a deadline for each read, and writing several messages at once.
// And it drops the close frames that gorilla sends unasked. gorilla has it as an
// [overTCP], an [overUnix] or an [overTLS].
type wire struct {
	conn stream

	secure *tls.Conn // over below; nil without TLS
	below  *below    // over conn

	// uid is the user whose process has connected to our UNIX socket.
	uid uint32

	// patience bounds how long one Read may wait; 0 sets no deadline, as
	// during the HTTP part, which has its own. It is set once, before the
	// connection is handed to its reader.
	patience time.Duration

	// patient: what is being written may take longer than patience while the peer sends
	// something, and no large message waits behind it.
	patient atomic.Bool

	// large is how many large messages are being written or wait for that. They hold
	// memory that others may wait for.
	large atomic.Int32

	// batch holds small messages that go out together; nil while every write goes
	// out by itself. WebSocket.writing guards it.
	batch []byte
}

// overTCP and overUnix are net.Conns with the Read and Write of a wire. All else is of
// the type from package net, also the method that net.Buffers looks for: so large
// messages go out by writev. They must: a part that is written by itself could begin
// like a close frame.
type (
	overTCP struct {
		*net.TCPConn
		*wire
	}
	overUnix struct {
		*net.UnixConn
		*wire
	}
)

// newWire returns a wire over conn, and the same as a net.Conn.
func newWire(conn stream) (*wire, net.Conn) {
	w := &wire{conn: conn}
	if unix, ok := conn.(*net.UnixConn); ok {
		return w, &overUnix{unix, w}
	}
	return w, &overTCP{conn.(*net.TCPConn), w}
}

// client is where the client of a server is: its address, or its user at a UNIX socket.
func (w *wire) client() string {
	if _, local := w.conn.(*net.UnixConn); local {
		return fmt.Sprintf("uid:%d", w.uid)
	}
	return w.conn.RemoteAddr().String()
}

// wireOf returns the wire of what newWire has returned.
func wireOf(conn net.Conn) *wire { return conn.(interface{ itself() *wire }).itself() }

func (w *wire) itself() *wire { return w }

// batchSize is the size, in bytes, from which on a batch is sent at once.
const batchSize = 32 << 10

// isCloseFrame tells whether p is an unfragmented close frame and nothing else (RFC 6455, 5.2).
// HTTP is ASCII, and what gorilla writes otherwise starts with the header of another frame, or is
// a part of a message, which may start with any byte: without TLS it goes out by writev, and
// it is always longer than a close frame can be.
func isCloseFrame(p []byte) bool {
	const closeFrame, mask = 0x88, 0x80
	if len(p) < 2 || p[0] != closeFrame {
		return false
	}
	if p[1]&mask != 0 {
		return len(p) == 6+int(p[1]&^mask)
	}
	return len(p) == 2+int(p[1])
}

// Write drops close frames. gorilla answers a protocol error with one, and
// has no setting against it, but a peer that breaks the protocol is dropped
// without a close frame (rpc.md 1.3).
func (w *wire) Write(p []byte) (int, error) {
	if isCloseFrame(p) {
		return len(p), nil
	}
	if w.batch != nil {
		w.batch = append(w.batch, p...)
		return len(p), nil
	}
	return w.out().Write(p)
}

// out is what messages are written to.
func (w *wire) out() net.Conn {
	if w.secure != nil {
		return w.secure
	}
	return w.conn
}

// collect makes the writes that follow part of a batch.
func (w *wire) collect() {
	if w.batch == nil {
		w.batch = buffer.Get(batchSize)
	}
}

// flush sends the batch, if there is one.
func (w *wire) flush() error {
	batch := w.batch
	if batch == nil {
		return nil
	}
	w.batch = nil
	w.patient.Store(true)
	_, err := w.out().Write(batch)
	w.patient.Store(false)
	buffer.Recycle(batch)
	return err
}

// Read gives the peer patience to send anything at all. The deadline only runs
// while somebody reads, so a peer is never blamed for frames that wait in the
// kernel because our side is busy. What comes shows that the peer is alive.
func (w *wire) Read(p []byte) (int, error) {
	if w.patience > 0 {
		if err := w.conn.SetReadDeadline(time.Now().Add(w.patience)); err != nil {
			return 0, err
		}
	}
	n, err := w.out().Read(p)
	if n > 0 && w.patient.Load() && w.large.Load() == 0 {
		_ = w.conn.SetWriteDeadline(time.Now().Add(w.patience)) // fails with the writes
	}
	return n, err
}

// sendBatch sends what it can of the batch without waiting: the connection is
// about to be closed.
func (w *wire) sendBatch() {
	batch := w.batch
	w.batch = nil
	switch {
	case w.secure != nil:
		w.part(batch)
	case len(batch) > 0:
		sendNow(w.conn, batch)
	}
	buffer.Recycle(batch)
}

// shut closes the connection at once, in such a way that what was written still
// arrives.
func (w *wire) shut() error {
	conns.Linger(w.conn)
	return w.conn.Close()
}
