package filecopy

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"
)

// Window is how many bytes the tool sends beyond those that the other end has received. An agent
// keeps this much of the tool's output, so that nothing is lost with a connection.
const Window = 4 << 20

// errLeft ends a tool whose other end is gone.
var errLeft = errors.New("the other end is gone")

// window writes no more than [Window] bytes beyond those that have been acknowledged.
type window struct {
	ctx context.Context
	w   io.Writer

	mu       sync.Mutex
	sent     uint64
	received uint64
	opened   chan struct{} // closed when received grows; nil while nobody waits
}

func newWindow(ctx context.Context, w io.Writer) *window { return &window{ctx: ctx, w: w} }

// Write writes p in pieces, and waits until there is room for each piece.
func (w *window) Write(p []byte) (n int, err error) {
	for n < len(p) {
		room, err := w.room()
		if err != nil {
			return n, err
		}
		piece := p[n:min(len(p), n+room)]
		w.mu.Lock()
		w.sent += uint64(len(piece)) // before it can be acknowledged
		w.mu.Unlock()
		m, err := w.w.Write(piece)
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// room waits until bytes can be sent, and returns how many.
func (w *window) room() (int, error) {
	for {
		w.mu.Lock()
		room := Window - int(w.sent-w.received)
		if room > 0 {
			w.mu.Unlock()
			return room, context.Cause(w.ctx)
		}
		if w.opened == nil {
			w.opened = make(chan struct{})
		}
		opened := w.opened
		w.mu.Unlock()
		select {
		case <-opened:
		case <-w.ctx.Done():
			return 0, context.Cause(w.ctx)
		}
	}
}

// follow reads acknowledgements until they end.
func (w *window) follow(acknowledged io.Reader) error {
	var message [8]byte
	for {
		if _, err := io.ReadFull(acknowledged, message[:]); err != nil {
			return errLeft
		}
		received := binary.BigEndian.Uint64(message[:])
		w.mu.Lock()
		if received < w.received || received > w.sent {
			w.mu.Unlock()
			return errors.New("more is acknowledged than was sent")
		}
		w.received = received
		if w.opened != nil {
			close(w.opened)
			w.opened = nil
		}
		w.mu.Unlock()
	}
}

// Acknowledge returns the message that tells the tool how many of its bytes have come in total. The
// other end sends a message for each quarter of [Window], or more.
func Acknowledge(received uint64) []byte { return binary.BigEndian.AppendUint64(nil, received) }
