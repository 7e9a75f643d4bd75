package transport

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rawclient"
	"github.com/execagent/execagent/test/rig"
)

const readyz = "GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n"

const upgradeHeaders = "Connection: Upgrade\r\nUpgrade: websocket\r\n" +
	"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"

var _ rpc.Listener = (*Listener)(nil)

func TestListenURL(t *testing.T) {
	t.Parallel()
	for _, row := range rig.Rows(t, "testdata/addresses.txt", "listen", 2) {
		text, want := row[0], row[1]
		l, err := Listen(Config{URL: text})
		if err != nil {
			if want != "" && !(strings.Contains(text, "::1]") && noIPv6(t)) {
				t.Errorf("Listen(%q): %v", text, err)
			}
			continue
		}
		if want == "" || !strings.HasPrefix(l.URL(), want) || strings.HasSuffix(l.URL(), ":0") {
			t.Errorf("Listen(%q): bound %s, want %q", text, l.URL(), want)
		}
		l.Close()
	}
}

func noIPv6(t *testing.T) bool {
	t.Helper()
	l, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		return true
	}
	l.Close()
	return false
}

func TestListenNeedsAuthentication(t *testing.T) {
	t.Parallel()
	auth, err := capabilityTokenSHA256(strings.Repeat("0", 64))
	rig.Must(t, err)
	for _, tt := range []struct {
		name   string
		config Config
		ok     bool
	}{
		{"loopback", Config{URL: "ws://127.0.0.1:0"}, true},
		{"all addresses", Config{URL: "ws://0.0.0.0:0"}, false},
		{"all addresses, v6", Config{URL: "ws://[::]:0"}, false},
		{"all addresses with auth", Config{URL: "ws://0.0.0.0:0", Auth: auth}, true},
		{"all addresses when told to", Config{URL: "ws://0.0.0.0:0", AllowUnauthenticated: true}, true},
	} {
		l, err := Listen(tt.config)
		rig.Is(t, err == nil, tt.ok, "%s: success, %v", tt.name, err)
		if err == nil {
			l.Close()
		}
	}
}

func TestListenAddressInUse(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	err := rig.Err(Listen(Config{URL: l.URL()}))
	rig.Says(t, err, "address already in use", "Listen on a taken port")
	rig.Says(t, err, l.URL(), "Listen on a taken port")
}

// answer is what matters of an HTTP response.
type answer struct {
	Status      int
	Body        string
	ContentType string
	Allow       string
}

func ask(t *testing.T, l *Listener, request string) (answer, http.Header) {
	t.Helper()
	conn := connect(t, l)
	_, err := io.WriteString(conn, request)
	rig.Must(t, err)
	method, _, _ := strings.Cut(request, " ")
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	rig.Must(t, err)
	got := answer{Status: response.StatusCode, ContentType: response.Header.Get("Content-Type"), Allow: response.Header.Get("Allow")}
	if got.Status != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(response.Body)
		rig.Must(t, err)
		got.Body = string(body)
	}
	return got, response.Header
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	open := listen(t, Config{})
	auth, err := capabilityToken(writeFile(t, "secret\n"))
	rig.Must(t, err)
	guarded := listen(t, Config{Auth: auth})
	for _, l := range []*Listener{open, guarded} {
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				conn.Close()
			}
		}()
	}

	for _, row := range rig.Rows(t, "testdata/requests.txt", "requests", 9) {
		request := []string{row[2] + " HTTP/1.1", "Host: x"}
		for i, name := range []string{"Connection: ", "Upgrade: ", "Sec-WebSocket-Version: ", "Sec-WebSocket-Key: ", ""} {
			if row[3+i] != "-" {
				request = append(request, name+strings.ReplaceAll(row[3+i], "KEY", "dGhlIHNhbXBsZSBub25jZQ=="))
			}
		}
		status, rest, _ := strings.Cut(row[8], " ")
		want := answer{Status: rig.Value(strconv.Atoi(status))}
		if body, ok := strings.CutPrefix(rest, "says"); ok {
			want.Body, want.ContentType = strings.TrimPrefix(body, " "), "text/plain; charset=utf-8"
		} else {
			want.Allow = strings.TrimPrefix(rest, "allows ")
		}
		got, header := ask(t, map[string]*Listener{"open": open, "guarded": guarded}[row[1]], strings.Join(request, "\r\n")+"\r\n\r\n")
		rig.Same(t, row[0], want, got)
		accepted := map[bool]string{true: "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="}[got.Status == 101]
		rig.Is(t, header.Get("Sec-Websocket-Accept"), accepted, "%s: accept key", row[0])
	}

	got, _ := ask(t, open, "GET / HTTP/1.0\r\n"+upgradeHeaders+"\r\n")
	rig.Is(t, got.Status, http.StatusUpgradeRequired, "upgrade over HTTP/1.0: got status")
	_, header := ask(t, open, "GET / HTTP/1.1\r\nHost: x\r\n"+upgradeHeaders+
		"Sec-WebSocket-Protocol: a, b\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n")
	for _, name := range []string{"Sec-Websocket-Protocol", "Sec-Websocket-Extensions"} {
		rig.Is(t, len(header[name]), 0, "offers that were taken up: %s", name)
	}
	got, _ = ask(t, open, "GET / HTTP/1.1\r\nHost: x\r\nX: "+strings.Repeat("x", 2*maxHeader)+"\r\n\r\n")
	rig.Is(t, got.Status, http.StatusRequestHeaderFieldsTooLarge, "header of %d bytes: got status", 2*maxHeader)
}

// Close ends everything but what Accept has returned.
func TestListenerClose(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{URL: "ws://" + rig.FreeAddress(t)}) // which nobody else gets
	accepted := dialRaw(t, l)
	conn := accept(t, l)
	waiting := dialRaw(t, l) // upgraded, but nobody accepts it
	idle := connect(t, l)
	io.WriteString(idle, "GET / HTTP/1.1\r\nHo")
	ask(t, l, readyz) // accepted after idle, so idle is in its HTTP part

	rig.Close(t, l, l)
	rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "Accept after Close")
	wantDropped(t, waiting)
	wantClosed(t, idle)
	go accepted.Write(rawclient.Frame(0x81, []byte("{}")))
	wantRead(t, conn, "{}")
	rig.Is(t, rig.Err(net.Dial("tcp", l.Addr().String())) == nil, false, "the port is still bound")
}

func TestListenerCloseUnblocksAccept(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	done := make(chan error, 1)
	go func() { done <- rig.Err(l.Accept()) }()
	l.Close()
	rig.Is(t, <-done, net.ErrClosed, "Accept")
}

// An idle connection is cheap: the reading goroutine's stack, gorilla's read
// buffer and little else, nothing of the HTTP server.
func TestIdleMemory(t *testing.T) {
	const n = 300
	l := listen(t, Config{})
	peers := make([]*rawclient.Peer, 0, n)
	usage := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before, goroutines := usage(), rig.Goroutines()
	for range n {
		p := dialRaw(t, l)
		p.In = nil // what the peer uses is not ours
		peers = append(peers, p)
		conn := accept(t, l)
		go conn.Read()
	}
	extra := func() int { return rig.Goroutines() - goroutines }
	// Those that have opened a connection may still be about to end.
	rig.Until(t, "each connection runs one goroutine", func() bool { return extra() <= n+20 })
	each := (usage() - before) / n
	rig.Is(t, each <= 30<<10, true, "bytes of an idle connection: %v, at most %v", each, 30<<10)
	t.Logf("%d bytes each", each)
	runtime.KeepAlive(peers)
}

func TestDialErrors(t *testing.T) {
	t.Parallel()
	l := listen(t, Config{})
	silent := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	gone := rig.FreeAddress(t)
	for _, tt := range []struct {
		name, url string
		want      []string
	}{
		{"malformed", "ws://secret:%zz@x", []string{"malformed"}},
		{"scheme", "http://127.0.0.1/?token=secret", []string{"http://127.0.0.1/", "ws://HOST"}},
		{"no host", "ws:///?token=secret", []string{"ws://HOST"}},
		{"credentials", "ws://u:secret@127.0.0.1:1", []string{"ws://127.0.0.1:1", "credentials"}},
		{"refused", "ws://" + gone + "/?token=secret", []string{gone, "connection refused"}},
		{"not found", l.URL() + "/x?token=secret", []string{l.URL() + "/x", "404"}},
		{"abstract", "unix://@x", []string{"unix://@x", "unix:///PATH"}},
		{"no socket", "unix:///no/such/agent", []string{"dialing unix:///no/such/agent: dial unix /no/such/agent: connect: no such file"}},
		{"silent", fmt.Sprintf("ws://%s/?token=secret", silent.Addr()), []string{silent.Addr().String(), "timed out"}},
	} {
		config := DialConfig{HandshakeTimeout: patience}
		if tt.name == "silent" {
			config.HandshakeTimeout = 300 * time.Millisecond
		}
		conn, err := Dial(t.Context(), tt.url, config)
		if err == nil {
			conn.Close()
			t.Errorf("%s: Dial succeeded", tt.name)
			continue
		}
		for _, want := range tt.want {
			rig.Is(t, strings.Contains(err.Error(), want), true, "%s: %v has %q in it", tt.name, err, want)
		}
		rig.Is(t, strings.Contains(err.Error(), "secret"), false, "%s: the error repeats a secret: %v", tt.name, err)
	}
	rig.Is(t, refusal(rig.Err(Dial(t.Context(), l.URL()+"/x", DialConfig{}))), 404, "Dial to an unknown path")
}

func TestDialHeedsContext(t *testing.T) {
	t.Parallel()
	silent := rig.Value(net.Listen("tcp", "127.0.0.1:0"))
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := silent.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		cancel()
		io.Copy(io.Discard, conn)
	}()
	rig.Is(t, rig.Err(Dial(ctx, "ws://"+silent.Addr().String(), DialConfig{})), context.Canceled, "Dial")
}
