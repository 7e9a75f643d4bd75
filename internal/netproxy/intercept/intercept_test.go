package intercept

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A site is a destination, a proxy in front of it that only intercepts, and a client.
type site struct {
	destination *httptest.Server
	stream      Stream // as the proxy serves it, without its connection
	authority   *Authority
	address     string // of the proxy
	dials       atomic.Int32
	client      *http.Client
}

func newSite(t testing.TB, http2 bool, handler http.HandlerFunc, change func(*Stream)) *site {
	t.Helper()
	s := &site{destination: httptest.NewUnstartedServer(handler)}
	s.destination.EnableHTTP2 = http2
	s.destination.Config.ErrorLog = silent
	s.destination.StartTLS()
	t.Cleanup(s.destination.Close)
	authority, err := NewAuthority(nil)
	rig.Must(t, err)
	s.authority = authority
	roots := x509.NewCertPool()
	roots.AddCert(s.destination.Certificate())
	s.stream = Stream{Host: "example.com", Port: 443, Roots: roots, Dial: func(ctx context.Context) (net.Conn, error) {
		s.dials.Add(1)
		return new(net.Dialer).DialContext(ctx, "tcp", s.destination.Listener.Addr().String())
	}}
	if change != nil {
		change(&s.stream)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	rig.Must(t, err)
	s.address = listener.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	var served requests
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if !served.begin() {
				_ = conn.Close()
				return
			}
			go func() {
				defer served.running.Done()
				stream := s.stream
				stream.Conn = tls.Server(conn, authority.Config(stream.Host))
				if err := stream.Conn.HandshakeContext(ctx); err != nil {
					_ = conn.Close()
					return
				}
				Serve(ctx, stream)
			}()
		}
	}()
	trusted := x509.NewCertPool()
	rig.Is(t, trusted.AppendCertsFromPEM(authority.Bundle()), true, "the bundle has a certificate")
	s.client = s.newClient(trusted, s.address)
	t.Cleanup(func() {
		s.client.CloseIdleConnections()
		cancel()
		_ = listener.Close()
		served.wait()
	})
	return s
}

// newClient returns a client of HTTP/2 that connects to an address whatever the URL.
func (s *site) newClient(trusted *x509.CertPool, address string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address)
		},
		TLSClientConfig:   &tls.Config{RootCAs: trusted, ServerName: s.stream.Host},
		ForceAttemptHTTP2: true,
	}}
}

// do sends a request and returns the answer with its body.
func do(t *testing.T, c *http.Client, r *http.Request) (*http.Response, string) {
	t.Helper()
	a, err := c.Do(r.WithContext(t.Context()))
	rig.Must(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	rig.Must(t, err)
	return a, string(body)
}

func request(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	rig.Must(t, err)
	return r
}

// get is do with a request of a method and URL, and returns the status and the body.
func get(t *testing.T, c *http.Client, method, url string) string {
	t.Helper()
	a, body := do(t, c, request(t, method, url, nil))
	return fmt.Sprint(a.StatusCode, " ", body)
}

// TestServe: requests arrive as they were sent, but for the fields that are restored.
func TestServe(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{true, false} {
		s := newSite(t, http2, func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			rig.Check(t, err)
			w.Header().Set("Trailer", "X-End")
			w.Header().Set("X-Seen", r.Header.Get("Authorization"))
			_, _ = fmt.Fprintf(w, "%s %s %s %s|%s|%s", r.Proto, r.Method, r.Host, r.RequestURI, body, r.Header.Get("X-Forwarded-For"))
			w.Header().Set("X-End", "end")
		}, func(s *Stream) {
			s.Restore = func(path, field, value string) string {
				if path == "/a%2Fb" && field == "Authorization" {
					return strings.Replace(value, "placeholder", "credential", 1)
				}
				return value
			}
		})
		want := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
		r := request(t, "PUT", "https://example.com/a%2Fb?q=placeholder;x", strings.NewReader("placeholder"))
		r.Header.Set("Authorization", "Bearer placeholder")
		r.Header.Set("X-Forwarded-For", "me")
		a, body := do(t, s.client, r)
		rig.Is(t, fmt.Sprint(a.Proto, " ", a.Header.Get("X-Seen"), " ", a.Trailer.Get("X-End")), "HTTP/2.0 Bearer credential end", "the answer")
		rig.Is(t, body, want+" PUT example.com /a%2Fb?q=placeholder;x|placeholder|me", "the request")
		r = request(t, "GET", "https://example.com/other", nil)
		r.Header.Set("Authorization", "Bearer placeholder")
		a, body = do(t, s.client, r)
		rig.Is(t, a.Header.Get("X-Seen"), "Bearer placeholder", "elsewhere")
		rig.Is(t, body, want+" GET example.com /other||", "the request")
		rig.Is(t, !http2 || s.dials.Load() == 1, true, "%d connections: one to a destination that speaks HTTP/2", s.dials.Load())
		// Another host than that of the tunnel.
		r = request(t, "GET", "https://example.com/", nil)
		for _, r.Host = range []string{"other.test", "example.com:8443"} {
			a, body := do(t, s.client, r)
			rig.Is(t, fmt.Sprint(a.StatusCode, " ", body), "400 host mismatch", "%s", r.Host)
		}
		r.Host = "EXAMPLE.com:443"
		a, _ = do(t, s.client, r)
		rig.Is(t, a.StatusCode, 200, "the same host")
		rig.Is(t, get(t, s.client, "CONNECT", "https://example.com/")[:3], "400", "a tunnel in a tunnel")
	}
}

// TestJudge: what the caller does not let go on never arrives.
func TestJudge(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	s := newSite(t, true, func(http.ResponseWriter, *http.Request) { arrived.Add(1) }, func(s *Stream) {
		s.Judge = func(r *http.Request) http.HandlerFunc {
			if r.Method == "GET" {
				return nil
			}
			return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }
		}
	})
	a, _ := do(t, s.client, request(t, "POST", "https://example.com/", strings.NewReader("x")))
	rig.Is(t, a.StatusCode, 403, "POST")
	rig.Is(t, get(t, s.client, "GET", "https://example.com/"), "200 ", "GET")
	rig.Is(t, arrived.Load(), 1, "requests that have arrived")
}

// TestUntrusted: a destination whose certificate is not that of the host gets no request, and
// one that cannot be reached is a failure.
func TestUntrusted(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	for name, change := range map[string]func(*Stream){
		"another name":  func(s *Stream) { s.Host = "other.test" },
		"another root":  func(s *Stream) { s.Roots = x509.NewCertPool() },
		"no connection": func(s *Stream) { s.Dial = func(context.Context) (net.Conn, error) { return nil, net.ErrClosed } },
	} {
		s := newSite(t, true, func(http.ResponseWriter, *http.Request) { arrived.Add(1) }, change)
		rig.Is(t, get(t, s.client, "GET", "https://"+s.stream.Host+"/secret/path"), "502 upstream failure", "%s", name)
	}
	rig.Is(t, arrived.Load(), 0, "requests have arrived")
}

// TestOtherName: a greeting with another name than that of the tunnel is refused.
func TestOtherName(t *testing.T) {
	t.Parallel()
	s := newSite(t, true, func(http.ResponseWriter, *http.Request) {}, nil)
	for name, want := range map[string]bool{"example.com": true, "EXAMPLE.com": true, "other.test": false, "": true} {
		conn, err := tls.Dial("tcp", s.address, &tls.Config{ServerName: name, InsecureSkipVerify: true})
		rig.Is(t, err == nil, want, "%q: %v", name, err)
		if err == nil {
			_ = conn.Close()
		}
	}
}

// TestAuthority: certificates are for one host, are kept within bounds, and only who has the
// bundle trusts them.
func TestAuthority(t *testing.T) {
	t.Parallel()
	other, err := NewAuthority(nil)
	rig.Must(t, err)
	a, err := NewAuthority(append(other.Bundle(), "\n\n"...))
	rig.Must(t, err)
	rig.Is(t, bytes.Count(a.Bundle(), []byte("BEGIN CERTIFICATE")), 2, "certificates")
	rig.Is(t, bytes.HasPrefix(a.Bundle(), other.Bundle()) && !bytes.Contains(a.Bundle(), []byte("PRIVATE")), true, "%s is of both", a.Bundle())
	trusted, stranger := x509.NewCertPool(), x509.NewCertPool()
	trusted.AppendCertsFromPEM(a.Bundle())
	stranger.AppendCertsFromPEM(other.Bundle())
	for _, host := range []string{"d.test", "127.0.0.1", "2606:4700::1", strings.Repeat("a.", 100) + "test"} {
		c, err := a.leaf(host)
		rig.Must(t, err)
		verified := func(name string, roots *x509.CertPool) bool {
			return rig.Err(c.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})) == nil
		}
		rig.Is(t, verified(host, trusted), true, "%s: it is trusted", host)
		rig.Is(t, verified("other.test", trusted), false, "%s: the certificate is also that of others", host)
		rig.Is(t, verified(host, stranger), false, "%s: a stranger trusts it", host)
		rig.Is(t, rig.Value(a.leaf(host)), c, "%s: asked for again", host)
		rig.Is(t, c.Leaf.IsCA, false, "%s: it can make others", host)
	}
	for i := range maxLeaves + 10 {
		rig.Must(t, rig.Err(a.leaf("host"+strconv.Itoa(i))))
	}
	rig.Is(t, len(a.leaves) <= maxLeaves, true, "%d certificates are few", len(a.leaves))
	block, _ := pem.Decode(other.Bundle())
	root := rig.Value(x509.ParseCertificate(block.Bytes))
	rig.Is(t, root.MaxPathLenZero && root.IsCA, true, "it can make certificates, and nothing that can")
}

// TestLargeHeads: heads beyond the bound have no way through, of requests and of answers.
func TestLargeHeads(t *testing.T) {
	t.Parallel()
	var arrived atomic.Int32
	s := newSite(t, true, func(w http.ResponseWriter, r *http.Request) {
		arrived.Add(1)
		if r.URL.Path == "/large" {
			for i := range 4 * maxHeader / 1000 {
				w.Header().Set("X-"+strconv.Itoa(i), strings.Repeat("x", 1000))
			}
		}
	}, nil)
	rig.Is(t, get(t, s.client, "GET", "https://example.com/large")[:3], "502", "a large answer")
	rig.Is(t, arrived.Load(), 1, "requests that have arrived")
	r := request(t, "GET", "https://example.com/", nil)
	for i := range 4 * maxHeader / 1000 {
		r.Header.Set("X-"+strconv.Itoa(i), strings.Repeat("x", 1000))
	}
	if a, err := s.client.Do(r); err == nil {
		_ = a.Body.Close()
		rig.Is(t, a.StatusCode >= 400, true, "%s is a refusal", a.Status)
	}
	rig.Is(t, arrived.Load(), 1, "the request has arrived")
}

// TestEnd: a connection ends with the context while a request is under way.
func TestEnd(t *testing.T) {
	t.Parallel()
	begun, over := make(chan struct{}), make(chan struct{})
	s := newSite(t, true, func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		close(over)
	}, nil)
	here, there := net.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		stream := s.stream
		stream.Conn = tls.Server(there, s.authority.Config(stream.Host))
		if err := stream.Conn.HandshakeContext(ctx); err != nil {
			t.Error(err)
			return
		}
		Serve(ctx, stream)
	}()
	client := &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return here, nil },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	failed := make(chan error, 1)
	go func() {
		a, err := client.Do(request(t, "GET", "https://example.com/", nil))
		if err == nil {
			_ = a.Body.Close()
		}
		failed <- err
	}()
	<-begun
	cancel()
	<-ended
	<-over
	rig.Is(t, <-failed != nil, true, "the request fails")
}

// BenchmarkHTTP2 compares requests through an interception with those without, in turns. What is
// through is as a share of direct.
func BenchmarkHTTP2(b *testing.B) {
	large := make([]byte, 16<<20)
	s := newSite(b, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = w.Write(large[:1000])
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(large)))
		_, _ = w.Write(large)
	}, func(s *Stream) { s.Restore = func(_, _, value string) string { return value } })
	direct := s.newClient(s.stream.Roots, s.destination.Listener.Addr().String())
	defer direct.CloseIdleConnections()
	fetch := func(b *testing.B, c *http.Client, path string) {
		a, err := c.Get("https://example.com" + path)
		if err != nil {
			b.Error(err)
			return
		}
		rig.Check(b, rig.Err(io.Copy(io.Discard, a.Body)))
		_ = a.Body.Close()
	}
	for _, test := range []struct {
		path     string
		parallel int
		requests int
	}{{"/large", 1, 2}, {"/small", 1, 100}, {"/small", 16, 500}} {
		b.Run(fmt.Sprintf("%s/%d", test.path[1:], test.parallel), func(b *testing.B) {
			took := func(c *http.Client, cpu *time.Duration) time.Duration {
				begun, used := time.Now(), processorTime(b)
				defer func() { *cpu += processorTime(b) - used }()
				var all sync.WaitGroup
				for range test.parallel {
					all.Go(func() {
						for range test.requests / test.parallel {
							fetch(b, c, test.path)
						}
					})
				}
				all.Wait()
				return time.Since(begun)
			}
			var without, with, cpuWithout, cpuWith time.Duration
			for b.Loop() {
				without += took(direct, &cpuWithout)
				with += took(s.client, &cpuWith)
			}
			b.ReportMetric(float64(without)/float64(with), "of-direct")
			b.ReportMetric(float64(cpuWith)/float64(cpuWithout), "times-the-processor")
			b.ReportMetric(float64(with.Nanoseconds())/float64(b.N*test.requests), "ns/request")
		})
	}
}

// processorTime is what this process has used, which says more than a clock on a busy machine.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	rig.Must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
