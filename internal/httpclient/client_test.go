package httpclient

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rawServer answers the requests of every connection with the bytes that answer
// returns, and then closes the connection if answer says so.
type rawServer struct {
	URL string

	mu       sync.Mutex
	requests []string // heads as they came over the wire
}

func newRawServer(t *testing.T, answer func(path string) (reply string, closeAfter bool)) *rawServer {
	t.Helper()
	s := &rawServer{}
	s.URL = "http://" + rig.Listen(t, "tcp", "127.0.0.1:0", func(conn net.Conn) { s.serve(conn, answer) }).String()
	return s
}

func (s *rawServer) serve(conn net.Conn, answer func(string) (string, bool)) {
	buf := make([]byte, 64<<10)
	for {
		n := 0
		for !bytes.Contains(buf[:n], []byte("\r\n\r\n")) {
			m, err := conn.Read(buf[n:])
			if err != nil {
				return
			}
			n += m
		}
		head := string(buf[:n])
		s.mu.Lock()
		s.requests = append(s.requests, head)
		s.mu.Unlock()
		reply, closeAfter := answer(strings.Fields(head)[1])
		if _, err := io.WriteString(conn, reply); err != nil || closeAfter {
			return
		}
	}
}

func (s *rawServer) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.requests...)
}

func newClient(t *testing.T, config Config) *Client {
	t.Helper()
	c := NewClients(config).New()
	t.Cleanup(c.Close)
	return c
}

// serve starts a server for the test.
func serve(t testing.TB, handler http.HandlerFunc) *httptest.Server {
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

// headers are of names and values.
func headers(pairs ...string) []Header {
	all := []Header{}
	for pair := range slices.Chunk(pairs, 2) {
		all = append(all, Header{Name: pair[0], Value: pair[1]})
	}
	return all
}

// headersOf reads headers from a cell of a table, such as a=1|b=2, or - for none. A value such as $NAME
// is that of a variable.
func headersOf(cell string) (all []Header) {
	for pair := range strings.SplitSeq(cell, "|") {
		name, value, ok := strings.Cut(pair, "=")
		if variable, is := strings.CutPrefix(value, "$"); is {
			all = append(all, Header{Name: name, Value: "Bearer ", ValueEnvVar: &variable})
		} else if ok {
			all = append(all, Header{Name: name, Value: value})
		}
	}
	return all
}

// requestOf reads a request from a row of a table: after its name the method, the body and the headers.
func requestOf(row []string, url string) *Request {
	req := &Request{Method: row[1], URL: url, Headers: headersOf(row[3])}
	if row[2] != "-" {
		req.Body = []byte(strings.ReplaceAll(row[2], "LARGE", strings.Repeat("x", 5<<20)))
	}
	return req
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1], true
			}
		}
		return "", false
	}
}

// fetch sends a request and reads the whole answer.
func fetch(t *testing.T, c *Client, req *Request) (*Response, string, error) {
	t.Helper()
	resp, err := c.Do(t.Context(), req)
	if err != nil {
		return nil, "", err
	}
	text, err := resp.ReadBody(anyBuffer)
	return resp, string(text), err
}

// answer is the body of the answer to a request that must succeed.
func answer(t *testing.T, c *Client, req *Request) string {
	t.Helper()
	_, body, err := fetch(t, c, req)
	rig.Check(t, err)
	return body
}

// fails fails a test if an error is not one of a type, or lacks a text. None is of the body and of
// the transport too.
func fails[E error](t *testing.T, err error, text string) {
	t.Helper()
	_, ok := errors.AsType[E](err)
	_, body := errors.AsType[*BodyError](err)
	_, transport := errors.AsType[*TransportError](err)
	rig.Is(t, ok && !(body && transport) && strings.Contains(err.Error(), text), true, "%v: it is a %T with %q", err, *new(E), text)
}

func anyBuffer(n int) ([]byte, error) { return make([]byte, 0, n), nil }

func get(url string) *Request { return &Request{Method: "GET", URL: url, FollowRedirects: true} }

// echo answers with the request as the server saw it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s host=%s length=%d\n", r.Method, r.RequestURI, r.Host, r.ContentLength)
	r.Header.Write(w)
	fmt.Fprintf(w, "\n%s", body)
}

func TestRequestOnTheWire(t *testing.T) {
	t.Parallel()
	s := newRawServer(t, func(string) (string, bool) { return "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", false })
	host := strings.TrimPrefix(s.URL, "http://")
	c := newClient(t, Config{})
	for i, row := range rig.Rows(t, "testdata/requests.txt", "HTTP/1.1", 5) {
		answer(t, c, requestOf(row, s.URL))
		rig.Is(t, strings.NewReplacer("\r\n", "|", host, "HOST").Replace(s.seen()[i]), row[4], "%s", row[0])
	}
}

func TestParamErrors(t *testing.T) {
	t.Parallel()
	c := newClient(t, Config{
		Env:    env("EMPTY", "", "LINES", "a\nsecret", "TOKEN", "secret"),
		Denied: func(name string) bool { return strings.EqualFold(name, "token") },
	})
	for _, row := range rig.Rows(t, "testdata/requests.txt", "refused", 4) {
		_, err := c.Do(t.Context(), &Request{Method: row[0], URL: row[1], Headers: headersOf(row[2])})
		fails[*ParamError](t, err, row[3])
		rig.Is(t, strings.Contains(fmt.Sprint(err), "secret"), false, "%v tells a secret", err)
	}
}

// An answer to HEAD announces a length but sends no body, so no length is too
// long.
func TestHeadOfLargeBody(t *testing.T) {
	t.Parallel()
	s := newRawServer(t, func(string) (string, bool) {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n", MaxBufferedBody+1), false
	})
	rig.Is(t, answer(t, newClient(t, Config{}), &Request{Method: "HEAD", URL: s.URL}), "", "the body")
}

// A body whose length is known takes no more memory than its length.
func TestReadBodyAllocatesOnce(t *testing.T) {
	t.Parallel()
	const size = 9 << 20
	s := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(size))
		for range size >> 20 {
			_, _ = w.Write(make([]byte, 1<<20)) // an error shows at the other end
		}
	})
	resp, err := newClient(t, Config{}).Do(t.Context(), get(s.URL))
	rig.Must(t, err)
	body := rig.Value(resp.ReadBody(anyBuffer))
	rig.Is(t, len(body), size, "bytes")
	rig.Is(t, cap(body) <= size, true, "%d bytes are taken", cap(body))
}

func TestHeaderFromEnvironment(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	c := newClient(t, Config{Env: env("MCP_TOKEN", "abc"), Denied: func(string) bool { return false }})
	got := answer(t, c, &Request{Method: "GET", URL: s.URL, Headers: headersOf("authorization=$MCP_TOKEN")})
	rig.Is(t, strings.Contains(got, "Authorization: Bearer abc\r\n"), true, "the content of the variable is in the header: %q", got)
}

func TestResponses(t *testing.T) {
	t.Parallel()
	replies := map[string]string{
		"/headers": "HTTP/1.1 200 OK\r\nX-B: 1\r\nSet-Cookie: a=b\r\nx-b:  2 \r\nx-a: \xe9\r\n" +
			"x-c: a\tb\r\nx-d:\r\nx y: 1\r\ncontent-length: 2\r\n\r\nok",
		"/chunked": "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-t\r\n\r\n3\r\nabc\r\n0\r\nx-t: 1\r\n\r\n",
		"/early":   "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 599 Odd\r\ncontent-length: 1\r\n\r\nx",
		"/old":     "HTTP/1.0 200 OK\r\n\r\nabc",
		"/upgrade": "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
		"/304":     "HTTP/1.1 304 Not Modified\r\nx: 1\r\n\r\n",
		"/204":     "HTTP/1.1 204 No Content\r\n\r\n",
	}
	s := newRawServer(t, func(path string) (string, bool) { return replies[path], path == "/old" })
	c := newClient(t, Config{})
	for _, tt := range []struct {
		path    string
		status  int
		headers []Header
		body    string
	}{
		{"/headers", 200, headers("content-length", "2", "set-cookie", "a=b", "x-b", "1", "x-b", "2", "x-c", "a\tb", "x-d", ""), "ok"},
		{"/chunked", 200, headers("trailer", "x-t", "transfer-encoding", "chunked"), "abc"},
		{"/early", 599, headers("content-length", "1"), "x"},
		{"/old", 200, headers(), "abc"},
		{"/upgrade", 101, headers("connection", "upgrade", "upgrade", "x"), ""},
		{"/304", 304, headers("x", "1"), ""},
		{"/204", 204, headers(), ""},
	} {
		resp, body, err := fetch(t, c, get(s.URL+tt.path))
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(resp.Status, " ", body), fmt.Sprint(tt.status, " ", tt.body), "%s", tt.path)
		rig.Same(t, fmt.Sprintf("%s: headers", tt.path), tt.headers, resp.Headers)
	}
}

func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	replies := map[string]string{
		"/short":      "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
		"/chunks":     "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
		"/cut-chunks": "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
		"/huge":       fmt.Sprintf("HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\nabc", int64(1)<<60),
		"/slow":       "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
		"/garbage":    "garbage\r\n\r\n",
		"/status":     "HTTP/1.1 1000 Odd\r\ncontent-length: 0\r\n\r\n",
		"/099":        "HTTP/1.1 099 Odd\r\ncontent-length: 0\r\n\r\n",
		"/header":     "HTTP/1.1 200 OK\r\nx: " + strings.Repeat("a", 2*maxResponseHeader) + "\r\n\r\n",
	}
	s := newRawServer(t, func(path string) (string, bool) { return replies[path], path != "/slow" && path != "/silent" })
	c := newClient(t, Config{})
	// Enough for the headers of /slow to arrive, as a rule even on a busy machine.
	timeout := 2 * time.Second
	body, transport := fails[*BodyError], fails[*TransportError]
	for _, tt := range []struct {
		path    string
		timeout *time.Duration
		fails   func(*testing.T, error, string)
		text    string
	}{
		{"/short", nil, body, "unexpected EOF"},
		{"/chunks", nil, body, "chunk"},
		{"/cut-chunks", nil, body, "unexpected EOF"},
		{"/huge", nil, body, "over 536870912 bytes"},
		{"/slow", &timeout, body, "timed out"},
		{"/silent", &timeout, transport, "timed out"},
		{"/any", new(time.Duration), transport, "timed out"},
		{"/garbage", nil, transport, "malformed"},
		{"/status", nil, transport, "malformed"},
		{"/099", nil, transport, "malformed"},
		{"/header", nil, transport, "header"},
		{"/closed", nil, transport, "EOF"},
	} {
		req := get(s.URL + tt.path)
		req.Timeout = tt.timeout
		_, _, err := fetch(t, c, req)
		// If even the headers came too late, try again with more time.
		for patience := timeout; tt.path == "/slow" && patience < time.Minute; patience *= 2 {
			if _, early := errors.AsType[*TransportError](err); !early {
				break
			}
			req.Timeout = &patience
			_, _, err = fetch(t, c, req)
		}
		tt.fails(t, err, tt.text)
	}
	rig.Is(t, strings.Contains(fmt.Sprint(s.seen()), "/any"), false, "a timeout of zero sent a request")
}

func TestNoConnection(t *testing.T) {
	t.Parallel()
	address := rig.FreeAddress(t)
	_, err := newClient(t, Config{}).Do(t.Context(), get("http://user:secret@"+address+"/p?q#f"))
	transport, _ := errors.AsType[*TransportError](err)
	rig.Is(t, transport.URL, "http://"+address+"/p?q", "%v is for", err)
	rig.Is(t, strings.Contains(err.Error(), "secret"), false, "%v has credentials", err)
}

func TestCancelledContext(t *testing.T) {
	t.Parallel()
	s := newRawServer(t, func(string) (string, bool) { return "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", false })
	ctx, cancel := context.WithCancel(t.Context())
	resp, err := newClient(t, Config{}).Do(ctx, get(s.URL))
	rig.Must(t, err)
	cancel()
	rig.Is(t, rig.Err(resp.ReadBody(anyBuffer)), context.Canceled, "")
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	var conns atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "a", Value: "b"})
		if r.URL.Path == "/from" {
			http.Redirect(w, r, "/to", http.StatusFound)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprint(z, r.Header.Get("Cookie"))
		_ = z.Close()
		w.(http.Flusher).Flush() // the end comes on its own
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	}
	s.Start()
	defer s.Close()
	c := newClient(t, Config{})
	for range 5 {
		rig.Is(t, answer(t, c, get(s.URL+"/from")), "", "cookies")
	}
	rig.Is(t, conns.Load(), 1, "connections for ten requests in a row")
}

func TestHTTPS(t *testing.T) {
	t.Parallel()
	s, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }, nil)
	rig.Is(t, answer(t, newClient(t, Config{RootCAs: roots}), get(s.URL)), "HTTP/2.0", "trusted")
	_, err := newClient(t, Config{RootCAs: x509.NewCertPool()}).Do(t.Context(), get(s.URL))
	fails[*TransportError](t, err, "")
	fails[*tls.CertificateVerificationError](t, err, "")
}

func TestRootsAreReadOnFirstNeed(t *testing.T) {
	t.Parallel()
	s := serve(t, echo)
	c := newClient(t, Config{})
	answer(t, c, get(s.URL))
	rig.Is(t, c.secure == nil, true, "a plain request built no transport for TLS")
	rig.Is(t, bundledRoots().Equal(x509.NewCertPool()), false, "there are no bundled roots")
}

func BenchmarkDo(b *testing.B) {
	s := serve(b, echo)
	c := NewClients(Config{}).New()
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		resp, err := c.Do(b.Context(), get(s.URL))
		rig.Must(b, err)
		rig.Must(b, rig.Err(resp.ReadBody(anyBuffer)))
	}
}
