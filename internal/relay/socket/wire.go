package socket

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/execagent/execagent/internal/conns"
)

// maxUpgrade bounds the bytes that a peer may send before the WebSocket is open: the
// head of an HTTP answer. The bound is needed because net/http reads the head without one.
const maxUpgrade = 64 << 10

// maxNoise bounds the bytes that a peer may send within noiseWindow and that are neither
// content nor the first header of a message. These are control frames, and the headers of
// messages in many small fragments. Each such frame costs nearly as much work as a
// message, and no other limit counts it. An honest peer sends twelve of them a minute.
const (
	maxNoise    = 64 << 10
	noiseWindow = 10 * time.Second
)

// errNoise is the error of a socket whose peer sends too much that is no message.
var errNoise = errors.New("peer sends too much that is no message")

var errLongUpgrade = errors.New("answer to the upgrade is too long")

// wire is the connection under a Socket, above TLS if there is any. gorilla
// reads from it. Once the WebSocket is open, wire discards the writes of gorilla. They
// could only be close frames, which are never sent (remote.md 4), and gorilla has no
// option against them. The Socket's own frames go out by write and tryWrite.
type wire struct {
	net.Conn
	gathers bool // write sends both parts in one system call, without a copy

	attempt *attempt // nil if tryWrite cannot be used
	traffic *Traffic // nil until the WebSocket is open, and if bytes are not counted
	open    bool     // the upgrade is complete
	budget  int      // bytes that may still come before the upgrade is complete
	reading atomic.Bool

	// Only the reader uses these fields.
	noise int // bytes that were read after since, less the bytes that used has counted
	since time.Time
}

func newWire(conn net.Conn) *wire {
	_, gathers := conn.(*net.TCPConn)
	return &wire{Conn: conn, gathers: gathers, attempt: newAttempt(conn), budget: maxUpgrade}
}

// tries reports whether tryWrite can write anything here.
func (w *wire) tries() bool { return w.attempt != nil }

// upgraded notes that the WebSocket is open. It must be called before a second goroutine
// uses the wire.
func (w *wire) upgraded() {
	w.open, w.since = true, time.Now()
	tune(w.Conn)
}

// waiting reports whether a Read waits for the peer.
func (w *wire) waiting() bool { return w.reading.Load() }

func (w *wire) Read(p []byte) (int, error) {
	if !w.open {
		if w.budget <= 0 {
			return 0, errLongUpgrade
		}
		n, err := w.Conn.Read(p[:min(len(p), w.budget)])
		w.budget -= n
		return n, err
	}
	// By now used has counted all content that was read, except for up to 4 KiB that
	// gorilla may have read ahead.
	if w.noise > maxNoise {
		if now := time.Now(); now.Sub(w.since) > noiseWindow {
			w.noise, w.since = 0, now
		} else {
			return 0, errNoise
		}
	}
	w.reading.Store(true)
	n, err := w.Conn.Read(p)
	w.reading.Store(false)
	w.noise += n
	w.traffic.received(n)
	return n, err
}

// used notes that n of the bytes that were read are content, or the header of a
// message.
func (w *wire) used(n int) { w.noise -= n }

// Write is called by gorilla only. It drops p once the WebSocket is open.
func (w *wire) Write(p []byte) (int, error) {
	if w.open {
		return len(p), nil
	}
	return w.Conn.Write(p)
}

// SetWriteDeadline is called by gorilla only. It does nothing once the WebSocket is
// open.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.open {
		return nil
	}
	return w.Conn.SetWriteDeadline(t)
}

// write sends a and then b, which may be empty. TCP takes both at once.
func (w *wire) write(a, b []byte) error {
	w.traffic.sent(len(a) + len(b)) // counts too much only if the write fails, and then it is the last
	if len(b) == 0 {
		_, err := w.Conn.Write(a)
		return err
	}
	buffers := net.Buffers{a, b}
	_, err := buffers.WriteTo(w.Conn)
	return err
}

// tcp returns the TCP connection under conn, or nil if there is none.
func tcp(conn net.Conn) *net.TCPConn {
	for conn != nil {
		if c, ok := conn.(*net.TCPConn); ok {
			return c
		}
		above, ok := conn.(interface{ NetConn() net.Conn }) // such as *tls.Conn
		if !ok {
			return nil
		}
		conn = above.NetConn()
	}
	return nil
}

// shut closes the connection at once, below TLS, so that written bytes still arrive.
func (w *wire) shut() error {
	c := tcp(w.Conn)
	if c == nil {
		return w.Conn.Close()
	}
	conns.Linger(c)
	return c.Close()
}
