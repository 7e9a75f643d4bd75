package socket

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/test/rig"
)

// answering is a server that reads one request and answers with the text
// given; "" is no answer. It returns what it was asked.
func answering(t *testing.T, answer string) (l pipes, asked <-chan string) {
	t.Helper()
	l = newPipes()
	requests := make(chan string, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		var request bytes.Buffer
		rig.Check(t, rig.Err(http.ReadRequest(bufio.NewReader(io.TeeReader(conn, &request)))))
		requests <- request.String()
		_, _ = io.WriteString(conn, answer) // fails if Dial has hung up
		if answer != "" {
			conn.Close()
		}
	}()
	t.Cleanup(func() { l.Close() })
	return l, requests
}

func TestRequest(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		header http.Header
		want   []string
	}{
		{"harness", nil, nil},
		{"executor", http.Header{"X-Request-Id": {"req_0123"}}, []string{"X-Request-Id: req_0123"}},
	}
	for _, tt := range tests {
		l, asked := answering(t, "HTTP/1.1 410 Gone\r\nContent-Length: 0\r\n\r\n")
		_, _ = Dial(t.Context(), "ws://relay.test/rendezvous/e?role=environment&sig=a%2Fb", tt.header, Config{DialContext: l.Dial})
		lines := strings.Split(strings.TrimSuffix(<-asked, "\r\n\r\n"), "\r\n")
		rig.Is(t, lines[0], "GET /rendezvous/e?role=environment&sig=a%2Fb HTTP/1.1", "%s: request line", tt.name)
		got := slices.Sorted(slices.Values(lines[1:]))
		for i, line := range got {
			if strings.HasPrefix(line, "Sec-WebSocket-Key: ") {
				got[i] = "Sec-WebSocket-Key: KEY"
			}
		}
		want := append([]string{"Connection: Upgrade", "Host: relay.test", "Sec-WebSocket-Key: KEY", "Sec-WebSocket-Version: 13", "Upgrade: websocket"}, tt.want...)
		rig.Same(t, tt.name, want, got)
	}
}

// says checks that the text of an error has all of texts, and nothing of a URL but its host.
func says(t *testing.T, err error, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "/r/") {
			t.Errorf("got %v, want an error with %q and no secret", err, text)
		}
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	const name = "x-codex-rendezvous-rejection-reason"
	tests := []struct {
		status int
		header string
		reason string
	}{
		{200, "", ""},
		{302, "Location: http://elsewhere.test/\r\n", ""},
		{400, name + ": malformed_query\r\n", "malformed_query"},
		{401, name + ": expired\r\n", "expired"},
		{403, "X-Codex-Rendezvous-Rejection-Reason: pod_draining\r\n", "pod_draining"},
		{404, name + ": " + strings.Repeat("x", maxReason) + "\r\n", strings.Repeat("x", maxReason)},
		{409, name + ": " + strings.Repeat("x", maxReason+1) + "\r\n", ""},
		{410, name + ": two words\r\n", ""},
		{429, name + ": caf\xc3\xa9\r\n", ""},
		{500, name + ": \xff\r\n", ""},
		{503, name + ":\r\n", ""},
		{103, "", ""},
	}
	for _, tt := range tests {
		l, _ := answering(t, fmt.Sprintf("HTTP/1.1 %d Text\r\n%sContent-Length: 6\r\n\r\nsecret", tt.status, tt.header))
		_, err := Dial(t.Context(), "ws://relay.test/r/?sig=secret", nil, Config{DialContext: l.Dial})
		refused, _ := errors.AsType[*RefusedError](err)
		rig.Is(t, *refused, RefusedError{Status: tt.status, Reason: tt.reason}, "%.300s", tt.header)
		says(t, err, fmt.Sprint(tt.status), tt.reason)
	}
}

// No error holds the query, the path or a password, nor what a server says.
func TestDialErrors(t *testing.T) {
	t.Parallel()
	const accepted = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: "
	tests := []struct{ name, url, answer, want string }{
		{"not a URL", "ws://relay.test/r/%zz?sig=secret", "", "malformed"},
		{"control character", "ws://relay.test/r/\x7f?sig=secret", "", "malformed"},
		{"empty", "", "", "not of the form"},
		{"http", "http://relay.test/r/?sig=secret", "", "not of the form"},
		{"no host", "ws:///r/?sig=secret", "", "not of the form"},
		{"relative", "/r/?sig=secret", "", "not of the form"},
		{"credentials", "ws://user:secret@relay.test/r/", "", "credentials"},
		{"wrong key", "ws://relay.test/r/?sig=secret", accepted + "secret\r\n\r\n", "bad handshake"},
		{"not HTTP", "ws://relay.test/r/?sig=secret", "GET /r/?sig=secret HTTP/1.1\r\n", "malformed"},
		{"long header", "ws://relay.test/r/?sig=secret", "HTTP/1.1 101 Switching\r\nX-Long: " + strings.Repeat("x", 80<<10) + "\r\n\r\n", errLongUpgrade.Error()},
		{"broken header", "ws://relay.test/r/?sig=secret", "HTTP/1.1 101 Switching\r\nX: secret\x01\r\n\r\n", "malformed"},
		{"hangs up", "ws://relay.test/r/?sig=secret", "HTTP/1.1 101", "EOF"},
		{"plaintext for TLS", "wss://relay.test/r/?sig=secret", "", "tls"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var l pipes
			if strings.HasPrefix(tt.url, "wss") {
				l = newPipes()
				go func() {
					if conn, err := l.Accept(); err == nil {
						_, _ = conn.Read(make([]byte, 16<<10))
						_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
						conn.Close()
					}
				}()
			} else {
				l, _ = answering(t, tt.answer)
			}
			s, err := Dial(t.Context(), tt.url, nil, Config{DialContext: l.Dial})
			if err == nil {
				s.Close()
				t.Fatal("no error")
			}
			says(t, err, tt.want)
			_, ok := errors.AsType[*RefusedError](err)
			rig.Is(t, ok, false, "%v is taken for a refusal", err)
			l.Close()
		})
	}
}

// Nothing listens, no such host.
func TestDialNobody(t *testing.T) {
	t.Parallel()
	l := listenTCP(t)
	l.Close()
	says(t, rig.Err(Dial(t.Context(), "ws://"+l.Addr().String()+"/r/?sig=secret", nil, Config{})), "refused")
}

// Opening is bounded by 10 s and by the context, at every step.
func TestDialEnds(t *testing.T) {
	t.Parallel()
	steps := []struct{ name, scheme string }{{"tcp", "ws"}, {"http", "ws"}, {"tls", "wss"}}
	for _, tt := range steps {
		for _, cancelled := range []bool{false, true} {
			run(t, fmt.Sprintf("%s %v", tt.name, cancelled), func(t *testing.T) {
				l := newPipes()
				defer l.Close()
				if tt.name != "tcp" {
					go func() {
						if conn, err := l.Accept(); err == nil {
							_, _ = io.Copy(io.Discard, conn)
						}
					}()
				}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				errStop, want := errors.New("stopping"), context.DeadlineExceeded
				wait := 10 * time.Second
				if cancelled {
					want, wait = errStop, time.Second
					time.AfterFunc(wait, func() { cancel(errStop) })
				}
				start := time.Now()
				rig.Is(t, rig.Err(Dial(ctx, tt.scheme+"://relay.test/?sig=secret", nil, Config{DialContext: l.Dial})), want, "Dial")
				rig.Is(t, time.Since(start), wait, "Dial has waited")
			})
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	accepted := make(chan *Socket, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := Upgrade(w, r, Config{})
		rig.Check(t, err)
		accepted <- s
	}))
	server.EnableHTTP2 = true // which cannot be upgraded
	server.StartTLS()
	t.Cleanup(server.Close)
	address := strings.Replace(server.URL, "https:", "wss:", 1) + "/?sig=secret"
	says(t, rig.Err(Dial(t.Context(), address, nil, Config{})), "certificate")
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
	client := rig.Value(Dial(t.Context(), address, nil, Config{TLS: config}))
	defer client.Close()
	s := <-accepted
	defer s.Close()
	for _, size := range []int{10, recordSize, MaxMessage} {
		for _, end := range [][2]*Socket{{client, s}, {s, client}} {
			go func() { _ = end[0].NewLane(0).Send(sized(size)) }()
			m := rig.Value(end[1].Read())
			rig.Is(t, len(m.Bytes), size, "bytes that were read")
			m.Release()
		}
	}
	rig.Is(t, fmt.Sprint(config.NextProtos, config.ServerName), "[h2]", "the caller's configuration")
	client.Close()
	_, err := s.Read()
	rig.Is(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), true, "after Close it is over: %v", err)
}

// The proxy that the environment names is used. The test runs itself again in
// another process, since net/http reads the environment only once.
func TestProxyFromEnvironment(t *testing.T) {
	t.Parallel()
	if os.Getenv("SOCKET_TEST_PROXY") != "" {
		for _, address := range []string{"ws://127.0.0.1:1/", "ws://localhost/", "ws://LOCALHOST:1/", "ws://a.localhost:1/", "wss://inside.test/", "wss://[::1]/"} {
			u := rig.Value(url.Parse(address))
			rig.Is(t, fmt.Sprint(conns.Proxy(u)), "<nil> <nil>", "%s: proxy", address)
		}
		_, err := Dial(t.Context(), "ws://relay.test:81/?sig=secret", nil, Config{})
		fmt.Println("dialed:", err)
		_, err = Dial(t.Context(), "wss://relay.test/?sig=secret", nil, Config{})
		fmt.Println("dialed:", err)
		return
	}
	var asked []string
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.Host)
		w.WriteHeader(http.StatusTeapot)
	}))
	password := strings.Replace(proxy.URL, "http://", "http://me:secret@", 1)
	program := rig.Value(os.Executable())
	output, err := commandOutput(t, program, "SOCKET_TEST_PROXY=1", "HTTP_PROXY=", "HTTPS_PROXY="+password, "ALL_PROXY="+password, "NO_PROXY=inside.test", "REQUEST_METHOD=")
	proxy.Close()
	if err != nil || strings.Count(output, "dialed:") != 2 || strings.Count(output, "status 418") != 2 || strings.Contains(output, "secret") {
		t.Errorf("%v\n%s", err, output)
	}
	rig.Same(t, "the proxy was asked for", []string{"CONNECT relay.test:81", "CONNECT relay.test:443"}, asked)
}

// commandOutput runs the test of the environment alone.
func commandOutput(t *testing.T, program string, environment ...string) (string, error) {
	t.Helper()
	c := exec.CommandContext(t.Context(), program, "-test.run=^TestProxyFromEnvironment$", "-test.v")
	c.Env = append(os.Environ(), environment...)
	output, err := c.CombinedOutput()
	return string(output), err
}
