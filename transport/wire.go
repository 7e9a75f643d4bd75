package transport

import (
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/buffer"
	"github.com/execagent/execagent/internal/linger"
)

// wire is the TCP connection under a WebSocket. It adds what gorilla's
// websocket.Conn leaves to its user: a deadline for each read, and writing several
// messages at once. And it drops the close frames that gorilla sends unasked.
type wire struct {
	*net.TCPConn // with the method behind net.Buffers: large messages go out by writev

	// patience bounds how long one Read may wait; 0 sets no deadline, as
	// during the HTTP part, which has its own. It is set once, before the
	// connection is handed to its reader.
	patience time.Duration

	// patient: what is being written may take longer than patience while the peer sends
	// something.
	patient atomic.Bool

	// batch holds small messages that go out together; nil while every write goes
	// out by itself. WebSocket.writing guards it.
	batch []byte
}

// batchSize is the size, in bytes, from which on a batch is sent at once.
const batchSize = 32 << 10

// closeFrame is the first byte of an unfragmented close frame (RFC 6455, 5.2). No
// other write starts with this byte: HTTP is ASCII, and what gorilla writes
// otherwise, unless by writev, starts with the header of another frame.
const closeFrame = 0x88

// Write drops close frames. gorilla answers a protocol error with one, and
// has no setting against it, but a peer that breaks the protocol is dropped
// without a close frame (rpc.md 1.3).
func (w *wire) Write(p []byte) (int, error) {
	if len(p) > 0 && p[0] == closeFrame {
		return len(p), nil
	}
	if w.batch != nil {
		w.batch = append(w.batch, p...)
		return len(p), nil
	}
	return w.TCPConn.Write(p)
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
	_, err := w.TCPConn.Write(batch)
	w.patient.Store(false)
	buffer.Recycle(batch)
	return err
}

// Read gives the peer patience to send anything at all. The deadline only runs
// while somebody reads, so a peer is never blamed for frames that wait in the
// kernel because our side is busy. What comes shows that the peer is alive.
func (w *wire) Read(p []byte) (int, error) {
	if w.patience > 0 {
		if err := w.SetReadDeadline(time.Now().Add(w.patience)); err != nil {
			return 0, err
		}
	}
	n, err := w.TCPConn.Read(p)
	if n > 0 && w.patient.Load() {
		_ = w.SetWriteDeadline(time.Now().Add(w.patience)) // fails with the writes
	}
	return n, err
}

// sendBatch sends what it can of the batch without waiting: the connection is
// about to be closed.
func (w *wire) sendBatch() {
	batch := w.batch
	w.batch = nil
	raw, err := w.SyscallConn()
	if err != nil || len(batch) == 0 {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = syscall.SendmsgN(int(fd), batch, nil, nil, syscall.MSG_DONTWAIT)
	})
	buffer.Recycle(batch)
}

// shut closes the connection at once, in such a way that what was written still
// arrives.
func (w *wire) shut() error {
	linger.End(w.TCPConn)
	return w.Close()
}
