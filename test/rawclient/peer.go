package rawclient

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"testing"
)

// A Peer is the client's end of a WebSocket that may break every rule.
type Peer struct {
	net.Conn
	In *bufio.Reader // what the server sends
}

// Upgrade sends a request over conn, which must be answered with the change to the WebSocket
// protocol. The connection ends with the test.
func Upgrade(t testing.TB, conn net.Conn, request string) *Peer {
	t.Helper()
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	p := &Peer{Conn: conn, In: bufio.NewReader(conn)}
	response, err := http.ReadResponse(p.In, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: got status %s", response.Status)
	}
	return p
}

// Frame returns what a client sends: first is the byte with the opcode, and the payload is masked.
func Frame(first byte, payload []byte) []byte {
	f := []byte{first}
	switch n := len(payload); {
	case n < 126:
		f = append(f, 0x80|byte(n))
	case n < 1<<16:
		f = binary.BigEndian.AppendUint16(append(f, 0x80|126), uint16(n))
	default:
		f = binary.BigEndian.AppendUint64(append(f, 0x80|127), uint64(n))
	}
	mask := [4]byte{1, 2, 3, 4}
	f = append(f, mask[:]...)
	for i, b := range payload {
		f = append(f, b^mask[i&3])
	}
	return f
}

// Send writes frames at once, or other bytes.
func (p *Peer) Send(t testing.TB, frames ...[]byte) {
	t.Helper()
	if _, err := p.Write(bytes.Join(frames, nil)); err != nil {
		t.Fatal(err)
	}
}

// Next reads a frame of the server, whole.
func (p *Peer) Next() (first byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.In, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	switch size {
	case 126:
		var n [2]byte
		_, err = io.ReadFull(p.In, n[:])
		size = uint64(binary.BigEndian.Uint16(n[:]))
	case 127:
		var n [8]byte
		_, err = io.ReadFull(p.In, n[:])
		size = binary.BigEndian.Uint64(n[:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(p.In, payload)
	return head[0], payload, err
}
