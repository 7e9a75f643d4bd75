package netproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/intercept"
	"github.com/execagent/execagent/internal/netproxy/mask"
	"github.com/execagent/execagent/test/rig"
)

const secret = "tok_abcdefghijabcdefghij"

// A vault is a destination with TLS for which a command has a credential, and a proxy before it.
type vault struct {
	*proxied
	host        string // HOST:PORT
	port        string
	placeholder string
	bundle      *x509.CertPool // whom the command trusts
	own         *x509.CertPool // whom somebody trusts who is not intercepted

	waiting chan struct{} // closed when a request for /wait has arrived

	mu    sync.Mutex
	heads []string // "protocol method path authorization body"
	conns map[net.Conn]bool
}

// newVault starts one with HTTP/2, and has its credential belong below /api.
func newVault(t testing.TB, limited bool, name string, cfg ...Config) *vault {
	t.Helper()
	v := &vault{conns: map[net.Conn]bool{}, waiting: make(chan struct{})}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Upgrade") != "" {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\r\n"+r.Header.Get("Authorization")+" ")
			_, _ = io.Copy(conn, rw)
			return
		}
		if r.URL.Path == "/wait" {
			close(v.waiting)
			<-r.Context().Done()
			return
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		v.heads = append(v.heads, fmt.Sprintf("%s %s %s|%s|%s", r.Proto, r.Method, r.RequestURI, r.Header.Get("Authorization"), body))
		w.Header().Set("X-Echo", r.Header.Get("Authorization"))
		fmt.Fprint(w, "answer to ", r.RequestURI)
	}))
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Config.ConnState = func(conn net.Conn, _ http.ConnState) {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.conns[conn] = true
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	_, v.port, _ = net.SplitHostPort(s.Listener.Addr().String())
	v.host = net.JoinHostPort(name, v.port)
	v.own = x509.NewCertPool()
	v.own.AddCert(s.Certificate())
	authority, err := intercept.NewAuthority(nil)
	rig.Must(t, err)
	v.bundle = x509.NewCertPool()
	v.bundle.AppendCertsFromPEM(authority.Bundle())
	broker, placeholder := newBroker(t, "https://"+v.host+"/api")
	v.placeholder = placeholder
	r := allow("127.0.0.1", "example.com", "other.test")
	r.Local, r.Limited = true, limited
	c := append(cfg, Config{})[0]
	c.Credentials, c.Authority, c.Roots, c.Resolver = broker, authority, func() *x509.CertPool { return v.own }, loopback(t).resolver
	v.proxied = socks(t, r, c)
	return v
}

// newBroker returns one with a credential that belongs to a place, and its placeholder.
func newBroker(t testing.TB, at string) (broker *mask.Broker, placeholder string) {
	t.Helper()
	broker, err := mask.New(mask.Config{Environ: []string{"TOK=" + secret}, Providers: map[string]mask.Provider{
		"mine": {Env: []string{"TOK"}, Patterns: []string{"tok_[a-z]{20}"}, URLPrefixes: []string{at}},
	}})
	rig.Must(t, err)
	for _, entry := range broker.Environ("/bundle") {
		if name, value, _ := strings.Cut(entry, "="); name == "TOK" {
			placeholder = value
		}
	}
	rig.Is(t, placeholder != "" && placeholder != secret, true, "%q is a placeholder", placeholder)
	return broker, placeholder
}

// seen returns what arrived, and over how many connections.
func (v *vault) seen() (heads []string, conns int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.heads), len(v.conns)
}

// client returns a client that reaches a place through the proxy's SOCKS5, or through its CONNECT
// if http is its address.
func (v *vault) client(t testing.TB, http2 bool, trusted *x509.CertPool) *http.Client {
	t.Helper()
	tr := &http.Transport{
		DialContext:        func(_ context.Context, _, at string) (net.Conn, error) { return v.through(at), nil },
		TLSClientConfig:    &tls.Config{RootCAs: trusted},
		ForceAttemptHTTP2:  http2,
		DisableCompression: true,
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func send(t testing.TB, c *http.Client, method, url, authorization, body string) (status int, header http.Header, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	rig.Must(t, err)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	a, err := c.Do(r)
	rig.Must(t, err)
	defer a.Body.Close()
	back, err := io.ReadAll(a.Body)
	rig.Must(t, err)
	return a.StatusCode, a.Header, string(back)
}

// TestInside: a credential is put back where it belongs and nowhere else, in HTTP/1 and HTTP/2.
func TestInside(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		v := newVault(t, false, "example.com")
		c := v.client(t, http2, v.bundle)
		url := "https://" + v.host
		for _, test := range []struct{ path, want string }{
			{"/api/a?k=" + v.placeholder, secret}, {"/other", v.placeholder}, {"/apix", v.placeholder}, {"/api/%2e%2e/x", v.placeholder},
		} {
			status, header, body := send(t, c, "POST", url+test.path, "Bearer "+v.placeholder, "k="+v.placeholder)
			rig.Is(t, fmt.Sprint(status, " ", body), "200 answer to "+test.path, "")
			rig.Is(t, header.Get("X-Echo"), "Bearer "+test.want, "%s", test.path)
			heads, _ := v.seen()
			proto := map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"}[http2]
			rig.Is(t, heads[len(heads)-1], proto+" POST "+test.path+"|Bearer "+test.want+"|k="+v.placeholder, "what arrived")
		}
		_, header, _ := send(t, c, "TRACE", url+"/api", "Bearer "+v.placeholder, "")
		rig.Is(t, header.Get("X-Echo"), "Bearer "+v.placeholder, "TRACE")
		_, conns := v.seen()
		rig.Is(t, conns, 1, "connections to the destination")
		v.want("domain allow baseline_policy allow socks5_tcp " + v.host + " ") // of the tunnel
	}
}

// TestInsideConnect: the same through CONNECT, with the hygiene of plain requests inside.
func TestInsideConnect(t *testing.T) {
	t.Parallel()
	v := newVault(t, false, "127.0.0.1")
	v.serve(HTTP)
	for _, test := range []struct{ in, want string }{
		{"GET /api/a HTTP/1.1\r\nHost: " + v.host + "\r\nAuthorization: Bearer " + v.placeholder + "\r\n\r\n", "answer to /api/a"},
		{"GET https://" + v.host + "/api/b HTTP/1.1\r\nHost: " + v.host + "\r\n\r\n", "answer to /api/b"},
		{"GET /api HTTP/1.1\r\nHost: other.test\r\n\r\n", "host mismatch"},
		{"GET /api HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "host mismatch"},
		{"GET https://other.test/ HTTP/1.1\r\nHost: other.test\r\n\r\n", "host mismatch"},
		{"GET https://other.test/ HTTP/1.1\r\nHost: " + v.host + "\r\n\r\n", "Host header does not match"},
		{"CONNECT " + v.host + " HTTP/1.1\r\nHost: " + v.host + "\r\n\r\n", "host mismatch"},
		{"POST /api HTTP/1.1\r\nHost: " + v.host + "\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "400 Bad Request"},
		{"GET /api HTTP/1.1\nHost: " + v.host + "\n\n", "400 Bad Request"},
	} {
		conn := v.dial()
		open(t, conn, v.host)
		secure := tls.Client(conn, &tls.Config{RootCAs: v.bundle, ServerName: "127.0.0.1"})
		say(t, secure, test.in)
		a, err := http.ReadResponse(bufio.NewReader(secure), nil)
		if err != nil {
			t.Errorf("%q: %v", test.in, err)
			continue
		}
		got := a.Status + " " + string(rig.Value(io.ReadAll(a.Body)))
		rig.Is(t, strings.Contains(got, test.want), true, "%q: %s has %q", test.in, got, test.want)
		_ = secure.Close()
	}
	heads, _ := v.seen()
	rig.Same(t, "what arrived", []string{"HTTP/1.1 GET /api/a|Bearer " + secret + "|", "HTTP/1.1 GET /api/b||"}, heads)
}

// TestInsideUpstream: the destination is reached through the upstream proxy, which sees TLS.
func TestInsideUpstream(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		asked := make(chan string, 9)
		up := relay(t, func(network, place string) (net.Conn, error) {
			asked <- place
			_, port, _ := net.SplitHostPort(place)
			return net.Dial(network, "127.0.0.1:"+port)
		})
		v := newVault(t, false, "example.com", Config{Upstream: UpstreamOf(func(string) string { return up })})
		v.serve(HTTP)
		conn := v.dial()
		open(t, conn, v.host)
		c := v.client(t, http2, v.bundle)
		c.Transport.(*http.Transport).DialContext = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		for range 2 {
			status, header, _ := send(t, c, "GET", "https://"+v.host+"/api", "Bearer "+v.placeholder, "")
			rig.Is(t, fmt.Sprint(status, " ", header.Get("X-Echo")), "200 Bearer "+secret, "")
		}
		rig.Is(t, <-asked, v.host, "the upstream proxy was asked for")
	}
}

// TestNotInside: other tunnels are not looked into, and who names another host in TLS gets
// nowhere.
func TestNotInside(t *testing.T) {
	t.Parallel()
	v := newVault(t, false, "example.com")
	conn := v.through("127.0.0.1:" + v.port)
	rig.Check(t, tls.Client(conn, &tls.Config{RootCAs: v.own, ServerName: "127.0.0.1"}).Handshake())
	for name, trusted := range map[string]*x509.CertPool{"other.test": v.bundle, "example.com": v.own} {
		conn := v.through(v.host)
		err := tls.Client(conn, &tls.Config{RootCAs: trusted, ServerName: name}).Handshake()
		rig.Is(t, err != nil, true, "%s: TLS is not spoken", name)
	}
	// Not TLS: the destination is asked, which refuses it.
	conn = v.dial()
	say(t, conn, greeting+"\x05\x01\x00"+place(t, v.host)+"GET / HTTP/1.0\r\n\r\n")
	back := string(rig.Value(io.ReadAll(conn)))
	rig.Is(t, strings.Contains(back, "HTTP request to an HTTPS server"), true, "%q is the destination's refusal", back)
	heads, _ := v.seen()
	rig.Is(t, len(heads), 0, "requests that arrived")
}

// TestInsideUntrusted: a destination that is not who it has to be gets no request.
func TestInsideUntrusted(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		v := newVault(t, false, "other.test") // its certificate is that of example.com
		status, _, body := send(t, v.client(t, http2, v.bundle), "GET", "https://"+v.host+"/api", "Bearer "+v.placeholder, "")
		heads, _ := v.seen()
		rig.Is(t, fmt.Sprint(status, " ", body, heads), "502 "+upstreamFailure+"[]", "answer, and what arrived")
	}
}

// TestInsideLimited: in limited mode each tunnel is looked into, whose requests only read.
func TestInsideLimited(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		v := newVault(t, true, "example.com")
		v.serve(HTTP)
		for _, host := range []string{"example.com:", "127.0.0.1:"} { // with a credential and without
			c := &http.Client{Transport: &http.Transport{
				DialTLSContext: func(context.Context, string, string) (net.Conn, error) {
					conn := v.dial()
					open(t, conn, host+v.port)
					speaks := map[bool][]string{false: {"http/1.1"}, true: {"h2"}}[http2]
					secure := tls.Client(conn, &tls.Config{RootCAs: v.bundle, ServerName: strings.TrimSuffix(host, ":"), NextProtos: speaks})
					return secure, secure.Handshake()
				},
				ForceAttemptHTTP2: http2,
			}}
			defer c.CloseIdleConnections()
			status, _, body := send(t, c, "GET", "https://"+host+v.port+"/api", "", "")
			rig.Is(t, fmt.Sprint(status, " ", body), "200 answer to /api", "GET")
			status, header, body := send(t, c, "POST", "https://"+host+v.port+"/api", "", "x")
			rig.Is(t, fmt.Sprint(status, " ", body), "403 Method not allowed in limited mode.", "POST")
			rig.Is(t, header.Get("X-Proxy-Error"), "blocked-by-method-policy", "POST")
		}
		conn := v.dial()
		open(t, conn, v.host)
		say(t, conn, "SSH-2.0-x\r\n")
		back, err := io.ReadAll(conn)
		rig.Is(t, len(back) > 0 && err == nil, false, "another protocol: %q", back)
		other := "127.0.0.1:" + v.port
		v.want("domain allow baseline_policy allow https_connect "+v.host+" CONNECT", "non_domain deny mode_guard method_not_allowed https_connect "+v.host+" POST",
			"domain allow baseline_policy allow https_connect "+other+" CONNECT", "non_domain deny mode_guard method_not_allowed https_connect "+other+" POST",
			"domain allow baseline_policy allow https_connect "+v.host+" CONNECT", "non_domain deny mode_guard mitm_required https_connect "+v.host+" CONNECT")
	}
}

// TestInsidePlain: plain requests to a credential's own destination, directly and in a tunnel.
func TestInsidePlain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	other := newSite(t, nil)
	broker, placeholder := newBroker(t, "http://"+s.addr+"/api")
	authority, err := intercept.NewAuthority(nil)
	rig.Must(t, err)
	g := start(t, allow("127.0.0.1"), Config{Credentials: broker, Authority: authority})
	head := func(path, host string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nauthorization: Bearer " + placeholder + "\r\nCookie: k=" + placeholder + "\r\n\r\n"
	}
	quit := "GET /quit HTTP/1.1\r\nHost: " + s.addr + "\r\nConnection: close\r\n\r\n"
	g.raw(head("http://"+s.addr+"/api/1", s.addr) + head("http://"+s.addr+"/other", s.addr) + head("http://"+other.addr+"/api/2", other.addr) + quit)
	g.raw("CONNECT " + s.addr + " HTTP/1.1\r\n\r\n" + head("/api/3", s.addr) + head("/api/4?k="+placeholder, s.addr) + quit)
	h := socks(t, allow("127.0.0.1"), Config{Credentials: broker, Authority: authority})
	h.raw(greeting + "\x05\x01\x00" + place(t, s.addr) + head("/api/6", s.addr) + quit)
	back := g.raw("CONNECT " + s.addr + " HTTP/1.1\r\n\r\n" + head("/api/5", other.addr))
	rig.Is(t, strings.Contains(back, "host mismatch"), true, "another host: %q", back)
	var got []string
	for _, h := range slices.Concat(s.seen(), other.seen()) {
		line, rest, _ := strings.Cut(h, " HTTP/1.1\r\n")
		if strings.Contains(line, "quit") {
			continue
		}
		word := "placeholder"
		if strings.Contains(rest, "authorization: Bearer "+secret+"\r\nCookie: k="+placeholder) {
			word = "credential"
		} else if strings.Contains(rest, secret) {
			word = "elsewhere"
		}
		got = append(got, line+" "+word)
	}
	want := []string{"GET /api/1 credential", "GET /other placeholder", "GET /api/3 credential", "GET /api/4?k=" + placeholder + " credential", "GET /api/6 credential", "GET /api/2 placeholder"}
	rig.Same(t, "requests", want, got)
	for _, r := range g.reports(0) {
		line := fmt.Sprintf("%+v", r)
		tells := strings.Contains(line, secret) || strings.Contains(line, placeholder) || strings.Contains(line, "/api")
		rig.Is(t, tells, false, "%s tells too much", line)
	}
}

// TestPlaceholderOfAnother: a placeholder goes through the proxy of another command as it is, be
// that with credentials of its own or without (leak L3).
func TestPlaceholderOfAnother(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(conn net.Conn, _ *http.Request, _ string) bool {
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
		return false // also in a tunnel that nobody looks into
	})
	_, placeholder := newBroker(t, "http://"+s.addr+"/api")
	other, _ := newBroker(t, "http://"+s.addr+"/api")
	authority, err := intercept.NewAuthority(nil)
	rig.Must(t, err)
	for _, g := range []*proxied{start(t, allow("127.0.0.1")), start(t, allow("127.0.0.1"), Config{Credentials: other, Authority: authority})} {
		field := "Host: " + s.addr + "\r\nAuthorization: Bearer " + placeholder
		g.raw("GET http://" + s.addr + "/api HTTP/1.1\r\n" + field + "\r\nConnection: close\r\n\r\n")
		g.raw("CONNECT " + s.addr + " HTTP/1.1\r\n\r\nGET /api HTTP/1.1\r\n" + field + "\r\nConnection: close\r\n\r\n")
	}
	all := fmt.Sprint(s.seen())
	rig.Is(t, len(s.seen()), 4, "requests that arrived")
	rig.Is(t, strings.Count(all, "Bearer "+placeholder), 4, "requests with the placeholder in %s", all)
	rig.Is(t, strings.Contains(all, secret), false, "%s has the secret", all)
}

// TestInsideWebSocket: a request for WebSocket changes the protocol, and what else asks for a
// change, or in limited mode, is an ordinary request.
func TestInsideWebSocket(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limited         bool
		method, upgrade string
		switched        bool
	}{
		{false, "GET", "websocket", true},
		{false, "GET", "h2c", false},
		{false, "GET", "websocket, h2c", false},
		{false, "GET", "websocket\r\nUpgrade: h2c", false},
		{false, "PUT", "websocket", false},
		{true, "GET", "websocket", false},
	} {
		v := newVault(t, test.limited, "example.com")
		var conn net.Conn
		if test.limited { // SOCKS5 to other ports than 443 is off there
			v.serve(HTTP)
			conn = v.dial()
			open(t, conn, v.host)
		} else {
			conn = v.through(v.host)
		}
		secure := tls.Client(conn, &tls.Config{RootCAs: v.bundle, ServerName: "example.com"})
		in := test.method + " /api HTTP/1.1\r\nHost: " + v.host + "\r\nConnection: Upgrade\r\nUpgrade: " + test.upgrade + "\r\nAuthorization: Bearer " + v.placeholder + "\r\nSec-WebSocket-Key: k\r\n\r\n"
		say(t, secure, in)
		r := bufio.NewReader(secure)
		a, err := http.ReadResponse(r, nil)
		rig.Must(t, err)
		rig.Is(t, a.StatusCode == 101, test.switched, "%+v: %s", test, a.Status)
		if !test.switched {
			continue
		}
		text := strings.Repeat("0123456789abcdef", 1<<14)
		go func() {
			_, _ = io.WriteString(secure, text)
			_ = secure.CloseWrite()
		}()
		rig.Is(t, string(rig.Value(io.ReadAll(r))) == "Bearer "+secret+" "+text, true, "the text comes back")
		rig.Is(t, a.Header.Get("Upgrade")+" "+a.Header.Get("Sec-WebSocket-Accept"), "websocket x", "the fields of the answer")
	}
}

// TestInsideClose: Close ends requests in tunnels.
func TestInsideClose(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		v := newVault(t, false, "example.com")
		c := v.client(t, http2, v.bundle)
		status, _, _ := send(t, c, "GET", "https://"+v.host+"/api", "", "")
		rig.Is(t, status, 200, "status")
		failed := make(chan error, 1)
		go func() {
			a, err := c.Post("https://"+v.host+"/wait", "text/plain", strings.NewReader("x"))
			if err == nil {
				_ = a.Body.Close()
			}
			failed <- err
		}()
		<-v.waiting
		rig.Check(t, v.Close())
		rig.Is(t, <-failed != nil, true, "the request fails")
	}
}
