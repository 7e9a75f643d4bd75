package socket

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// A text message is reported, and the next message is read as ever.
func TestText(t *testing.T) {
	t.Parallel()
	p, s := rawTCP(t, Config{})
	p.send(t, 0x81, "text")
	p.send(t, binaryFrame, "one")
	p.send(t, 0x01, strings.Repeat("a", 200_000)) // in two fragments
	p.send(t, 0x80, "b")
	p.send(t, 0x02, strings.Repeat("a", MaxMessage-1))
	p.send(t, pingFrame, "")
	p.send(t, 0x80, "b")
	for i, want := range []int{-1, 3, -1, MaxMessage} {
		m, err := s.Read()
		if want < 0 {
			if err != ErrText || m != nil {
				t.Fatalf("message %d: %v, want ErrText", i, err)
			}
			continue
		}
		rig.Must(t, err)
		rig.Is(t, len(m.Bytes), want, "bytes of message %d", i)
		m.Release()
	}
	rig.Check(t, s.Err())
}

// Whatever breaks RFC 6455 ends the socket, and the peer never sees a frame
// of ours for it.
func TestBreaches(t *testing.T) {
	t.Parallel()
	unmasked := appendFrame(nil, binaryFrame, []byte("x"), false)
	tests := []struct {
		name  string
		bytes []byte
		want  error // nil for any
	}{
		{"too large", appendFrame(nil, binaryFrame, make([]byte, MaxMessage+1), true), errTooLarge},
		{"too large text", appendFrame(nil, 0x81, make([]byte, MaxMessage+1), true), errTooLarge},
		{"too large in fragments", appendFrame(appendFrame(nil, 0x02, make([]byte, MaxMessage), true), 0x80, []byte("x"), true), errTooLarge},
		{"endless", binary.BigEndian.AppendUint64([]byte{binaryFrame, 0xff}, 1<<63-1), nil},
		{"close", appendFrame(nil, 0x88, []byte("\x03\xe8secret"), true), io.EOF},
		{"close with an odd code", appendFrame(nil, 0x88, []byte("\x00\x01"), true), nil},
		{"not masked", unmasked, nil},
		{"reserved bit", appendFrame(nil, 0xc2, []byte("x"), true), nil},
		{"unknown opcode", appendFrame(nil, 0x83, []byte("x"), true), nil},
		{"lone continuation", appendFrame(nil, 0x80, []byte("x"), true), nil},
		{"large ping", appendFrame(nil, 0x89, make([]byte, 126), true), nil},
		{"end", nil, io.EOF},
		{"end in a frame", appendFrame(nil, binaryFrame, make([]byte, 100), true)[:50], io.EOF},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, s := rawTCP(t, Config{})
			go func() {
				_, _ = p.Write(tt.bytes) // some are refused half way
				_ = p.Conn.(*net.TCPConn).CloseWrite()
			}()
			for range 3 {
				m, err := s.Read()
				if err == nil || m != nil || tt.want != nil && !errors.Is(err, tt.want) || strings.Contains(err.Error(), "secret") {
					t.Errorf("got %v, want %v", err, tt.want)
				}
			}
			rig.Is(t, s.Err() == nil, false, "there is no error")
			rig.Is(t, s.NewLane(0).Send(message("late")), s.Err(), "Send")
			got, _ := io.ReadAll(p.In)
			rig.Is(t, string(got), "", "what the peer got")
		})
	}
}

func TestUpgradeRefuses(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		method string
		header http.Header
		want   int
	}{
		{"plain", "GET", nil, 400},
		{"post", "POST", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}, 405},
		{"old version", "GET", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"8"}}, 400},
		{"no key", "GET", http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}}, 400},
	}
	for _, tt := range tests {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(tt.method, "/?sig=secret", nil)
		r.Header = tt.header
		s, err := Upgrade(w, r, Config{})
		rig.Is(t, s != nil || err == nil || w.Code != tt.want || strings.Contains(err.Error()+w.Body.String(), "secret"), false,
			"%s: status %d, %v; want %d", tt.name, w.Code, err, tt.want)
	}
}

// FuzzRead reads arbitrary bytes: no panic, no message above the limit, and
// the end comes.
func FuzzRead(f *testing.F) {
	f.Add(appendFrame(nil, binaryFrame, []byte("hello"), true))
	f.Add(appendFrame(appendFrame(nil, 0x02, []byte("he"), true), 0x80, []byte("llo"), true))
	f.Add(appendFrame(appendFrame(nil, 0x81, []byte("text"), true), 0x89, []byte("ping"), true))
	f.Add(appendFrame(nil, 0x88, []byte("\x03\xe8"), true))
	f.Add(appendFrame(nil, binaryFrame, make([]byte, 5000), true))
	f.Add(binary.BigEndian.AppendUint64([]byte{binaryFrame, 0xff}, 1<<63))
	f.Add([]byte{0xc2, 0x80, 0, 0, 0, 0})
	const limit = 4096
	f.Fuzz(func(t *testing.T, script []byte) {
		p, s := rawPipe(t, Config{MaxMessage: limit})
		go func() { _, _ = io.Copy(io.Discard, p.In) }() // pongs
		go func() {
			_, _ = p.Write(script) // some are refused half way
			p.Close()
		}()
		total := 0
		for {
			m, err := s.Read()
			if err == ErrText {
				continue
			}
			if err != nil {
				break
			}
			if len(m.Bytes) > limit {
				t.Fatalf("a message of %d bytes", len(m.Bytes))
			}
			total += len(m.Bytes)
			m.Release()
		}
		rig.Is(t, total <= len(script), true, "bytes of messages: %v, at most %v", total, len(script))
		s.Close()
	})
}

// The largest message takes no more memory than it has bytes, whether its end has
// come or not.
func TestLargestBuffer(t *testing.T) {
	t.Parallel()
	for _, size := range []int{MaxMessage, 100_000, 70_000, 64 << 10, 3000} {
		p, s := rawTCP(t, Config{MaxMessage: size})
		go func() {
			p.Write(appendFrame(nil, 0x02, make([]byte, size), true))
			p.Write(appendFrame(nil, 0x80, nil, true))
		}()
		m := rig.Value(s.Read())
		rig.Is(t, len(m.Bytes), size, "bytes that were read")
		// Buffers have powers of two, but for those that have grown.
		rig.Is(t, cap(m.Bytes) < 2<<bits.Len(uint(size-1)), true, "%d bytes are in a buffer of no more than it takes, %d", size, cap(m.Bytes))
		m.Release()
	}
}
