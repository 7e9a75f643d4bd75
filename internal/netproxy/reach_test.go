package netproxy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

const (
	closing    = " HTTP/1.1\r\nConnection: close\r\n\r\n"
	notAllowed = "HTTP/1.1 403 Forbidden blocked-by-allowlist" // a status
)

// TestResolve: a name is resolved once, all its addresses are judged, and none is asked for
// that is not allowed.
func TestResolve(t *testing.T) {
	t.Parallel()
	zone := map[string][]string{
		"private.test":    {"10.0.0.1"},
		"mixed.test":      {"8.8.8.8", "127.0.0.1"},
		"mixed6.test":     {"8.8.8.8", "::1"},
		"mapped.test":     {"::ffff:10.0.0.1"},
		"nat64.test":      {"64:ff9b::a00:1"},
		"sixtofour.test":  {"2002:7f00:1::"},
		"site.test":       {"fec0::1"},
		"metadata.test":   {"169.254.169.254"},
		"many.test":       append(slices.Repeat([]string{"8.8.8.8"}, 20), "10.0.0.1"),
		"unresolved.test": nil,
	}
	d := newDNS(t, func(name string, _ bool, before int) []string {
		if name == "rebinding.test" {
			return [][]string{{"127.0.0.1"}, {"8.8.8.8"}}[min(before, 1)]
		}
		return zone[name]
	})
	g := start(t, allow("*.test"), Config{Resolver: d.resolver})
	var want []string
	for name := range zone {
		for _, in := range []string{"GET http://" + name + ":81/" + closing, "CONNECT " + name + ":81" + closing} {
			rig.Is(t, g.status(in), notAllowed, "%s", name)
		}
		want = append(want, "domain deny baseline_policy not_allowed_local http "+name+":81 GET", "domain deny baseline_policy not_allowed_local https_connect "+name+":81 CONNECT")
	}
	g.raw("GET http://rebinding.test:81/" + closing)
	g.raw("GET http://c2VjcmV0.unlisted.example/" + closing)
	g.raw("CONNECT c2VjcmV0.unlisted.example:53" + closing)
	g.want(append(want, "domain deny baseline_policy not_allowed_local http rebinding.test:81 GET",
		"domain deny baseline_policy not_allowed http c2vjcmv0.unlisted.example:80 GET",
		"domain deny baseline_policy not_allowed https_connect c2vjcmv0.unlisted.example:53 CONNECT")...)
	count := map[string]int{}
	for _, q := range d.questions() {
		count[q]++
		if strings.Contains(q, "unlisted") {
			t.Errorf("a name that is not allowed was asked for: %s", q)
		}
	}
	rig.Is(t, count["rebinding.test TypeA"], 1, "a name was resolved for one request")
}

// TestDialled: what is dialled are the addresses that were judged, not what the name leads to
// a moment later, and the next one if the first does not answer.
func TestDialled(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	d := newDNS(t, func(name string, v6 bool, before int) []string {
		switch {
		case v6:
			return nil
		case name == "second.test":
			return []string{"127.0.0.2", "127.0.0.1"} // nobody listens at the first
		case before == 0:
			return []string{"127.0.0.1"}
		}
		return []string{"127.0.0.2"}
	})
	g := start(t, all(), Config{Resolver: d.resolver})
	for name, want := range map[string][]string{"first.test": {"200", "502"}, "second.test": {"200", "200"}} {
		for i := range want {
			status := g.status("GET http://" + name + ":" + s.port + "/" + closing)
			rig.Is(t, strings.Fields(status)[1], want[i], "%s, %d", name, i)
		}
	}
}

// TestDenyAtDial: an address that an entry denies is not dialled, whatever its name, and
// neither is one at which the program itself listens.
func TestDenyAtDial(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	denied := all()
	denied.Domains["127.0.0.1"] = rules.Deny
	own := func(a netip.AddrPort) bool { return a.String() == s.addr }
	for name, g := range map[string]*proxied{
		"denied": start(t, denied, Config{Resolver: loopback(t).resolver}),
		"own":    start(t, all(), Config{Resolver: loopback(t).resolver, Own: own}),
	} {
		place := "a.test:" + s.port
		want := fmt.Sprintf(`{"status":"blocked","host":"a.test","reason":"policy_denied","decision":"deny","source":"baseline_policy","protocol":"http","port":%s,"message":"Request blocked by network policy."}`, s.port)
		const denied = "HTTP/1.1 403 Forbidden blocked-by-policy|"
		rig.Is(t, g.answer("GET http://"+place+"/"+closing), denied+want, "%s", name)
		rig.Is(t, g.answer("CONNECT "+place+closing), denied+"Request blocked by network policy.", "%s: CONNECT", name)
		g.want("domain allow baseline_policy allow http "+place+" GET", "non_domain deny baseline_policy policy_denied http "+place+" GET",
			"domain allow baseline_policy allow https_connect "+place+" CONNECT", "non_domain deny baseline_policy policy_denied https_connect "+place+" CONNECT")
		for _, host := range []string{"127.0.0.1", "0.0.0.0"} { // the latter leads to the former
			status := g.status("GET http://" + host + ":" + s.port + "/" + closing)
			rig.Is(t, strings.HasPrefix(status, "HTTP/1.1 403 Forbidden "), true, "%s: %s: %s: it is refused", name, host, status)
		}
	}
	rig.Is(t, s.connections(), 0, "connections to the site")
}

// TestLocalhost: a literal entry lets localhost through, and not the address.
func TestLocalhost(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("localhost"))
	rig.Is(t, g.status("GET http://localhost:"+s.port+"/"+closing), "HTTP/1.1 200 OK", "the name")
	rig.Is(t, g.status("GET http://"+s.addr+"/"+closing), notAllowed, "the address")
}

// TestAnswerAllowsNothingLocal: an answer of the client allows a name, not where it leads.
func TestAnswerAllowsNothingLocal(t *testing.T) {
	t.Parallel()
	g := start(t, allow(), Config{Resolver: loopback(t).resolver, Decide: func(context.Context, Question) (Answer, error) {
		return Answer{Decision: rules.Allow}, nil
	}})
	rig.Is(t, g.status("GET http://a.test/"+closing), notAllowed, "")
	g.want("domain deny baseline_policy not_allowed_local http a.test:80 GET")
}

// TestUpstream: names go through the upstream proxies, addresses do not; the policy is the same.
func TestUpstream(t *testing.T) {
	t.Parallel()
	direct := newSite(t, nil)
	up := newSite(t, func(conn net.Conn, q *http.Request, _ string) bool {
		switch {
		case q.Method == http.MethodConnect && q.Host == "refused.test:443":
			_, _ = io.WriteString(conn, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
			return false
		case q.Method == http.MethodConnect:
			_, _ = io.WriteString(conn, "HTTP/1.1 200 Yes\r\n\r\nearly ")
			_, _ = io.Copy(conn, conn)
			return false
		}
		_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup")
		return err == nil
	})
	environment := map[string]string{"HTTP_PROXY": "http://user:pass@" + up.addr + "/", "all_proxy": "http://" + up.addr, "HTTPS_PROXY": "socks5://" + up.addr}
	g := start(t, all(), Config{Resolver: loopback(t).resolver, Upstream: UpstreamOf(func(name string) string { return environment[name] })})
	const ok = "HTTP/1.1 200 OK|"
	rig.Is(t, g.answer("GET http://A.test:8080/p?q HTTP/1.1\r\nX: 1\r\nProxy-Authorization: Basic Zm9yZ2Vk\r\nConnection: close\r\n\r\n"),
		ok+"up", "plain")
	g.raw("TRACE http://a.test/ HTTP/1.1\r\nMax-Forwards: 0\r\nConnection: close\r\n\r\n")
	conn := g.dial()
	open(t, conn, "b.test:443")
	_, _ = io.WriteString(conn, "ping")
	_ = conn.CloseWrite()
	back, _ := io.ReadAll(conn)
	rig.Is(t, string(back), "early ping", "tunnel")
	rig.Is(t, g.answer("CONNECT refused.test:443"+closing), "HTTP/1.1 502 Bad Gateway|"+upstreamFailure, "a refused tunnel")
	rig.Is(t, g.answer("GET http://"+direct.addr+"/literal"+closing), ok+"/literal ", "an address")
	rig.Is(t, g.answer("GET http://localhost:"+direct.port+"/local"+closing), ok+"/local ", "localhost")
	want := []string{
		"GET http://a.test:8080/p?q HTTP/1.1\r\nHost: a.test:8080\r\nX: 1\r\nProxy-Authorization: Basic dXNlcjpwYXNz",
		"TRACE http://a.test/ HTTP/1.1\r\nHost: a.test\r\nMax-Forwards: 0", // without a password: the upstream proxy answers it
		"CONNECT b.test:443 HTTP/1.1\r\nHost: b.test:443",
		"CONNECT refused.test:443 HTTP/1.1\r\nHost: refused.test:443",
	}
	rig.Same(t, "the upstream proxy has got", want, up.seen())
	strict := start(t, allow("*"), Config{Resolver: loopback(t).resolver, Upstream: UpstreamOf(func(string) string { return up.addr })})
	rig.Is(t, strict.status("GET http://a.test/"+closing), notAllowed, "a local address behind the upstream proxy")
	for host, want := range map[string][2]bool{ // whether the proxy leads there, without and with the variable
		"1.1.1.1": {true, true}, "10.1.2.3": {false, true}, "169.254.1.1": {false, true}, "127.0.0.1": {}, "::1": {}, "0.0.0.0": {}, "::ffff:127.0.0.1": {}, "localhost": {}, "a.test": {true, true},
	} {
		for i, word := range []string{"", "true"} {
			u := UpstreamOf(func(name string) string {
				return map[string]string{"HTTP_PROXY": "proxy:1", PrivateVariable: word}[name]
			})
			rig.Is(t, u.hop(request{Request: rules.Request{Protocol: rules.HTTP, Host: host}}) != nil, want[i], "%s with %q: behind the upstream proxy", host, word)
		}
	}
	if u := UpstreamOf(func(string) string { return "" }); u != nil {
		t.Errorf("nothing in the environment: %+v", u)
	}
}
