package transport

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/internal/tlsconfig"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

// patience is how long a step of a test may take before it fails. The machine
// may have much else to do.
const patience = 5 * time.Minute

func TestWebSocketConn(t *testing.T) {
	t.Parallel()
	a, dir := certified(t)
	for name, config := range map[string]func(t *testing.T) Config{
		"TCP":  func(*testing.T) Config { return Config{} },
		"TLS":  func(t *testing.T) Config { return Config{URL: wssAny, TLS: server(t, dir, "")} },
		"UNIX": func(t *testing.T) Config { return Config{URL: unixURL(t)} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rpctest.TestConn(t, func(t *testing.T) (x, y rpc.Conn) {
				x, y = webSocketPair(t, config(t), DialConfig{TLS: tlsconfig.Client(a.roots)})
				return x, y
			})
			t.Run("large messages", func(t *testing.T) {
				t.Parallel()
				client, server := webSocketPair(t, config(t), DialConfig{TLS: tlsconfig.Client(a.roots)})
				largeMessages(t, client, server)
			})
		})
	}
}

// A connection through a proxy that ends TLS, as agents have in front of them,
// keeps the promises too.
func TestWebSocketConnOverTLS(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	target := rig.Value(url.Parse(strings.Replace(l.URL(), "ws:", "http:", 1)))
	proxy := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(proxy.Close)
	roots := x509.NewCertPool()
	roots.AddCert(proxy.Certificate())
	wss := strings.Replace(proxy.URL, "https:", "wss:", 1)
	t.Run("contract", func(t *testing.T) {
		rpctest.TestConn(t, func(t *testing.T) (a, b rpc.Conn) {
			dialed := make(chan rpc.Conn, 1)
			go func() {
				client, err := Dial(t.Context(), wss, DialConfig{TLS: &tls.Config{RootCAs: roots}})
				rig.Check(t, err)
				dialed <- client
			}()
			server := accept(t, l)
			return <-dialed, server
		})
	})
	if conn, err := Dial(t.Context(), wss, DialConfig{}); err == nil {
		conn.Close()
		t.Error("Dial trusts an unknown certificate")
	}
}

// listen starts a Listener on a free port of the loopback address.
func listen(t testing.TB, config Config) *Listener {
	t.Helper()
	if config.URL == "" {
		config.URL = "ws://127.0.0.1:0"
	}
	l, err := Listen(config)
	rig.Must(t, err)
	t.Cleanup(func() { rig.Check(t, l.Close()) })
	return l
}

func accept(t testing.TB, l *Listener) *WebSocket {
	t.Helper()
	conn, err := l.Accept()
	rig.Must(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn.(*WebSocket)
}

func webSocketPair(t testing.TB, config Config, dialConfig DialConfig) (client, server *WebSocket) {
	t.Helper()
	l := listen(t, config)
	dialed := make(chan struct{})
	var err error
	go func() {
		defer close(dialed)
		client, err = Dial(t.Context(), l.URL(), dialConfig)
	}()
	server = accept(t, l)
	<-dialed
	rig.Must(t, err)
	t.Cleanup(func() { client.Close() })
	return client, server
}

func readAsync(c rpc.Conn) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			message, err := c.Read()
			if err != nil {
				done <- err
				return
			}
			buffer.Recycle(message)
		}
	}()
	return done
}

func TestWebSocketReads(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		frames [][]byte
		want   string
	}{
		{"text", [][]byte{rawclient.Frame(0x81, []byte(`{"é":1}`))}, `{"é":1}`},
		{"binary", [][]byte{rawclient.Frame(0x82, []byte(`{"é":1}`))}, `{"é":1}`},
		{"binary need not be UTF-8", [][]byte{rawclient.Frame(0x82, []byte("\xff"))}, "\xff"},
		{"empty", [][]byte{rawclient.Frame(0x81, nil)}, ""},
		{"fragments, split inside a character", [][]byte{rawclient.Frame(0x01, []byte("a\xc3")), rawclient.Frame(0x00, []byte("\xa9b")), rawclient.Frame(0x80, nil)}, "aéb"},
		{"control frames between fragments", [][]byte{rawclient.Frame(0x01, []byte("a")), rawclient.Frame(0x8a, nil), rawclient.Frame(0x80, []byte("b"))}, "ab"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := rawPair(t, Config{})
			p.Send(t, tt.frames...)
			wantRead(t, server, tt.want)
		})
	}
}

func TestWebSocketDrops(t *testing.T) {
	t.Parallel()
	unmasked := []byte{0x81, 2, '{', '}'}
	for _, tt := range []struct {
		name   string
		frames [][]byte
	}{
		{"text that is not UTF-8", [][]byte{rawclient.Frame(0x81, []byte("a\xff"))}},
		{"fragments that are not UTF-8 together", [][]byte{rawclient.Frame(0x01, []byte("\xc3")), rawclient.Frame(0x80, []byte("a"))}},
		{"unmasked frame", [][]byte{unmasked}},
		{"reserved bit 1", [][]byte{rawclient.Frame(0xc1, []byte("{}"))}},
		{"reserved bit 2", [][]byte{rawclient.Frame(0xa1, []byte("{}"))}},
		{"reserved bit 3", [][]byte{rawclient.Frame(0x91, []byte("{}"))}},
		{"unknown opcode", [][]byte{rawclient.Frame(0x83, []byte("{}"))}},
		{"continuation of nothing", [][]byte{rawclient.Frame(0x80, []byte("{}"))}},
		{"message inside a message", [][]byte{rawclient.Frame(0x01, []byte("{")), rawclient.Frame(0x81, []byte("{}"))}},
		{"long ping", [][]byte{rawclient.Frame(0x89, make([]byte, 126))}},
		{"fragmented ping", [][]byte{rawclient.Frame(0x09, nil)}},
		{"frame above the limit", [][]byte{{0x81, 0xff, 0, 0, 0, 0, 4, 0, 0, 1, 1, 2, 3, 4}}},
		{"frame of 2^63 bytes, above the limit", [][]byte{{0x81, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4}}},
		{"fragments above the limit", [][]byte{rawclient.Frame(0x01, []byte("ab")), {0x80, 0xff, 0, 0, 0, 0, 3, 0xff, 0xff, 0xff, 1, 2, 3, 4}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := rawPair(t, Config{})
			done := readAsync(server)
			p.Send(t, tt.frames...)
			wantDropped(t, p)
			err := <-done
			if err == nil || errors.Is(err, io.EOF) {
				t.Errorf("Read: %v, want an error other than io.EOF", err)
			}
			rig.Is(t, errors.Is(err, ErrTooLarge), strings.Contains(tt.name, "above the limit"), "%v is ErrTooLarge", err)
			rig.Is(t, rig.Err(server.Read()), err, "Read again")
		})
	}
}

func TestWebSocketTakesTheLargestMessage(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{})
	// One frame as large as a message may be (rpc.md 1.3).
	// A mask of zeros needs no masking.
	header := []byte{0x81, 0xff, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0}
	go p.Write(append(header, bytes.Repeat([]byte("x"), maxMessage)...))
	got, err := server.Read()
	rig.Must(t, err)
	rig.Is(t, len(got), maxMessage, "bytes that were read")
}

func TestWebSocketEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		send    []byte
		want    error
		dropped bool // by the server, without being closed
	}{
		{"end of the stream", nil, io.EOF, false},
		{"close frame", rawclient.Frame(0x88, []byte{0x03, 0xe8}), io.EOF, false},
		{"close frame without a code", rawclient.Frame(0x88, nil), io.EOF, false},
		{"close frame inside a message", append(rawclient.Frame(0x01, []byte("{")), rawclient.Frame(0x88, nil)...), io.EOF, false},
		{"end inside a message", rawclient.Frame(0x01, []byte("{")), io.ErrUnexpectedEOF, true},
		{"end inside a frame", rawclient.Frame(0x81, []byte("{}"))[:7], io.ErrUnexpectedEOF, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := rawPair(t, Config{})
			done := readAsync(server)
			p.Send(t, tt.send)
			p.Conn.(*net.TCPConn).CloseWrite()
			rig.Is(t, <-done, tt.want, "Read")
			if !tt.dropped {
				server.Close()
			}
			wantDropped(t, p)
		})
	}
}

func TestWebSocketWritesOneTextFrame(t *testing.T) {
	t.Parallel()
	// U+0208 is C8 88: wherever gorilla cuts the message in two, one of
	// these starts the second part with the byte of a close frame.
	for _, lead := range []string{"", "x"} {
		for _, n := range []int{0, 1, 60, 2000, 2050, 40000, 3 << 20} {
			p, server := rawPair(t, Config{})
			message := []byte(lead + strings.Repeat("\u0208", n))
			go server.Write(message)
			wantFrame(t, p, 0x81, string(message))
		}
	}
}

func TestWebSocketAnswersPings(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{})
	readAsync(server)
	for _, payload := range []string{"", "ping", strings.Repeat("p", 125)} {
		p.Send(t, rawclient.Frame(0x89, []byte(payload)))
		wantFrame(t, p, 0x8a, payload)
	}
}

// A ping that arrives while a message is going out is answered behind it, and
// the reader goes on meanwhile.
func TestWebSocketAnswersPingsBehindAMessage(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{})
	written := make(chan error, 1)
	go func() { written <- server.Write(make([]byte, 32<<20)) }()
	if first, err := p.In.Peek(1); err != nil || first[0] != 0x81 {
		t.Fatalf("got %x, %v; want the start of a message", first, err)
	}
	p.Send(t, rawclient.Frame(0x89, []byte("one")), rawclient.Frame(0x89, []byte("two")), rawclient.Frame(0x81, []byte("{}")))
	wantRead(t, server, "{}")
	_, payload, err := p.Next()
	rig.Must(t, err)
	rig.Is(t, len(payload), 32<<20, "bytes of the message")
	wantFrame(t, p, 0x8a, "two") // the pong of the last ping
	rig.Check(t, <-written)
}

func TestWebSocketPings(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{PingInterval: 10 * time.Millisecond})
	readAsync(server)
	for range 3 {
		wantFrame(t, p, 0x89, "")
	}
}

func TestWebSocketDropsASilentPeer(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{PingInterval: 10 * time.Millisecond, PeerTimeout: 150 * time.Millisecond})
	began := time.Now()
	err := <-readAsync(server)
	if !errors.Is(err, net.ErrClosed) { // a busy machine may take as long to send a ping
		rig.Is(t, err, os.ErrDeadlineExceeded, "Read")
	}
	rig.Is(t, min(time.Since(began), 100*time.Millisecond), 100*time.Millisecond, "dropped after, at least")
	for first, _, err := p.Next(); err == nil; first, _, err = p.Next() {
		rig.Is(t, first, 0x89, "pings, and then the end")
	}
}

func TestWebSocketKeepsAPeerThatOnlyPongs(t *testing.T) {
	rig.Tier(t, rig.Merge) // it takes longer than a peer may be silent, which no busy machine is
	t.Parallel()
	const timeout = 4 * time.Second // which no pong needs, however busy the machine
	p, server := rawPair(t, Config{PingInterval: 20 * time.Millisecond, PeerTimeout: timeout})
	done := readAsync(server)
	for began := time.Now(); time.Since(began) < timeout*3/2; {
		wantFrame(t, p, 0x89, "")
		p.Send(t, rawclient.Frame(0x8a, nil))
	}
	select {
	case err := <-done:
		t.Errorf("Read: %v, want the connection kept", err)
	default:
	}
}

// The time in which nobody reads does not count against the peer.
func TestWebSocketKeepsAPeerWhileNotReading(t *testing.T) {
	t.Parallel()
	const timeout = time.Second
	p, server := rawPair(t, Config{PingInterval: 10 * time.Millisecond, PeerTimeout: timeout})
	p.Send(t, rawclient.Frame(0x81, []byte("{}")))
	rig.Must(t, rig.Err(server.Read()))
	for began := time.Now(); time.Since(began) < 2*timeout; {
		wantFrame(t, p, 0x89, "") // it is not answered
	}
	p.Send(t, rawclient.Frame(0x81, []byte("[]")))
	wantRead(t, server, "[]")
}

func TestWebSocketDropsAPeerThatTakesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		size  int
		pongs bool
	}{
		{"a large message", 32 << 20, false},
		{"a large message, alive", 32 << 20, true},
		{"small messages", 64 << 10, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p, server := rawPair(t, Config{PeerTimeout: time.Second})
			message := make([]byte, tt.size)
			if tt.pongs {
				readAsync(server)
				defer pongs(p)()
			}
			var err error
			for err == nil {
				err = server.Write(message)
			}
			rig.Is(t, err, os.ErrDeadlineExceeded, "Write")
			rig.Is(t, server.Write([]byte("{}")), net.ErrClosed, "Write again")
		})
	}
}

// TestWebSocketDropsAPeerThatHoldsALargeMessage: patience with a small message is over when a large
// one waits behind it, whose memory others may need.
func TestWebSocketDropsAPeerThatHoldsALargeMessage(t *testing.T) {
	t.Parallel()
	bothWays(t, holdsALargeMessage)
}

func holdsALargeMessage(t *testing.T, write func(*WebSocket, []byte) error) {
	const timeout = time.Second
	p, server := rawPair(t, Config{PingInterval: time.Hour, PeerTimeout: timeout})
	readAsync(server)
	defer pongs(p)()
	progress, small := make(chan struct{}), make(chan error, 1)
	go func() {
		err := server.Write(make([]byte, 64<<10))
		for ; err == nil; err = server.Write(make([]byte, 64<<10)) {
			progress <- struct{}{}
		}
		small <- err
	}()
	// It is stuck once nothing goes on for longer than an impatient write may take. Were it not
	// so on a busy machine, the large message would be dropped for itself.
	for stuck := false; !stuck; {
		select {
		case <-progress:
		case <-time.After(timeout * 3 / 2):
			stuck = true
		}
	}
	large := make(chan error, 1)
	go func() { large <- write(server, make([]byte, maxPatient+1)) }()
	for got := (error)(nil); ; {
		select {
		case <-progress:
			continue
		case got = <-large:
		case <-time.After(patience):
			t.Fatal("the large message waits for ever")
		}
		for what, err := range map[string]error{"large": got, "small": <-small} {
			rig.Is(t, errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed), true, "the %s message ends: %v", what, err)
		}
		break
	}
}

// bothWays runs a test with a way to write messages whole, and with one in parts.
func bothWays(t *testing.T, test func(t *testing.T, write func(*WebSocket, []byte) error)) {
	t.Helper()
	for name, write := range map[string]func(*WebSocket, []byte) error{
		"whole": (*WebSocket).Write,
		"in parts": func(c *WebSocket, m []byte) error {
			return c.WriteParts(len(m), slices.Values([][]byte{m[:1000], m[1000:]}))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, write)
		})
	}
}

// pongs shows that the peer is alive, until over is called. The peer takes no message meanwhile.
func pongs(p *rawclient.Peer) (over func()) {
	ended := make(chan struct{})
	var telling sync.WaitGroup
	telling.Go(func() {
		for {
			select {
			case <-ended:
				return
			case <-time.After(20 * time.Millisecond):
				_, _ = p.Conn.Write(rawclient.Frame(0x8a, nil)) // the connection may have ended
			}
		}
	})
	return func() { close(ended); telling.Wait() }
}

// TestWebSocketWaitsForASlowPeer: somebody who does not take their output for a long time, but
// lives, loses nothing.
func TestWebSocketWaitsForASlowPeer(t *testing.T) {
	rig.Tier(t, rig.Merge) // as TestWebSocketKeepsAPeerThatOnlyPongs
	t.Parallel()
	bothWays(t, waitsForASlowPeer)
}

func waitsForASlowPeer(t *testing.T, write func(*WebSocket, []byte) error) {
	const timeout = 4 * time.Second // which no pong needs, however busy the machine
	p, server := rawPair(t, Config{PingInterval: time.Hour, PeerTimeout: timeout})
	readAsync(server)
	const messages = 1000
	message := make([]byte, 64<<10)
	written := make(chan error, 1)
	go func() {
		for range messages {
			if err := write(server, message); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	defer pongs(p)() // also while it reads, which may take as long
	<-time.After(timeout * 3 / 2)
	for range messages {
		_, payload, err := p.Next()
		rig.Must(t, err)
		rig.Is(t, len(payload), 64<<10, "bytes of a message")
	}
	rig.Check(t, <-written)
}

// An answer written right before Close arrives although the peer has sent more
// than was read (rpc.md 2.5).
func TestWebSocketLastWordsArrive(t *testing.T) {
	t.Parallel()
	for range 50 {
		p, server := rawPair(t, Config{})
		p.Send(t, rawclient.Frame(0x81, []byte("{}")), rawclient.Frame(0x81, make([]byte, 200<<10)))
		rig.Must(t, rig.Err(server.Read()))
		rig.Must(t, server.Write([]byte("last words")))
		server.Close()
		wantFrame(t, p, 0x81, "last words")
		_, _, err := p.Next()
		rig.Is(t, err, io.EOF, "behind the last words")
		p.Close()
	}
}

func TestWebSocketString(t *testing.T) {
	t.Parallel()
	p, server := rawPair(t, Config{})
	rig.Is(t, server.String(), "websocket "+p.LocalAddr().String(), "String")
}
