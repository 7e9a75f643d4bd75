package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"

	"github.com/execagent/execagent/relay/frame"
)

// maxTapped is how many bytes of frames a tap keeps.
const maxTapped = 4 << 20

// tap is a listener that keeps what the server sends to the websockets it accepts.
// The server passes each frame of a stream on to one of its ends, so that is all that
// a rendezvous sees of the stream. Its methods may be called at once.
type tap struct {
	net.Listener

	mu   sync.Mutex // protects the field below
	seen seen
}

// seen is what a tap has kept.
type seen struct {
	frames     int
	bytes      int
	handshakes []int  // sizes of the messages, in order
	record     []byte // the first one
	content    []byte // of all frames
}

func (t *tap) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tapped{Conn: conn, tap: t}, nil
}

func (t *tap) look() seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// tapped is a connection of a tap. Writes to it come one after another.
type tapped struct {
	net.Conn
	tap       *tap
	websocket bool
	rest      []byte // of what was written, not yet a whole frame
}

func (c *tapped) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	if !c.websocket {
		head, rest, ok := bytes.Cut(c.rest, []byte("\r\n\r\n"))
		if !ok || !bytes.HasPrefix(head, []byte("HTTP/1.1 101")) {
			c.rest = nil // not a frame: an answer of the API
			return c.Conn.Write(p)
		}
		c.websocket, c.rest = true, rest
	}
	for {
		message, rest, ok := cutMessage(c.rest)
		if !ok {
			return c.Conn.Write(p)
		}
		c.tap.note(message)
		c.rest = rest
	}
}

// cutMessage takes one frame off what a server has written to a websocket, which
// masks nothing (RFC 6455, 5.2); message is empty for control frames.
func cutMessage(b []byte) (message, rest []byte, ok bool) {
	const binaryMessage, shortLength = 2, 126
	if len(b) < 2 {
		return nil, b, false
	}
	length, head := uint64(b[1]), uint64(2)
	if length >= shortLength {
		extended := 2 // bytes
		if length > shortLength {
			extended = 8
		}
		if len(b) < 2+extended {
			return nil, b, false
		}
		length = binary.BigEndian.Uint64(append(make([]byte, 8-extended), b[2:2+extended]...))
		head += uint64(extended)
	}
	if uint64(len(b)) < head || uint64(len(b))-head < length {
		return nil, b, false
	}
	if b[0]&0x0f == binaryMessage {
		message = b[head : head+length]
	}
	return message, b[head+length:], true
}

func (t *tap) note(message []byte) {
	var f frame.Frame
	if frame.Decode(message, &f) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.seen.frames++
	t.seen.bytes += len(message)
	switch f.Body {
	case frame.Handshake:
		t.seen.handshakes = append(t.seen.handshakes, len(f.Payload))
	case frame.Data:
		if t.seen.record == nil {
			t.seen.record = bytes.Clone(f.Payload)
		}
	}
	if len(t.seen.content)+len(message) <= maxTapped {
		t.seen.content = append(t.seen.content, message...)
	}
}
