package netproxy

import (
	"bufio"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// TestRefused: what a plain request and a tunnel are answered when they are refused, word for
// word, and what is reported.
func TestRefused(t *testing.T) {
	t.Parallel()
	deny := func(r rules.Rules, pattern string) rules.Rules { r.Domains[pattern] = rules.Deny; return r }
	limited := func(r rules.Rules) rules.Rules { r.Limited = true; return r }
	answer := func(a Answer, err error) Decider {
		return func(context.Context, Question) (Answer, error) { return a, err }
	}
	const (
		notListed = "Domain not in allowlist."
		denied    = "Domain denied by the sandbox policy."
		local     = "Sandbox policy blocks local/private network addresses."
		method    = "Method not allowed in limited mode."
		byPolicy  = "Request blocked by network policy."
	)
	for _, c := range []struct {
		name    string
		rules   rules.Rules
		decide  Decider
		method  string
		url     string // of the plain request; a tunnel goes to its host and port
		message string
		header  string
		tunnel  bool     // CONNECT is answered with the message; else it is not tried
		told    []string // "scope decision source reason"; the last one is in the answer
	}{
		{"not listed", allow("a.test"), nil, "GET", "http://b.test:81/",
			notListed, "blocked-by-allowlist", true, []string{"domain deny baseline_policy not_allowed"}},
		{"denied", deny(allow("*"), "bad.test"), nil, "GET", "http://bAD.test.:80/",
			denied, "blocked-by-denylist", true, []string{"domain deny baseline_policy denied"}},
		{"local", allow("*"), nil, "GET", "http://127.0.0.1:81/",
			local, "blocked-by-allowlist", true, []string{"domain deny baseline_policy not_allowed_local"}},
		{"local by IPv6", allow("*"), nil, "GET", "http://[::ffff:127.0.0.1]:81/",
			local, "blocked-by-allowlist", true, []string{"domain deny baseline_policy not_allowed_local"}},
		{"NAT64 of a local address", allow("*"), nil, "GET", "http://[64:ff9b::7f00:1]:81/",
			local, "blocked-by-allowlist", true, []string{"domain deny baseline_policy not_allowed_local"}},
		{"another port", allow("a.test:82"), nil, "GET", "http://a.test:81/",
			notListed, "blocked-by-allowlist", true, []string{"domain deny baseline_policy not_allowed"}},
		{"limited", limited(allow("127.0.0.1")), nil, "POST", "http://127.0.0.1:81/",
			method, "blocked-by-method-policy", false, []string{"domain allow baseline_policy allow", "non_domain deny mode_guard method_not_allowed"}},
		{"limited, a method in lower case", limited(allow("127.0.0.1")), nil, "get", "http://127.0.0.1:81/",
			method, "blocked-by-method-policy", false, []string{"domain allow baseline_policy allow", "non_domain deny mode_guard method_not_allowed"}},
		{"limited, but the name first", limited(allow("a.test")), nil, "POST", "http://b.test/",
			notListed, "blocked-by-allowlist", false, []string{"domain deny baseline_policy not_allowed"}},
		{"an answer of deny", allow(), answer(Answer{rules.Deny, "because <1>"}, nil), "GET", "http://b.test:81/",
			byPolicy, "blocked-by-policy", true, []string{"domain deny decider because <1>"}},
		{"an answer of ask", allow(), answer(Answer{rules.Ask, "please"}, nil), "GET", "http://b.test:81/",
			byPolicy, "blocked-by-policy", true, []string{"domain ask decider please"}},
		{"an answer without a reason", allow(), answer(Answer{rules.Deny, ""}, nil), "GET", "http://b.test:81/",
			byPolicy, "blocked-by-policy", true, []string{"domain deny decider policy_denied"}},
		{"an answer in the policy's words", allow(), answer(Answer{rules.Deny, "denied"}, nil), "GET", "http://b.test:81/",
			denied, "blocked-by-denylist", true, []string{"domain deny decider denied"}},
		{"no answer", allow(), answer(Answer{Decision: rules.Allow}, errors.New("nobody")), "GET", "http://b.test:81/",
			notListed, "blocked-by-allowlist", true, []string{"domain deny decider not_allowed"}},
		{"an answer that is none", allow(), answer(Answer{Decision: "maybe"}, nil), "GET", "http://b.test:81/",
			notListed, "blocked-by-allowlist", true, []string{"domain deny decider not_allowed"}},
		{"nobody is asked about the denied", deny(allow(), "bad.test"), answer(Answer{Decision: rules.Allow}, nil), "GET", "http://bad.test/",
			denied, "blocked-by-denylist", false, []string{"domain deny baseline_policy denied"}},
		{"nobody is asked about the local", allow(), answer(Answer{Decision: rules.Allow}, nil), "GET", "http://127.0.0.1/",
			local, "blocked-by-allowlist", false, []string{"domain deny baseline_policy not_allowed_local"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			g := start(t, c.rules, Config{Decide: c.decide})
			place := strings.TrimSuffix(strings.TrimPrefix(c.url, "http://"), "/")
			if !strings.Contains(place[1:], ":") {
				place += ":80"
			}
			q, err := destinationOf(&head.Request{Method: "CONNECT", Target: []byte(place)})
			rig.Must(t, err)
			words := strings.SplitN(c.told[len(c.told)-1], " ", 4)
			blocked := fmt.Sprintf(`{"status":"blocked","host":"%s","reason":"%s","decision":"%s","source":"%s","protocol":"http","port":%d,"message":"%s"}`,
				q.host, words[3], words[1], words[2], q.port, c.message)
			var want []string
			refused := func(in, kind, body, told string) {
				line, fields, got := parts(g.raw(in))
				rig.Is(t, line+" "+fields.Get("X-Proxy-Error"), "HTTP/1.1 403 Forbidden "+c.header, "%.9s", in)
				rig.Is(t, fields.Get("Content-Type")+" "+got, kind+" "+body, "%.9s", in)
				for _, of := range c.told {
					want = append(want, of+strings.Replace(told, "PLACE", net.JoinHostPort(q.host, fmt.Sprint(q.port)), 1))
				}
				g.want(want...)
			}
			refused(c.method+" "+c.url+closing, "application/json", blocked, " http PLACE "+c.method)
			if c.tunnel {
				refused("CONNECT "+place+" HTTP/1.1\r\n\r\n", "text/plain", c.message, " https_connect PLACE CONNECT")
			}
		})
	}
}

// TestLimited: what limited mode lets through, and that tunnels need interception there.
func TestLimited(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	r := allow("127.0.0.1")
	r.Limited = true
	g := start(t, r)
	var want []string
	for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
		rig.Is(t, g.status(method+" http://"+s.addr+"/"+closing), "HTTP/1.1 200 OK", "%s", method)
		want = append(want, "domain allow baseline_policy allow http "+s.addr+" "+method)
	}
	rig.Is(t, g.answer("CONNECT "+s.addr+" HTTP/1.1\r\n\r\n"),
		"HTTP/1.1 403 Forbidden blocked-by-mitm-required|MITM required for limited HTTPS.", "CONNECT")
	want = append(want, "domain allow baseline_policy allow https_connect "+s.addr+" CONNECT", "non_domain deny mode_guard mitm_required https_connect "+s.addr+" CONNECT")
	rig.Is(t, g.answer("PUT http://x.test/ HTTP/1.1\r\nx-unix-socket: /a\r\nConnection: close\r\n\r\n"),
		`HTTP/1.1 403 Forbidden blocked-by-method-policy|{"status":"blocked","host":"unix-socket","reason":"method_not_allowed"}`, "a UNIX socket")
	g.want(append(want, "non_domain deny mode_guard method_not_allowed http unix-socket:0 PUT")...)
}

// TestUnixSocket: a request for a UNIX socket is refused whatever is allowed.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	g := start(t, all())
	rig.Is(t, g.answer("GET http://x.test/ HTTP/1.1\r\nX-Unix-Socket: /a\r\nConnection: close\r\n\r\n"),
		"HTTP/1.1 501 Not Implemented|unix sockets unsupported", "")
	g.want("non_domain deny proxy_state unix_socket_unsupported http unix-socket:0 GET")
}

// TestDecider: an answer that allows is used once, and the next request is asked about anew.
func TestDecider(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	questions := make(chan Question, 2)
	answers := make(chan rules.Action, 2)
	answers <- rules.Allow
	answers <- rules.Deny
	g := start(t, rules.Rules{Local: true}, Config{Decide: func(_ context.Context, q Question) (Answer, error) {
		questions <- q
		return Answer{<-answers, "x"}, nil
	}})
	back := g.raw("GET http://" + s.addr + "/1 HTTP/1.1\r\n\r\nGET http://" + s.addr + "/2 HTTP/1.1\r\nConnection: close\r\n\r\n")
	rig.Is(t, strings.Count(back, "HTTP/1.1 200 OK"), 1, "answers that allow")
	rig.Is(t, strings.Count(back, "HTTP/1.1 403 "), 1, "answers that refuse")
	rig.Is(t, len(s.seen()), 1, "requests that arrived")
	for range 2 {
		rig.Is(t, fmt.Sprint(<-questions), "{http 127.0.0.1 "+s.port+"  }", "asked about")
	}
	g.want("domain allow decider not_allowed http "+s.addr+" GET *", "domain deny decider x http "+s.addr+" GET")
}

// TestMalformed: what is no request is answered with 400, nothing of it is reported or
// forwarded, and the connection ends: what follows may be part of it.
func TestMalformed(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, all(), Config{Resolver: loopback(t).resolver})
	const sequel = "GET http://SITE/sequel HTTP/1.1\r\n\r\n"
	long := strings.Repeat(strings.Repeat("a", 60)+".", 5) + "test"
	for _, c := range []struct{ name, in, body string }{
		{"no Host", "GET /a HTTP/1.1\r\n\r\n", "missing host"},
		{"no Host, in HTTP/1.0", "GET /a HTTP/1.0\r\n\r\n", "missing host"},
		{"an authority that is none", "GET http://SITE:80/ HTTP/1.1\r\n\r\n", "missing host"},
		{"a port too high", "GET http://a.test:65536/ HTTP/1.1\r\n\r\n", "missing host"},
		{"port 0", "GET http://a.test:0/ HTTP/1.1\r\n\r\n", "missing host"},
		{"a long host", "GET http://" + long + "/ HTTP/1.1\r\n\r\n", "missing host"},
		{"a host with a space", "GET /a HTTP/1.1\r\nHost: a b\r\n\r\n", "missing host"},
		{"a scoped address", "GET http://[fe80::1%25lo]/ HTTP/1.1\r\n\r\n", "missing host"},
		{"another Host", "GET http://SITE/a HTTP/1.1\r\nHost: other.test\r\n\r\n", "Host header does not match request target"},
		{"another Host with the port", "GET http://SITE/a HTTP/1.1\r\nHost: other.test:PORT\r\n\r\n", "Host header does not match request target"},
		{"CONNECT with another Host and the port", "CONNECT SITE HTTP/1.1\r\nHost: other.test:PORT\r\n\r\n", "Host header does not match request target"},
		{"Host with another port", "GET http://SITE/a HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", "Host header does not match request target"},
		{"Host without the port", "GET http://SITE/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "Host header does not match request target"},
		{"two Hosts", "GET http://SITE/a HTTP/1.1\r\nHost: SITE\r\nhost: SITE\r\n\r\n", "multiple Host headers"},
		{"a Host with a port too high", "GET http://SITE/a HTTP/1.1\r\nHost: 127.0.0.1:65536\r\n\r\n", "invalid Host header"},
		{"a Host with user information", "GET http://SITE/a HTTP/1.1\r\nHost: u@SITE\r\n\r\n", "invalid Host header"},
		{"an empty Host", "GET http://SITE/a HTTP/1.1\r\nHost:\r\n\r\n", ""},
		{"a Host outside ASCII", "GET http://SITE/a HTTP/1.1\r\nHost: b\xc3\xbc.test\r\n\r\n", ""},
		{"a target outside ASCII", "GET http://b\xc3\xbc.test/ HTTP/1.1\r\n\r\n", ""},
		{"CONNECT without a port", "CONNECT 127.0.0.1 HTTP/1.1\r\n\r\n", "missing host"},
		{"CONNECT with a URL", "CONNECT http://SITE/ HTTP/1.1\r\n\r\n", "missing host"},
		{"CONNECT with user information", "CONNECT u@SITE HTTP/1.1\r\n\r\n", "missing host"},
		{"CONNECT with another Host", "CONNECT SITE HTTP/1.1\r\nHost: other.test:443\r\n\r\n", "Host header does not match request target"},
		{"CONNECT with another port", "CONNECT SITE HTTP/1.1\r\nHost: 127.0.0.1:443\r\n\r\n", "Host header does not match request target"},
		{"CONNECT with a body", "CONNECT SITE HTTP/1.1\r\nContent-Length: 4\r\n\r\n", ""},
		{"OPTIONS *", "OPTIONS * HTTP/1.1\r\nHost: SITE\r\n\r\n", ""},
		{"not HTTP", "HELLO\r\n\r\n", ""},
		{"TLS", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\n", ""},
		{"a length and chunks", "POST http://SITE/a HTTP/1.1\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", ""},
		{"two lengths", "POST http://SITE/a HTTP/1.1\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nhello", ""},
		{"bare LF", "GET http://SITE/a HTTP/1.1\nHost: SITE\n\n", ""},
		{"gzip, chunked", "POST http://SITE/a HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", ""},
		{"xchunked", "POST http://SITE/a HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", ""},
		{"a space before the colon", "GET http://SITE/a HTTP/1.1\r\nHost : SITE\r\n\r\n", ""},
		{"a folded field", "GET http://SITE/a HTTP/1.1\r\nHost: SITE\r\nX: a\r\n b\r\n\r\n", ""},
		{"a megabyte", "GET http://SITE/a HTTP/1.1\r\nX: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", ""},
	} {
		line, fields, body := parts(g.raw(strings.NewReplacer("SITE", s.addr, "PORT", s.port).Replace(c.in + sequel)))
		rig.Is(t, line+"|"+body+"|"+fields.Get("Connection"), "HTTP/1.1 400 Bad Request|"+c.body+"|close", "%s", c.name)
	}
	for _, in := range []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "GET http://" + s.addr + "/ HTTP/1.1\r\nHost: "} {
		conn := g.dial()
		_, _ = io.WriteString(conn, in)
		_ = conn.CloseWrite()
		back, _ := io.ReadAll(conn)
		rig.Is(t, string(back), "", "%q was answered with", in)
	}
	rig.Is(t, fmt.Sprint(s.seen()), "[]", "the site has got")
	g.want()
}

// TestAccepted: what is a request, although it is unusual.
func TestAccepted(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, all(), Config{Resolver: loopback(t).resolver})
	named := "a.test:" + s.port
	for _, c := range []struct{ name, in, sent string }{
		{"origin form", "GET /a?b HTTP/1.1\r\nHost: NAMED\r\n", "GET /a?b HTTP/1.1\r\nHost: NAMED"},
		{"no Host", "GET http://NAMED/a HTTP/1.1\r\nX: 1\r\n", "GET /a HTTP/1.1\r\nHost: NAMED\r\nX: 1"},
		{"HTTP/1.0", "GET http://NAMED/a HTTP/1.0\r\n", "GET /a HTTP/1.0\r\nHost: NAMED"},
		{"another scheme", "GET ftp://NAMED/a HTTP/1.1\r\n", "GET /a HTTP/1.1\r\nHost: NAMED"},
		{"user information", "GET http://u:p@NAMED/a@b HTTP/1.1\r\n", "GET /a@b HTTP/1.1\r\nHost: NAMED"},
		{"letter case", "GET HTTP://A.TEST:PORT HTTP/1.1\r\nhOST: a.Test.:PORT\r\n", "GET / HTTP/1.1\r\nhOST: a.Test.:PORT"},
		{"a query alone", "GET http://NAMED?q HTTP/1.1\r\n", "GET /?q HTTP/1.1\r\nHost: NAMED"},
		{"70 kB", "GET http://NAMED/a HTTP/1.1\r\nX: " + strings.Repeat("a", 70_000) + "\r\n", "GET /a HTTP/1.1\r\nHost: NAMED\r\nX: " + strings.Repeat("a", 70_000)},
		{"an empty line before", "\r\nGET http://NAMED/a HTTP/1.1\r\n", "GET /a HTTP/1.1\r\nHost: NAMED"},
		{"order, spelling and bytes", "GET http://NAMED/%2e/../a HTTP/1.1\r\nzeta: 1\r\nALPHA: \xff 2\t3\r\nhost: NAMED\r\nZeta: 4\r\n", "GET /%2e/../a HTTP/1.1\r\nzeta: 1\r\nALPHA: \xff 2\t3\r\nhost: NAMED\r\nZeta: 4"},
		{"what is about the connection", "GET http://NAMED/hop HTTP/1.1\r\nHost: NAMED\r\nProxy-Authorization: Basic zz\r\nProxy-Connection: keep-alive\r\nConnection: X-Foo , x-baz,Host\r\nx-foo: 1\r\nKeep-Alive: 5\r\nTE: trailers\r\nTrailer: a\r\nUpgrade: websocket\r\nX-BAZ: 1\r\nX-Bar: 2\r\n",
			"GET /hop HTTP/1.1\r\nHost: NAMED\r\nX-Bar: 2"},
		{"another protocol", "GET / HTTP/1.1\r\nHost: NAMED\r\nConnection: X-Foo, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A_\r\n",
			"GET / HTTP/1.1\r\nHost: NAMED"},
		{"WebSocket", "GET / HTTP/1.1\r\nHost: NAMED\r\nConnection: X-Foo, Upgrade\r\nUpgrade: websocket\r\n", "GET / HTTP/1.1\r\nHost: NAMED"},
		{"Upgrade that Connection does not name", "GET / HTTP/1.1\r\nHost: NAMED\r\nUpgrade: h2c\r\n", "GET / HTTP/1.1\r\nHost: NAMED"},
	} {
		fill := strings.NewReplacer("NAMED", named, "PORT", s.port).Replace
		in := fill(c.in)
		if !strings.Contains(in, "Connection:") {
			in += "Connection: close\r\n"
		} else {
			in = strings.Replace(in, "Connection: X-Foo", "Connection: close, X-Foo", 1)
		}
		before := len(s.seen())
		rig.Is(t, g.status(in+"\r\n"), "HTTP/1.1 200 OK", "%s", c.name)
		rig.Is(t, strings.Join(s.seen()[before:], "|"), fill(c.sent), "%s: the site has got", c.name)
	}
}

// TestKeepAlive: requests of one connection are judged one by one, also behind a refused one,
// and those to one place use one connection.
func TestKeepAlive(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("127.0.0.1"))
	url := "http://" + s.addr
	back := g.raw("GET " + url + "/1 HTTP/1.1\r\n\r\n" +
		"POST http://other.test/2 HTTP/1.1\r\nContent-Length: 38\r\n\r\nGET " + url[:12] + "/smuggled HTTP/1.1\r\n\r\n" +
		"POST http://other.test/3 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nGET \r\n0\r\n\r\n" +
		"HEAD http://other.test/4 HTTP/1.1\r\n\r\n" +
		"POST " + url + "/5 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc" +
		"PUT " + url + "/6 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nTrailer: 1\r\n\r\n" +
		"GET " + url + "/7 HTTP/1.1\r\nConnection: close\r\n\r\n")
	r := bufio.NewReader(strings.NewReader(back))
	for i, want := range []string{"/1 ", "403", "403", "403", "/5 abc", "/6 abcde", "/7 "} {
		a, err := http.ReadResponse(r, &http.Request{Method: map[bool]string{true: http.MethodHead}[i == 3]})
		if err != nil {
			t.Fatalf("answer %d of %q: %v", i, back, err)
		}
		body, _ := io.ReadAll(a.Body)
		if want == "403" && a.StatusCode == 403 {
			continue
		}
		rig.Is(t, fmt.Sprint(a.StatusCode, " ", string(body)), "200 "+want, "answer %d", i)
	}
	rig.Is(t, len(s.seen()), 4, "requests that arrived")
	rig.Is(t, s.connections(), 1, "connections to the site")
	rig.Is(t, strings.Contains(fmt.Sprint(s.seen()), "smuggled"), false, "%q has what was smuggled", s.seen())
	rig.Is(t, len(g.reports(7)), 7, "reports")
}

// TestRefusedBody: the connection does not outlive a refused request whose body has no end
// within bounds, or that the command sends only if it is asked to. The answer arrives.
func TestRefusedBody(t *testing.T) {
	t.Parallel()
	g := start(t, allow())
	for name, in := range map[string]string{
		"long":      fmt.Sprintf("POST http://a.test/ HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s", 10*maxUnread, strings.Repeat("a", maxUnread/2)),
		"chunks":    "POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + strings.Repeat("1\r\na\r\n", 2*maxUnread),
		"malformed": "POST http://a.test/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nno size\r\n",
		"expected":  "POST http://a.test/ HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n",
	} {
		conn := g.dial()
		go func() { _, _ = io.WriteString(conn, in); _ = conn.CloseWrite() }()
		r := bufio.NewReader(conn)
		a, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		rig.Is(t, a.Close, (name == "long" || name == "expected"), "%s: the answer says that the connection ends", name)
		rest, _ := io.ReadAll(a.Body)
		rig.Is(t, a.StatusCode == 403 && strings.Contains(string(rest), "blocked"), true, "%s: %d %s: it is refused", name, a.StatusCode, rest)
		more, _ := io.ReadAll(r)
		rig.Is(t, string(more), "", "%s: behind the answer", name)
	}
}

// TestAnswers: how answers of destinations are passed on.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const close = "HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/plain\r\ncontent-length: 16\r\n"
	big := strings.Repeat("0123456789abcdef", 1<<16)
	for _, c := range []struct {
		name, method, version, answer string
		want                          string // the beginning
		end                           string // the end
		closes                        bool   // the command's connection
	}{
		{"length", "GET", "1.1", "HTTP/1.1 200 Fine\r\nServer: x\r\nsERVER: y\r\nConnection: X-A, keep-alive\r\nX-A: 1\r\nKeep-Alive: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 200 Fine\r\nServer: x\r\nsERVER: y\r\nContent-Length: 2\r\n\r\nab", "", false},
		{"chunks", "GET", "1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: T\r\n\r\n2;e\r\nab\r\n0\r\nT: 1\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "", false},
		{"chunks for HTTP/1.0", "GET", "1.0", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nab", "", true},
		{"until the end", "GET", "1.1", "HTTP/1.0 200 OK\r\n\r\nab", "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\nab", "", true},
		{"long until the end", "GET", "1.1", "HTTP/1.0 200 OK\r\n\r\n" + big, "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n0123", big, true},
		{"long", "GET", "1.1", fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(big), big), "HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n0123", big, false},
		{"HEAD", "HEAD", "1.1", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", "", false},
		{"204", "GET", "1.1", "HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\n\r\n", "", false},
		{"304", "GET", "1.1", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n", "", false},
		{"one before it", "GET", "1.1", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", "", false},
		{"one before it, for HTTP/1.0", "GET", "1.0", "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n", "", true},
		{"many before it", "GET", "1.0", strings.Repeat("HTTP/1.1 103 \r\n\r\n", maxInterim+1), close, upstreamFailure, true},
		{"101", "GET", "1.1", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", close, upstreamFailure, false},
		{"a length and chunks", "GET", "1.1", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", close, upstreamFailure, false},
		{"not HTTP", "GET", "1.1", "SSH-2.0-x\r\n\r\n", close, upstreamFailure, false},
		{"nothing", "GET", "1.1", "", close, upstreamFailure, false},
		{"an endless head", "GET", "1.1", "HTTP/1.1 200 OK\r\nX: " + big, close, upstreamFailure, false},
		{"a short body", "GET", "1.1", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", "", true},
		{"chunks that end", "GET", "1.1", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(conn net.Conn, q *http.Request, _ string) bool {
				if q.RequestURI == "/again" {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nagain")
					return true
				}
				_, _ = io.WriteString(conn, c.answer)
				return strings.Contains(c.want, "HTTP/1.1 2") && !c.closes && c.version == "1.1"
			})
			g := start(t, allow("127.0.0.1"))
			back := g.raw(c.method + " http://" + s.addr + "/ HTTP/" + c.version + "\r\n\r\nGET http://" + s.addr + "/again HTTP/1.1\r\nConnection: close\r\n\r\n")
			const again = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nconnection: close\r\n\r\nagain"
			first, ok := strings.CutSuffix(back, again)
			if ok == c.closes || !strings.HasPrefix(first, c.want) || c.end != "" && !strings.HasSuffix(first, c.end) || c.end == "" && first != c.want {
				t.Errorf("got %.300q … %.100q (another follows: %v)", first, first[max(0, len(first)-100):], ok)
			}
		})
	}
}

// TestRequestBody: bodies arrive as they were sent, of whatever length; 100 Continue comes
// back, and an answer that comes before the body was sent.
func TestRequestBody(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(conn net.Conn, q *http.Request, body string) bool {
		_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 40\r\n\r\n%40s", fmt.Sprint(len(body), " ", strings.Join(q.TransferEncoding, ""), " ", strings.Count(body, "a")))
		return err == nil
	})
	g := start(t, allow("127.0.0.1"))
	client := &http.Transport{Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: g.addr}), ExpectContinueTimeout: time.Hour}
	defer client.CloseIdleConnections()
	for _, size := range []int{1, 5000, 100_000, 3 << 20} {
		for _, chunked := range []bool{false, true} {
			var body io.Reader = strings.NewReader(strings.Repeat("a", size))
			if chunked {
				body = io.MultiReader(body)
			}
			q, _ := http.NewRequest(http.MethodPost, "http://"+s.addr+"/", body)
			q.Header.Set("Expect", "100-continue")
			a, err := client.RoundTrip(q)
			rig.Must(t, err)
			got, _ := io.ReadAll(a.Body)
			how := map[bool]string{true: " chunked "}[chunked]
			rig.Is(t, strings.TrimSpace(string(got)), fmt.Sprint(size, cmp.Or(how, "  "), size), "%d bytes: the site has", size)
		}
	}
	early := listen(t, func(conn net.Conn) {
		_, _ = io.ReadFull(conn, make([]byte, 10))
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
	})
	conn := g.dial()
	_, _ = fmt.Fprintf(conn, "POST http://%s/ HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n%s", early, strings.Repeat("a", 1000))
	a, err := http.ReadResponse(bufio.NewReader(conn), nil)
	rig.Must(t, err)
	body, _ := io.ReadAll(a.Body)
	rig.Is(t, a.Status+" "+string(body), "413 Too Large big", "the early answer")
	// A body that stops being one is answered, if nothing of an answer was sent.
	mute := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	rig.Is(t, g.status("POST http://"+mute+"/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\nno size\r\n"),
		"HTTP/1.1 400 Bad Request", "a body that is malformed")
}

// TestStaleLink: a request is repeated if the destination has hung up just before it.
func TestStaleLink(t *testing.T) {
	t.Parallel()
	var s *site
	s = newSite(t, func(conn net.Conn, q *http.Request, _ string) bool {
		if q.RequestURI == "/2" && s.connections() == 1 {
			return false
		}
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		return err == nil
	})
	g := start(t, allow("127.0.0.1"))
	back := g.raw("GET http://" + s.addr + "/1 HTTP/1.1\r\n\r\nGET http://" + s.addr + "/2 HTTP/1.1\r\nConnection: close\r\n\r\n")
	rig.Is(t, strings.Count(back, "\r\n\r\nok"), 2, "%q: answers", back)
	rig.Is(t, s.connections(), 2, "connections to the site")
	g.want("domain allow baseline_policy allow http "+s.addr+" GET", "domain allow baseline_policy allow http "+s.addr+" GET")
}

// TestHTTPS: an https URL in a plain request is fetched with TLS, from whom the roots trust.
func TestHTTPS(t *testing.T) {
	t.Parallel()
	server, roots := tlsSite(t)
	g := start(t, allow("127.0.0.1"), Config{Roots: func() *x509.CertPool { return roots }})
	rig.Is(t, g.answer("GET https://"+server+"/a"+closing), "HTTP/1.1 200 OK|secret /a", "")
	h := start(t, allow("127.0.0.1"))
	rig.Is(t, h.answer("GET https://"+server+"/a"+closing), "HTTP/1.1 502 Bad Gateway|"+upstreamFailure, "without the roots")
}

// TestNothingIsTold: a report has nothing of path, query, fields and body.
func TestNothingIsTold(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("127.0.0.1"))
	for _, host := range []string{s.addr, "other.test"} {
		g.raw("POST http://secret:secret@" + host + "/secret?secret HTTP/1.1\r\nsecret: secret\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret")
	}
	told := fmt.Sprintf("%+v", g.reports(2))
	rig.Is(t, strings.Contains(told, "secret"), false, "%s: the secret is there", told)
	rig.Is(t, strings.Contains(fmt.Sprint(s.seen()), "/secret?secret"), true, "the site has got it")
}
