package netproxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// listen starts a destination that is handed each connection, and returns its address.
func listen(t testing.TB, handle func(conn net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	rig.Must(t, err)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				handle(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range conns {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

// tlsSite starts a destination with TLS, and returns its address and whom to trust.
func tlsSite(t testing.TB) (string, *x509.CertPool) {
	t.Helper()
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		fmt.Fprint(w, "secret ", q.RequestURI)
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s.Listener.Addr().String(), roots
}

// TestTunnel: bytes go both ways, each direction to its own end, also those that the command
// sends together with CONNECT and those that the destination sends first.
func TestTunnel(t *testing.T) {
	t.Parallel()
	echo := listen(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, "220 hello\r\n")
		all, _ := io.ReadAll(conn) // to the end of what the command says
		_, _ = conn.Write(all)
	})
	g := start(t, allow("127.0.0.1"))
	big := strings.Repeat("0123456789abcdef", 1<<17)
	for _, text := range []string{"", "x", "SSH-2.0-x\r\n", "\x16", "\x16\x02tls it is not", big} {
		conn := g.dial()
		go func() {
			_, _ = io.WriteString(conn, "CONNECT "+echo+" HTTP/1.1\r\nHost: "+echo+"\r\n\r\n"+text)
			_ = conn.CloseWrite()
		}()
		_, _, body := parts(string(rig.Value(io.ReadAll(conn))))
		rig.Is(t, body == "220 hello\r\n"+text, true, "%.10q: %.40q … of %d bytes is it, behind a line", text, body, len(body))
	}
	conn := g.dial() // and with the end of the destination first
	open(t, conn, listen(t, func(conn net.Conn) {
		_, _ = io.WriteString(conn, big)
		_ = conn.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, conn)
	}))
	back, err := io.ReadAll(conn)
	rig.Is(t, string(back) == big, true, "%d bytes, %v: they are those", len(back), err)
	rig.Check(t, rig.Err(io.WriteString(conn, big)))
}

// TestTunnelFails: a tunnel to nobody is answered with 502, after its verdict.
func TestTunnelFails(t *testing.T) {
	t.Parallel()
	g := start(t, allow("127.0.0.1"))
	dead := rig.FreeAddress(t)
	rig.Is(t, g.answer("CONNECT "+dead+" HTTP/1.1\r\n\r\nGET http://"+dead+"/ HTTP/1.1\r\n\r\n"),
		"HTTP/1.1 502 Bad Gateway|"+upstreamFailure, "CONNECT")
	back := g.raw("GET http://" + dead + "/ HTTP/1.1\r\n\r\nGET http://" + dead + "/" + closing)
	rig.Is(t, strings.Count(back, upstreamFailure), 2, "plain: failures in %s", back)
	g.want("domain allow baseline_policy allow https_connect "+dead+" CONNECT", "domain allow baseline_policy allow http "+dead+" GET", "domain allow baseline_policy allow http "+dead+" GET")
}

// TestRefusedTunnel: what follows a refused CONNECT is not a request.
func TestRefusedTunnel(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("127.0.0.1"))
	back := g.raw("CONNECT other.test:443 HTTP/1.1\r\n\r\nGET http://" + s.addr + "/ HTTP/1.1\r\n\r\n")
	rig.Is(t, strings.Count(back, "HTTP/1.1 "), 1, "%q: answers", back)
	rig.Is(t, len(s.seen()), 0, "requests that arrived")
	g.want("domain deny baseline_policy not_allowed https_connect other.test:443 CONNECT")
}

// TestServerName: a tunnel whose TLS names another host than CONNECT leads nowhere. An address has no
// name of its own, so every name goes with it.
func TestServerName(t *testing.T) {
	t.Parallel()
	server, roots := tlsSite(t)
	_, port, _ := net.SplitHostPort(server)
	var got bytes.Buffer
	var mu sync.Mutex
	passive := listen(t, func(conn net.Conn) {
		b, _ := io.ReadAll(conn)
		mu.Lock()
		got.Write(b)
		mu.Unlock()
	})
	_, passivePort, _ := net.SplitHostPort(passive)
	g := start(t, all(), Config{Resolver: loopback(t).resolver})
	for _, c := range []struct {
		name, host, sni string
		ok              bool
	}{
		{"the same", "example.com", "example.com", true},
		{"the same in another spelling", "EXAMPLE.com.", "example.COM", true},
		{"none", "example.com", "", true},
		{"an address and none", "127.0.0.1", "", true},
		{"another", "example.com", "other.example.com", false},
		{"a name for an address", "127.0.0.1", "example.com", true},
	} {
		before := len(g.reports(0))
		conn := g.dial()
		open(t, conn, net.JoinHostPort(c.host, port))
		config := &tls.Config{ServerName: c.sni, RootCAs: roots}
		if c.sni == "" {
			config.InsecureSkipVerify = true
		}
		err := tls.Client(conn, config).Handshake()
		rig.Is(t, err == nil, c.ok, "%s: %v", c.name, err)
		if c.ok {
			g.reports(before + 1)
			continue
		}
		last := g.reports(before + 2)[before+1]
		rig.Is(t, fmt.Sprint(last.Scope, " ", last.Decision, " ", last.Source, " ", last.Reason),
			"non_domain deny baseline_policy policy_denied", "%s", c.name)
		conn = g.dial()
		open(t, conn, net.JoinHostPort(c.host, passivePort))
		_ = tls.Client(conn, config).Handshake()
	}
	// A greeting that is none ends the tunnel too: the destination might understand it.
	for name, text := range map[string]string{
		"no greeting": "\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00",
		"endless":     "\x16\x03\x01\x40\x00\x01\x00\xff\xff" + strings.Repeat("a", 2*maxGreeting),
	} {
		before := len(g.reports(0))
		conn := g.dial()
		open(t, conn, net.JoinHostPort("example.com", passivePort))
		_, _ = io.WriteString(conn, text)
		_, _ = io.Copy(io.Discard, conn)
		rig.Is(t, g.reports(before + 2)[before+1].Reason, rules.ReasonPolicyDenied, "%s", name)
	}
	rig.Check(t, g.Close())
	mu.Lock()
	defer mu.Unlock()
	rig.Is(t, got.Len(), 0, "bytes that the destination has got")
}

// hello returns the greeting of a TLS client.
func hello(t testing.TB, name string) []byte {
	here, there := net.Pipe()
	go func() {
		_ = tls.Client(here, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
		_ = here.Close()
	}()
	g := newGreeter(head.NewReader(there))
	rig.Is(t, rig.Value(g.name()), name, "the greeting names")
	_ = there.Close()
	return g.said
}

// TestGreeting: the name is found however the greeting arrives, and what is passed on is what
// was said.
func TestGreeting(t *testing.T) {
	t.Parallel()
	said := hello(t, "a.test")
	for n := range said {
		g := newGreeter(head.NewReader(bytes.NewReader(said[:n])))
		if name, err := g.name(); n > 1 && err == nil || name != "" || !bytes.Equal(g.said, said[:n]) {
			t.Errorf("%d of %d bytes: %q, %v", n, len(said), name, err)
		}
	}
	// The same greeting in records of one byte.
	var small []byte
	for _, b := range said[5:] {
		small = append(small, 22, 3, 1, 0, 1, b)
	}
	for _, in := range [][]byte{said, small} {
		g := newGreeter(head.NewReader(iotest.OneByteReader(bytes.NewReader(in))))
		rig.Is(t, rig.Value(g.name()), "a.test", "byte by byte")
		rig.Is(t, bytes.Equal(g.said, in), true, "what was said is kept")
	}
}

// FuzzGreeting: whatever a command says first, it is kept whole and within bounds.
func FuzzGreeting(f *testing.F) {
	f.Add(hello(f, "a.test"))
	f.Add([]byte("\x16\x03\x01\x00\x05\x02\x00\x00\x01\x00"))
	f.Add([]byte("SSH-2.0-x\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		g := newGreeter(head.NewReader(bytes.NewReader(in)))
		name, err := g.name()
		rig.Is(t, len(g.said) <= maxGreeting && bytes.HasPrefix(in, g.said), true, "%d bytes of %d were kept", len(g.said), len(in))
		rig.Is(t, err == nil && name == "" && len(g.said) == 0 && len(in) > 0, false, "nothing is passed on")
		rig.Is(t, errors.Is(err, errUnderstood), false, "%v is an error", err)
		g.release()
	})
}
