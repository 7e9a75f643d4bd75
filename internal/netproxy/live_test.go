package netproxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// policyOf compiles entries such as "allow=a.test, deny=GET b.test/**", with local addresses allowed.
func policyOf(t testing.TB, entries string) *rules.Hosts {
	t.Helper()
	r := rules.Rules{Local: true, Domains: map[string]rules.Action{}}
	for entry := range strings.SplitSeq(entries, ", ") {
		action, pattern, _ := strings.Cut(entry, "=")
		r.Domains[pattern] = rules.Action(action)
	}
	return rig.Value(rules.Compile(r))
}

// TestSetPolicy: a new policy ends the connections that it does not allow any more, and reports them.
func TestSetPolicy(t *testing.T) {
	t.Parallel()
	echo := listen(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	for name, connect := range map[string]func(*testing.T, *proxied) net.Conn{
		"CONNECT": func(t *testing.T, g *proxied) net.Conn {
			conn := g.dial()
			open(t, conn, echo)
			return conn
		},
		"SOCKS5": func(_ *testing.T, g *proxied) net.Conn {
			g.serve(SOCKS5)
			return g.through(echo)
		},
		"transparent": func(t *testing.T, g *proxied) net.Conn { return joined(t, g, echo) },
	} {
		for _, test := range []struct{ first, next, last, reason string }{
			{"allow=127.0.0.1", "allow=127.0.0.?", "allow=b.test", "not_allowed"},
			{"allow=127.0.0.1", "allow=*", "allow=*, ask=127.0.0.1", "not_allowed"},
			{"allow=127.0.0.1", "allow=127.0.0.1, deny=GET b.test/**", "allow=127.0.0.1, deny=GET 127.0.0.1/**", "mitm_required"},
			{"allow=b.test", "ask=127.0.0.1", "deny=127.0.0.1", "denied"}, // the Decider allows it
		} {
			g := start(t, rules.Rules{}, Config{Policy: policyOf(t, test.first), Decide: func(context.Context, Question) (Answer, error) { return Answer{Decision: rules.Allow}, nil }})
			conn := connect(t, g)
			for _, policy := range []string{test.first, test.next} {
				g.SetPolicy(policyOf(t, policy))
				say(t, conn, "x")
				rig.Is(t, rig.Value(conn.Read(make([]byte, 9))), 1, "%s, %s: it goes on", name, policy)
			}
			g.SetPolicy(policyOf(t, test.last))
			rig.Is(t, rig.Err(conn.Read(make([]byte, 9))) != nil, true, "%s, %s: it ends", name, test.last)
			rig.Is(t, g.reports(2)[1].Reason, test.reason, "%s, %s", name, test.last)
		}
	}
}

// TestSetPolicyInside: a request under way ends too, in HTTP/1 and HTTP/2, also if the first policy has no
// request rules. The next request is judged by the new policy.
func TestSetPolicyInside(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ http2, ruled bool }{{false, true}, {true, true}, {false, false}, {true, false}} {
		v := newVault(t, false, "example.com", Config{Policy: policyOf(t, "allow=example.com")})
		c, url := v.client(t, test.http2, v.bundle), "https://"+v.host
		status, _, _ := send(t, c, "GET", url+"/a", "", "")
		rig.Is(t, status, 200, "before")
		told := 1
		if test.ruled {
			told = 3
			v.SetPolicy(policyOf(t, "allow=GET example.com/**"))
			status, _, _ = send(t, c, "POST", url+"/a", "", "")
			rig.Is(t, status, 403, "the next request in the same tunnel")
		}
		failed := make(chan bool)
		go func() {
			a, err := c.Do(rig.Value(http.NewRequestWithContext(t.Context(), "GET", url+"/wait", http.NoBody)))
			if err == nil {
				_ = a.Body.Close()
			}
			failed <- err != nil || a.StatusCode == http.StatusForbidden // that of a second try
		}()
		<-v.waiting
		v.SetPolicy(policyOf(t, "allow=GET example.com/**, deny=* example.com/wait"))
		rig.Is(t, <-failed, true, "%+v: the request under way fails", test)
		rig.Is(t, v.reports(told + 1)[told].Reason, rules.ReasonRequestDenied, "%+v: what is reported", test)
		status, _, _ = send(t, c, "GET", url+"/a", "", "")
		rig.Is(t, status, 200, "another tunnel")
	}
	// A request that waits for an answer, and then for another connection, is not sent if the policy has changed.
	for _, http2 := range []bool{false, true} {
		var v *vault
		v = newVault(t, false, "example.com", Config{Policy: policyOf(t, "allow=example.com, ask=POST example.com/**"), Decide: func(context.Context, Question) (Answer, error) {
			v.mu.Lock()
			for conn := range v.conns {
				_ = conn.Close()
			}
			v.mu.Unlock()
			v.SetPolicy(policyOf(t, "allow=example.com, deny=POST example.com/**"))
			return Answer{Decision: rules.Allow}, nil
		}})
		c, url := v.client(t, http2, v.bundle), "https://"+v.host
		_, _, _ = send(t, c, "GET", url+"/a", "", "")
		a, err := c.Do(rig.Value(http.NewRequestWithContext(t.Context(), "POST", url+"/b", http.NoBody)))
		if err == nil {
			_ = a.Body.Close()
		}
		rig.Is(t, err != nil || a.StatusCode == http.StatusForbidden, true, "the request fails")
		_, _, _ = send(t, c, "GET", url+"/c", "", "")
		heads, _ := v.seen()
		rig.Is(t, len(heads), 2, "what arrived: %q", heads)
	}
	// A request under way without a tunnel.
	g, got := start(t, rules.Rules{}, Config{Policy: policyOf(t, "allow=127.0.0.1")}), make(chan bool)
	g.serve(HTTP)
	to, conn := listen(t, func(conn net.Conn) { got <- true; _, _ = io.Copy(io.Discard, conn) }), g.dial()
	say(t, conn, "POST http://"+to+"/x HTTP/1.1\r\nHost: "+to+"\r\nContent-Length: 9\r\n\r\n")
	<-got
	g.SetPolicy(policyOf(t, "allow=127.0.0.1, deny=POST 127.0.0.1/**"))
	rig.Is(t, rig.Err(conn.Read(make([]byte, 1))) != nil, true, "a plain request under way ends")
	rig.Is(t, g.reports(2)[1].Reason, rules.ReasonRequestDenied, "what is reported")
}
