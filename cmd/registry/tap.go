package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"sync"

	"github.com/execagent/execagent/relay/frame"
)

// maxTapped is how many bytes of frames a tap keeps. Frames beyond that are only
// counted.
const maxTapped = 4 << 20

// tap is a listener that keeps what the server writes to the websockets that come
// from it. A rendezvous passes each frame of a stream on to one of the stream's
// ends, so what it writes is all that it has seen of the stream. The methods may be
// called at once.
type tap struct {
	net.Listener

	mu   sync.Mutex // protects seen
	seen seen
}

// seen is what a tap has kept.
type seen struct {
	frames     int
	bytes      int
	handshakes []int  // the sizes of the handshake messages, in bytes, in order
	record     []byte // the first encrypted record; nil: none yet
	content    []byte // the frames one after another, up to maxTapped bytes
}

// Accept returns a connection that tells the tap what is written to it.
func (t *tap) Accept() (net.Conn, error) {
	conn, err := t.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &tapped{Conn: conn, tap: t}, nil
}

// look returns what the tap has kept so far. The caller must not change it.
func (t *tap) look() seen {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen
}

// tapped is a connection of a tap. The server calls Write from one goroutine at a
// time.
type tapped struct {
	net.Conn
	tap       *tap
	websocket bool   // the answer to the upgrade was written, frames follow
	rest      []byte // the end of what was written, if it is not yet a whole frame
}

// Write notes the frames in what is written and passes all of it on.
func (c *tapped) Write(p []byte) (int, error) {
	c.rest = append(c.rest, p...)
	if !c.websocket {
		head, rest, ok := bytes.Cut(c.rest, []byte("\r\n\r\n"))
		if !ok || !bytes.HasPrefix(head, []byte("HTTP/1.1 101")) {
			c.rest = nil // an answer of the API, and no frames
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

// cutMessage takes one websocket frame off b, which a server has written. Servers
// do not mask frames (RFC 6455, 5.2). ok is false if b holds no whole frame yet;
// message is nil for a frame that is not binary, such as a ping.
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

// note counts and keeps a message if it is a frame of the relay.
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
