package transport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"runtime"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
)

// Timings of a WebSocket (rpc.md 1.3).
const (
	defaultPingInterval = 30 * time.Second
	defaultPeerTimeout  = 90 * time.Second
)

// burstGap is the time after the last message within which a small one counts as
// part of a burst: less than a round trip on the same machine.
const burstGap = 15 * time.Microsecond

// maxPatient is the largest message, in bytes, that may wait for the peer as long as the
// peer is alive. Larger messages may not, not even behind a small one, because other
// connections may wait for their memory.
const maxPatient = 256 << 10

var errNotUTF8 = errors.New("text message is not UTF-8")

// WebSocket is a [rpc.Conn] over a WebSocket, at either end. It reads text and
// binary messages alike and writes text; it never compresses and never sends a
// close frame. [Listener.Accept] and [Dial] make them.
//
// Every PingInterval it sends an empty ping. It drops a peer in three cases. First, the
// peer sends nothing, not even a pong, for PeerTimeout while Read waits. Second, the peer
// does not take a message within PeerTimeout; but a small message may wait while the peer
// sends something, for example because its user reads the output slowly, and no large
// message waits behind it. Third, with a budget, the peer does not continue a large
// message, see [rpc.NewIntake]. Pings of the peer are answered while Read runs. Of several
// pings that arrive while a message is being written, only the last is answered (RFC 6455,
// 5.5.3).
type WebSocket struct {
	ws           *websocket.Conn
	wire         *wire
	principal    string // see Principal
	serves       bool   // it is a server's end, which does not mask its messages
	pingInterval time.Duration
	peerTimeout  time.Duration

	// Only the reader uses these.
	in      *rpc.Intake // closed with the connection
	readErr error       // of an earlier Read
	// lastSizes are the sizes of the last two messages. Two large ones in a row,
	// blocks of a file or writes to a process, are usually followed by a third,
	// which then gets a large buffer at once.
	lastSizes [2]int

	writing   sync.Mutex // held while a message or control frame is sent; guards the next two
	lastWrite time.Time
	flushing  bool // a writer is about to flush the batch

	mu     sync.Mutex // protects the fields below
	closed bool
	late   bool // closed because the peer did not continue a message
	ping   *time.Timer
	expiry *time.Timer // when the peer loses the right to connect; nil: never
	leave  func()      // called by Close
	due    dueFrames
}

// dueFrames are control frames that wait for the writer.
type dueFrames struct {
	ping, pong bool
	payload    string // of the pong
}

// newWebSocket makes a WebSocket that owns ws and w, the connection under it.
// Zero durations mean the defaults, a nil budget means none.
func newWebSocket(ws *websocket.Conn, w *wire, pingInterval, peerTimeout time.Duration, budget *rpc.Budget) *WebSocket {
	if pingInterval <= 0 {
		pingInterval = defaultPingInterval
	}
	if peerTimeout <= 0 {
		peerTimeout = defaultPeerTimeout
	}
	w.patience = peerTimeout
	c := &WebSocket{ws: ws, wire: w, pingInterval: pingInterval, peerTimeout: peerTimeout}
	c.in = rpc.NewIntake(budget, peerTimeout, c.abandon)
	ws.SetReadLimit(maxMessage)
	ws.SetPingHandler(c.answerPing)
	ws.SetCloseHandler(func(int, string) error { return nil }) // no echo: rpc.md 1.3

	c.mu.Lock()
	defer c.mu.Unlock()
	c.ping = time.AfterFunc(pingInterval, c.sendPing)
	return c
}

// begin has Close call leave, and ends the connection when the right of its peer does: then
// expired is called first. The zero time is never. If the connection is closed already, for
// example because a ping failed, begin calls leave.
func (c *WebSocket) begin(leave func(), expires time.Time, expired func()) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		leave()
		return
	}
	defer c.mu.Unlock()
	c.leave = leave
	if !expires.IsZero() {
		c.expiry = time.AfterFunc(time.Until(expires), func() {
			expired()
			_ = c.Close()
		})
	}
}

// Read returns the next message, see [rpc.Conn]. A message above [maxMessage]
// is [ErrTooLarge]. It closes the connection, like a text message that is not
// UTF-8 and every other violation of RFC 6455. A close frame is io.EOF, and so
// is the end of the stream outside a message.
func (c *WebSocket) Read() ([]byte, error) {
	if c.readErr != nil {
		return nil, c.readErr
	}
	message, err := c.readMessage()
	if err == nil {
		return message, nil
	}
	c.readErr = c.explain(err)
	if c.readErr != io.EOF {
		c.Close()
	}
	return nil, c.readErr
}

func (c *WebSocket) readMessage() ([]byte, error) {
	if err := c.in.Begin(); err != nil {
		return nil, err
	}
	kind, frames, err := c.ws.NextReader()
	if err != nil {
		// gorilla reports the end of the stream as code 1006, which no close
		// frame may carry (RFC 6455, 7.4.1).
		if websocket.IsCloseError(err, websocket.CloseAbnormalClosure) {
			return nil, io.EOF
		}
		return nil, err
	}
	message, err := readAll(c.in, frames, min(c.lastSizes[0], c.lastSizes[1]))
	if err != nil {
		return nil, err
	}
	c.lastSizes = [2]int{len(message), c.lastSizes[0]}
	if kind == websocket.TextMessage && !utf8.Valid(message) {
		c.in.Recycle(message)
		return nil, errNotUTF8
	}
	return message, nil
}

// explain turns an error of a read into the error that Read promises.
func (c *WebSocket) explain(err error) error {
	switch closed, late := c.state(); {
	case late:
		return fmt.Errorf("peer sent too little of a message in %v: %w", c.peerTimeout, os.ErrDeadlineExceeded)
	case closed:
		return net.ErrClosed
	}
	if errors.Is(err, websocket.ErrReadLimit) {
		return ErrTooLarge
	}
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		if closed.Code == websocket.CloseAbnormalClosure {
			return io.ErrUnexpectedEOF
		}
		return io.EOF
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("peer sent nothing for %v: %w", c.peerTimeout, os.ErrDeadlineExceeded)
	}
	return err
}

// Write sends a message, see [rpc.Conn]. Any error closes the connection.
//
// Small messages in quick succession, the answers to pipelined requests, share
// a system call: then Write may return before its message is sent, and only the
// reader and later writes see an error.
func (c *WebSocket) Write(message []byte) error {
	defer c.hurry(len(message))()
	c.writing.Lock()
	now := time.Now()
	burst := len(message) <= serverWriteBuffer && now.Sub(c.lastWrite) < burstGap
	c.lastWrite = now
	if burst {
		c.wire.collect()
	} else if err := c.flushLocked(); err != nil {
		c.writing.Unlock()
		return err
	}
	err := c.writeFrameLocked(websocket.TextMessage, message)
	if err == nil {
		c.writeDueLocked()
	}
	if err == nil && len(c.wire.batch) >= batchSize {
		err = c.flushLocked()
	}
	if err == nil && burst && !c.flushing {
		// Other goroutines with a ready answer put it into the batch before this
		// one runs again.
		c.flushing = true
		c.writing.Unlock()
		runtime.Gosched()
		c.writing.Lock()
		c.flushing = false
		err = c.flushLocked()
	}
	c.writing.Unlock()
	c.flushDue()
	return err
}

// WriteParts sends a message in one frame, see [rpc.PartsWriter]. Any error
// closes the connection.
func (c *WebSocket) WriteParts(size int, parts iter.Seq[[]byte]) error {
	if !c.serves {
		message := whole(size, parts)
		defer buffer.Recycle(message)
		return c.Write(message)
	}
	defer c.hurry(size)()
	c.writing.Lock()
	err := c.flushLocked()
	if err == nil {
		// All parts together have as much time as Write has for a whole message.
		_ = c.wire.conn.SetWriteDeadline(time.Now().Add(c.peerTimeout)) // fails with the writes
		c.wire.patient.Store(size <= maxPatient)
		err = writeParts(c.wire.out(), frameHeader(size), size, parts)
		c.wire.patient.Store(false)
		err = c.wrote(err)
		c.writeDueLocked()
	}
	c.writing.Unlock()
	c.flushDue()
	return err
}

// hurry ends the patience for writes ahead of a message of that size, if the message is large.
// Otherwise a peer that is alive, but takes nothing, would hold its memory for ever. The caller
// calls written when the message was written.
func (c *WebSocket) hurry(size int) (written func()) {
	if size <= maxPatient {
		return func() {}
	}
	c.wire.large.Add(1)
	return func() { c.wire.large.Add(-1) }
}

// frameHeader begins an unfragmented text message of a server (RFC 6455, 5.2).
func frameHeader(size int) []byte {
	const final = 0x80
	header := []byte{final | websocket.TextMessage}
	switch {
	case size < 126:
		return append(header, byte(size))
	case size < 1<<16:
		return binary.BigEndian.AppendUint16(append(header, 126), uint16(size))
	}
	return binary.BigEndian.AppendUint64(append(header, 127), uint64(size))
}

// flushLocked sends the batch, if there is one. Here and below, Locked means the
// mutex writing, not mu.
func (c *WebSocket) flushLocked() error { return c.wrote(c.wire.flush()) }

// writeFrameLocked writes a message or a control frame: gorilla's WriteMessage serves
// for both. At the server it copies only the first bytes of a large message.
func (c *WebSocket) writeFrameLocked(kind int, payload []byte) error {
	// gorilla only remembers the deadline here; setting it cannot fail.
	_ = c.ws.SetWriteDeadline(time.Now().Add(c.peerTimeout))
	c.wire.patient.Store(len(payload) <= maxPatient)
	err := c.ws.WriteMessage(kind, payload)
	c.wire.patient.Store(false)
	return c.wrote(err)
}

// wrote ends the connection if a write failed, and returns the reason.
func (c *WebSocket) wrote(err error) error {
	if err == nil {
		return nil
	}
	if c.isClosed() {
		return net.ErrClosed
	}
	c.Close()
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("peer took no message for %v: %w", c.peerTimeout, os.ErrDeadlineExceeded)
	}
	return err
}

// answerPing runs in the reader's goroutine. If a goroutine is writing, answerPing
// leaves the pong to it, because a writer may have to wait for a peer that does
// not read, but the reader must not wait.
func (c *WebSocket) answerPing(payload string) error {
	c.mu.Lock()
	c.due.pong, c.due.payload = true, payload
	c.mu.Unlock()
	c.flushDue()
	return nil
}

// sendPing is the timer's function.
func (c *WebSocket) sendPing() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.due.ping = true
	c.ping.Reset(c.pingInterval)
	c.mu.Unlock()
	c.flushDue()
}

// flushDue sends the control frames that are due. If a writer is active, the
// writer sends them. The loop is for a frame that becomes due after the writer
// looked for such frames and before it unlocks.
func (c *WebSocket) flushDue() {
	for c.isDue() && c.writing.TryLock() {
		c.writeDueLocked()
		c.writing.Unlock()
	}
}

// writeDueLocked sends the control frames that are due.
func (c *WebSocket) writeDueLocked() {
	c.mu.Lock()
	due := c.due
	c.due = dueFrames{}
	c.mu.Unlock()
	// An error closes the connection, which the reader will notice.
	if due.pong {
		_ = c.writeFrameLocked(websocket.PongMessage, []byte(due.payload))
	}
	if due.ping {
		_ = c.writeFrameLocked(websocket.PingMessage, nil)
	}
}

func (c *WebSocket) isDue() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.due.ping || c.due.pong
}

func (c *WebSocket) isClosed() bool {
	closed, _ := c.state()
	return closed
}

func (c *WebSocket) state() (closed, late bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed, c.late
}

// abandon drops a peer that does not continue a message, because others may wait
// for the memory that it holds.
func (c *WebSocket) abandon() {
	c.mu.Lock()
	c.late = c.late || !c.closed
	c.mu.Unlock()
	_ = c.Close() // the reader returns the reason
}

// Intake returns what the messages are put together in, see [rpc.Metered].
func (c *WebSocket) Intake() *rpc.Intake { return c.in }

// Close ends the connection at once, without a close frame. Earlier writes still
// arrive. Close does not wait for a ping that is being sent, which ends with the
// connection.
func (c *WebSocket) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.ping.Stop()
	if c.expiry != nil {
		c.expiry.Stop()
	}
	leave := c.leave
	c.mu.Unlock()
	c.in.Close()
	if c.writing.TryLock() { // otherwise a writer is stuck, or is sending the batch
		c.wire.sendBatch()
		c.writing.Unlock()
	}
	err := c.wire.shut()
	if leave != nil {
		leave()
	}
	return err
}

// Principal is the proven identity of the client, see [rpc.Identified]: the subject of
// its JWT, else of its certificate, else the user whose process connected to a UNIX
// socket. At the client's end it is "".
func (c *WebSocket) Principal() string { return c.principal }

// String is the label of the connection in error texts, with [WebSocket.Remote].
func (c *WebSocket) String() string { return "websocket " + c.Remote() }

// Remote is the peer's address, see [rpc.Located]: "127.0.0.1:44696", or the path of the socket, or
// the client's user.
func (c *WebSocket) Remote() string {
	if c.serves {
		return c.wire.client()
	}
	return c.wire.conn.RemoteAddr().String()
}
