package httpclient

import (
	"compress/gzip"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// newHTTP2Server returns a server that offers HTTP/2 by TLS, and roots that
// trust it and all others of its kind.
func newHTTP2Server(t *testing.T, handler http.HandlerFunc, changed func(net.Conn, http.ConnState)) (*httptest.Server, *x509.CertPool) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = changed
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots
}

// TestHTTP2OnTheWire: a server gets what the caller asked for and nothing else,
// as with HTTP/1.1. Requests with headers about the connection go by HTTP/1.1.
func TestHTTP2OnTheWire(t *testing.T) {
	t.Parallel()
	s, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var lines []string
		for name, values := range r.Header {
			lines = append(lines, strings.ToLower(name)+"="+strings.Join(values, ","))
		}
		slices.Sort(lines)
		fmt.Fprintf(w, "%s %s %s host=%s length=%d %s %d", r.Proto, r.Method, r.RequestURI, r.Host, r.ContentLength, strings.Join(lines, " "), len(body))
	}, nil)
	host := strings.TrimPrefix(s.URL, "https://")
	c := newClient(t, Config{RootCAs: roots})
	for _, row := range rig.Rows(t, "testdata/requests.txt", "HTTP/2", 5) {
		rig.Is(t, strings.ReplaceAll(answer(t, c, requestOf(row, s.URL+"/x?y")), host, "HOST"), row[4], "%s", row[0])
	}
}

// TestHTTP2Answers: bodies come as they are, limits and timeouts hold, and
// errors say what broke.
func TestHTTP2Answers(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	s, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.Atoi(r.URL.Query().Get("n"))
		switch r.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, "zipped")
			_ = z.Close()
		case "/trailer":
			w.Header().Set("Trailer", "X-Sum")
			fmt.Fprint(w, "body")
			w.Header().Set("X-Sum", "1")
		case "/header":
			w.Header().Set("X-Large", strings.Repeat("x", size))
		case "/unchanged":
			w.Header().Set("Content-Length", "99")
			w.WriteHeader(http.StatusNotModified)
		case "/large":
			w.Header().Set("Content-Length", strconv.Itoa(MaxBufferedBody+1))
			w.WriteHeader(http.StatusOK)
		case "/broken", "/slow":
			w.WriteHeader(http.StatusOK)
			fmt.Fprint(w, "some")
			w.(http.Flusher).Flush()
			if r.URL.Path == "/broken" {
				panic(http.ErrAbortHandler)
			}
			<-end
		case "/silent":
			<-end
		case "/redirect":
			http.Redirect(w, r, r.URL.Query().Get("to"), http.StatusTemporaryRedirect)
		}
	}, nil)
	t.Cleanup(func() { close(end) }) // runs before the cleanup of the server, which waits for its handlers
	plain := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/back" {
			http.Redirect(w, r, s.URL+"/gzip", http.StatusFound)
			return
		}
		fmt.Fprint(w, r.Proto)
	})
	c := newClient(t, Config{RootCAs: roots})
	body, transport := fails[*BodyError], fails[*TransportError]
	timeout := 200 * time.Millisecond
	for _, tt := range []struct {
		path    string
		timeout *time.Duration
		status  int
		want    string // the body, or a part of the error
		fails   func(*testing.T, error, string)
	}{
		{"/gzip", nil, 200, "zipped", nil},
		{"/trailer", nil, 200, "body", nil},
		{"/header?n=400000", nil, 200, "", nil},
		{"/header?n=600000", nil, 0, "", transport},
		{"/unchanged", nil, 304, "", nil},
		{"/large", nil, 0, "over 536870912 bytes", body},
		{"/broken", nil, 0, "", body},
		{"/slow", &timeout, 0, "timed out", body},
		{"/silent", &timeout, 0, "timed out", transport},
		{"/silent", new(time.Duration), 0, "timed out", transport},
		{"/redirect?to=" + url.QueryEscape(plain.URL+"/x"), nil, 200, "HTTP/1.1", nil},
		{"/redirect?to=" + url.QueryEscape(plain.URL+"/back"), nil, 200, "zipped", nil},
	} {
		req := get(s.URL + tt.path)
		req.Timeout = tt.timeout
		resp, got, err := fetch(t, c, req)
		if tt.fails != nil {
			tt.fails(t, err, tt.want)
			continue
		}
		rig.Must(t, err)
		rig.Is(t, fmt.Sprint(resp.Status, " ", got), fmt.Sprint(tt.status, " ", tt.want), "%s", tt.path)
		announced := slices.Contains(resp.Headers, Header{Name: "trailer", Value: "x-sum"})
		rig.Is(t, announced, tt.path == "/trailer", "%s: trailers are announced in %+v", tt.path, resp.Headers)
	}
}

// TestHTTP2SharesAConnection: requests share a connection. Neither a cancelled
// request nor one whose body nobody reads disturbs the others, and at most
// maxUnread bytes of the unread body are held.
func TestHTTP2SharesAConnection(t *testing.T) {
	t.Parallel()
	var conns, sent atomic.Int64
	cancelled := make(chan struct{})
	filled := make(chan struct{})
	s, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/hang":
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			close(cancelled)
		case "/flood":
			for piece := make([]byte, 4<<10); ; {
				n, err := w.Write(piece)
				if err != nil {
					return
				}
				if sent.Add(int64(n)) == maxUnread {
					close(filled)
				}
			}
		default:
			fmt.Fprint(w, r.URL.Path)
		}
	}, func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	})
	c := newClient(t, Config{RootCAs: roots})
	all := func() {
		var wait sync.WaitGroup
		for i := range 50 {
			wait.Go(func() {
				path := "/" + strconv.Itoa(i)
				if resp, err := c.Do(t.Context(), get(s.URL+path)); err != nil {
					t.Error(err)
				} else if got, err := resp.ReadBody(anyBuffer); err != nil || string(got) != path {
					t.Errorf("got %q, %v, want %q", got, err, path)
				}
			})
		}
		wait.Wait()
	}
	_, _, err := fetch(t, c, get(s.URL+"/first"))
	rig.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	hanging, err := c.Do(ctx, get(s.URL+"/hang"))
	rig.Must(t, err)
	flood, err := c.Do(t.Context(), get(s.URL+"/flood"))
	rig.Must(t, err)
	<-filled
	all()
	cancel()
	<-cancelled // the server has been told
	rig.Is(t, rig.Err(hanging.ReadBody(anyBuffer)), context.Canceled, "a cancelled body ends with")
	all()
	const buffers = 64 << 10 // buffers of the server and the sockets
	rig.Is(t, sent.Load() <= maxUnread+buffers, true, "a body that nobody reads is sent %d bytes ahead: they are few", sent.Load())
	flood.Body.Close()
	all()
	rig.Is(t, conns.Load(), 1, "connections")
}

// TestHTTP2IdleConnections: a client that asks many servers leaves no more
// connections open than with HTTP/1.1.
func TestHTTP2IdleConnections(t *testing.T) {
	t.Parallel()
	var open atomic.Int64
	c := newClient(t, Config{})
	const servers = 2 * maxIdleConns
	for range servers {
		s, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }, func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				open.Add(1)
			case http.StateClosed:
				open.Add(-1)
			}
		})
		if c.shared.config.RootCAs == nil {
			c.shared.config.RootCAs = roots
		}
		rig.Is(t, answer(t, c, get(s.URL)), "HTTP/2.0", "protocol")
	}
	// The servers see the end of a connection a little later than the client.
	rig.Until(t, "servers have few connections", func() bool { return open.Load() <= maxIdleConns })
}

// TestHTTP2ThroughProxies: a server behind a plain proxy may choose HTTP/2. A
// proxy that is reached by TLS gets HTTP/1.1, and so does the server behind it.
func TestHTTP2ThroughProxies(t *testing.T) {
	t.Parallel()
	target, roots := newHTTP2Server(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }, nil)
	var seen sync.Map
	tunnel := func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.Method+" "+r.Proto, true)
		if r.Method != http.MethodConnect {
			fmt.Fprint(w, "by proxy with ", r.Proto)
			return
		}
		server, err := net.Dial("tcp", r.Host)
		if err != nil {
			t.Error(err)
			return
		}
		defer server.Close()
		client, rest, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer client.Close()
		fmt.Fprint(client, "HTTP/1.1 200 OK\r\n\r\n")
		var both sync.WaitGroup
		both.Go(func() {
			_, _ = io.Copy(server, rest)
			server.Close()
		})
		both.Go(func() {
			_, _ = io.Copy(client, server)
			client.Close()
		})
		both.Wait()
	}
	secure, _ := newHTTP2Server(t, tunnel, nil)
	plain := serve(t, tunnel)
	for _, tt := range []struct{ proxy, url, want string }{
		{plain.URL, target.URL, "HTTP/2.0"},
		{secure.URL, target.URL, "HTTP/1.1"},
		{secure.URL, "http://example.test/", "by proxy with HTTP/1.1"},
	} {
		c := newClient(t, Config{RootCAs: roots, Proxy: ProxyFromEnv(env("ALL_PROXY", tt.proxy))})
		rig.Is(t, answer(t, c, get(tt.url)), tt.want, "%s by %s", tt.url, tt.proxy)
		c.Close()
	}
	_, ok := seen.Load("CONNECT HTTP/2.0")
	rig.Is(t, ok, false, "a proxy was asked by HTTP/2")
}
