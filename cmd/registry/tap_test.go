package main

import (
	"bytes"
	"encoding/binary"
	"net"
	"testing"

	"github.com/execagent/execagent/relay/frame"
)

// TestTap: a tap finds all frames that are written to a websocket, into whichever
// pieces the writes cut them. It ignores answers of the API, pings and messages
// that are no frames.
func TestTap(t *testing.T) {
	t.Parallel()
	id := []byte("4faa9b06-fef2-463f-8e45-a01233809670")
	var sent []byte
	want := seen{}
	for _, f := range []frame.Frame{
		{StreamID: id, Body: frame.Resume},
		{StreamID: id, Body: frame.Handshake, Payload: bytes.Repeat([]byte{7}, 3600)},
		{StreamID: id, Body: frame.Data, Payload: []byte("the first record")},
		{StreamID: id, Body: frame.Data, Seq: 1, Payload: bytes.Repeat([]byte{9}, 70_000)},
	} {
		message := f.Append(nil)
		sent = append(sent, websocketFrame(2, message)...)
		sent = append(sent, websocketFrame(9, nil)...) // a ping
		want.frames++
		want.bytes += len(message)
		want.content = append(want.content, message...)
	}
	sent = append(sent, websocketFrame(2, []byte("no frame of a relay"))...)

	for _, piece := range []int{1, 7, 4096, len(sent)} {
		here, there := net.Pipe()
		go func() {
			buffer := make([]byte, 1<<16)
			for {
				if _, err := there.Read(buffer); err != nil {
					return
				}
			}
		}()
		tap := &tap{}
		conn := &tapped{Conn: here, tap: tap}
		for _, head := range []string{"HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"} {
			if _, err := conn.Write([]byte(head)); err != nil {
				t.Fatal(err)
			}
		}
		for rest := sent; len(rest) > 0; {
			n := min(piece, len(rest))
			if m, err := conn.Write(rest[:n]); m != n || err != nil {
				t.Fatal(m, err)
			}
			rest = rest[n:]
		}
		here.Close()
		got := tap.look()
		if got.frames != want.frames || got.bytes != want.bytes || !bytes.Equal(got.content, want.content) {
			t.Errorf("pieces of %d: %d frames of %d bytes, want %d of %d", piece, got.frames, got.bytes, want.frames, want.bytes)
		}
		if len(got.handshakes) != 1 || got.handshakes[0] != 3600 || string(got.record) != "the first record" {
			t.Errorf("pieces of %d: handshakes %v, first record %q", piece, got.handshakes, got.record)
		}
	}
}

// websocketFrame returns a frame as a server sends it, without a mask.
func websocketFrame(opcode byte, payload []byte) []byte {
	head := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < 126:
		head = append(head, byte(n))
	case n < 1<<16:
		head = binary.BigEndian.AppendUint16(append(head, 126), uint16(n))
	default:
		head = binary.BigEndian.AppendUint64(append(head, 127), uint64(n))
	}
	return append(head, payload...)
}

// TestThousands: numbers get a comma between thousands.
func TestThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567"} {
		if got := thousands(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
