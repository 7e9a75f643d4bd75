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

// stream has the common methods of *net.TCPConn and *net.UnixConn.
type stream interface {
	net.Conn
	conns.Stream
}

// wire is the connection under a WebSocket. It adds features that gorilla's
// websocket.Conn lacks: a deadline for each read, and writing several messages at
// once. And it drops the close frames that gorilla sends unasked. gorilla gets it as
// an [overTCP], an [overUnix] or an [overTLS].
type wire struct {
	conn stream

	secure *tls.Conn // over below; nil without TLS
	below  *below    // over conn

	// uid is the user whose process connected to our UNIX socket.
	uid uint32

	// patience bounds how long one Read may wait; 0 sets no deadline, as during
	// the HTTP part, which has its own. It is set once, before the connection
	// gets its reader.
	patience time.Duration

	// patient: the current write may take longer than patience while the peer sends
	// something and no large message waits behind the write.
	patient atomic.Bool

	// large is how many large messages are being written or wait to be. They hold
	// memory that others may wait for.
	large atomic.Int32

	// batch holds small messages that are sent together; nil while every write is
	// sent separately. WebSocket.writing guards it.
	batch []byte
}

// overTCP and overUnix are net.Conns with the Read and Write of a wire. All other
// methods come from the types of package net, including the method that net.Buffers
// looks for, so that large messages are sent by writev. This is required, because a
// part that is written separately could begin like a close frame.
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

// newWire returns a wire over conn, and the wire as a net.Conn.
func newWire(conn stream) (*wire, net.Conn) {
	w := &wire{conn: conn}
	if unix, ok := conn.(*net.UnixConn); ok {
		return w, &overUnix{unix, w}
	}
	return w, &overTCP{conn.(*net.TCPConn), w}
}

// client returns the place of a server's client: its address, or its user at a UNIX socket.
func (w *wire) client() string {
	if _, local := w.conn.(*net.UnixConn); local {
		return fmt.Sprintf("uid:%d", w.uid)
	}
	return w.conn.RemoteAddr().String()
}

// wireOf returns the wire of a net.Conn from newWire.
func wireOf(conn net.Conn) *wire { return conn.(interface{ itself() *wire }).itself() }

func (w *wire) itself() *wire { return w }

// batchSize is the size, in bytes, from which on a batch is sent at once.
const batchSize = 32 << 10

// isCloseFrame reports whether p is exactly one unfragmented close frame (RFC 6455, 5.2). Other
// writes cannot be mistaken for one. HTTP is ASCII. Other frames of gorilla start with another
// header. A part of a message may start with any byte, but without TLS it is sent by writev, and it
// is always longer than a close frame can be.
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

// Write drops close frames. gorilla answers a protocol error with one, without
// a setting to prevent it, but a peer that breaks the protocol must be dropped
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

// out returns the connection that messages are written to.
func (w *wire) out() net.Conn {
	if w.secure != nil {
		return w.secure
	}
	return w.conn
}

// collect makes later writes part of a batch.
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

// Read gives the peer the time patience to send anything at all. The deadline
// only runs during a Read, so a peer is never blamed for frames that wait in
// the kernel because our side is busy. Any data shows that the peer is alive.
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

// sendBatch sends as much of the batch as it can without waiting, because the
// connection is about to be closed.
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

// shut closes the connection at once, but so that earlier writes still arrive.
func (w *wire) shut() error {
	conns.Linger(w.conn)
	return w.conn.Close()
}
