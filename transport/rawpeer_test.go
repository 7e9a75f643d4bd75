package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"testing"
	"time"
)

// rawPeer is the client end of a WebSocket that may break every rule.
type rawPeer struct {
	net.Conn
	r *bufio.Reader
}

func dialRaw(t testing.TB, l *Listener) *rawPeer {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n"+upgradeHeaders+"\r\n"); err != nil {
		t.Fatal(err)
	}
	p := &rawPeer{Conn: conn, r: bufio.NewReader(conn)}
	response, err := http.ReadResponse(p.r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("upgrade: got status %s", response.Status)
	}
	return p
}

func rawPair(t testing.TB, config Config) (*rawPeer, *WebSocket) {
	t.Helper()
	l := listen(t, config)
	p := dialRaw(t, l)
	return p, accept(t, l)
}

// frame is what a client sends: masked, unless the caller changes the bytes.
func frame(first byte, payload []byte) []byte {
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

func (p *rawPeer) send(t testing.TB, frames ...[]byte) {
	t.Helper()
	if _, err := p.Write(bytes.Join(frames, nil)); err != nil {
		t.Fatal(err)
	}
}

// next reads a frame of the server, whole.
func (p *rawPeer) next() (first byte, payload []byte, err error) {
	var head [2]byte
	if _, err := io.ReadFull(p.r, head[:]); err != nil {
		return 0, nil, err
	}
	size := uint64(head[1])
	switch size {
	case 126:
		var n [2]byte
		_, err = io.ReadFull(p.r, n[:])
		size = uint64(binary.BigEndian.Uint16(n[:]))
	case 127:
		var n [8]byte
		_, err = io.ReadFull(p.r, n[:])
		size = binary.BigEndian.Uint64(n[:])
	}
	if err != nil {
		return 0, nil, err
	}
	payload = make([]byte, size)
	_, err = io.ReadFull(p.r, payload)
	return head[0], payload, err
}

// wantDropped fails unless the server ends the TCP connection having sent
// nothing, no close frame either.
func (p *rawPeer) wantDropped(t testing.TB) {
	t.Helper()
	first, payload, err := p.next()
	if err == nil {
		t.Fatalf("got frame %#x %q, want the connection dropped", first, payload)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("the connection is still open")
	}
}
