package netproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// invented stands for these names at these addresses.
func invented(names map[string]string) func(netip.Addr) (string, bool) {
	return func(addr netip.Addr) (string, bool) {
		return names[addr.String()], netip.MustParsePrefix("198.18.0.0/15").Contains(addr)
	}
}

var someClient = netip.MustParseAddrPort("127.0.0.1:40000")

// TestPrepare: a connection of the command gets the errno that says what happened, and the same
// verdicts and reports as one through SOCKS5.
func TestPrepare(t *testing.T) {
	t.Parallel()
	alive, dead := listen(t, func(net.Conn) {}), rig.FreeAddress(t)
	servers := newDNS(t, func(name string, v6 bool, _ int) []string {
		switch {
		case name == "here.test" && !v6:
			return []string{"127.0.0.1"}
		case name == "private.test" && !v6:
			return []string{"10.9.8.7"}
		}
		return nil
	})
	named := invented(map[string]string{"198.18.0.1": "here.test", "198.18.0.2": "nowhere.test", "198.18.0.3": "denied.test", "198.18.0.4": "private.test"})
	own := netip.MustParseAddrPort(alive)
	port := func(of string) string { return of[strings.LastIndex(of, ":"):] }
	local := rules.Rules{Local: true, Domains: map[string]rules.Action{"*": rules.Allow, "denied.test": rules.Deny}}
	public := rules.Rules{Domains: map[string]rules.Action{"*": rules.Allow}}
	limited := local
	limited.Limited = true
	for _, tt := range []struct {
		name   string
		rules  rules.Rules
		cfg    Config
		to     string
		want   syscall.Errno
		report string
	}{
		{"an address", local, Config{}, alive, 0, "domain allow baseline_policy allow socks5_tcp " + alive + " "},
		{"a mapped address", local, Config{}, "[::ffff:127.0.0.1]" + port(alive), 0, "domain allow baseline_policy allow socks5_tcp " + alive + " "},
		{"a name", local, Config{}, "198.18.0.1" + port(alive), 0, "domain allow baseline_policy allow socks5_tcp here.test" + port(alive) + " "},
		{"a name without an address", local, Config{}, "198.18.0.2:80", syscall.EHOSTUNREACH, "domain allow baseline_policy allow socks5_tcp nowhere.test:80 "},
		{"the same, where only public addresses are allowed", public, Config{}, "198.18.0.2:80", syscall.EHOSTUNREACH, "domain deny baseline_policy not_allowed_local socks5_tcp nowhere.test:80 "},
		{"an invented address of nobody", local, Config{}, "198.18.0.9:80", syscall.EHOSTUNREACH, ""},
		{"a denied name", local, Config{}, "198.18.0.3:80", syscall.EACCES, "domain deny baseline_policy denied socks5_tcp denied.test:80 "},
		{"a name that is private", public, Config{}, "198.18.0.4:80", syscall.EACCES, "domain deny baseline_policy not_allowed_local socks5_tcp private.test:80 "},
		{"a private address", public, Config{}, "10.0.0.1:80", syscall.EACCES, "domain deny baseline_policy not_allowed_local socks5_tcp 10.0.0.1:80 "},
		{"not listed", allow("a.test"), Config{}, "11.22.33.44:80", syscall.EACCES, "domain deny baseline_policy not_allowed socks5_tcp 11.22.33.44:80 "},
		{"the agent's own", local, Config{Own: func(at netip.AddrPort) bool { return at == own }}, alive, syscall.EACCES, ""},
		{"nobody there", local, Config{}, dead, syscall.ECONNREFUSED, "domain allow baseline_policy allow socks5_tcp " + dead + " "},
		{"limited", limited, Config{}, "198.18.0.1:80", syscall.EACCES, "non_domain deny mode_guard method_not_allowed socks5_tcp here.test:80 "},
		{"limited, TLS", limited, Config{}, "198.18.0.1:443", syscall.EACCES, ""},
	} {
		tt.cfg.Named, tt.cfg.Resolver = named, servers.resolver
		g := start(t, tt.rules, tt.cfg)
		prepared, errno := g.Prepare(t.Context(), netip.MustParseAddrPort(tt.to), someClient)
		rig.Is(t, errno, tt.want, "%s", tt.name)
		if prepared != nil {
			prepared.Close()
			prepared.Close()
		}
		switch {
		case tt.report != "":
			g.want(tt.report)
		case tt.want == syscall.EHOSTUNREACH:
			rig.Is(t, len(g.reports(0)), 0, "reports: %s", tt.name)
		}
		rig.Is(t, g.clients, 0, "places that are taken: %s", tt.name)
	}
}

// pair returns the two ends of a connection.
func pair(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	l := rig.Value(net.Listen("tcp4", "127.0.0.1:0"))
	defer l.Close()
	conn := rig.Value(net.Dial("tcp4", l.Addr().String()))
	back := rig.Value(l.Accept())
	t.Cleanup(func() { _ = conn.Close(); _ = back.Close() })
	for _, c := range []net.Conn{conn, back} {
		_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	}
	return conn.(*net.TCPConn), back.(*net.TCPConn)
}

// joined returns the command's end of a connection to a destination.
func joined(t *testing.T, g *proxied, to string) *net.TCPConn {
	t.Helper()
	prepared, errno := g.Prepare(t.Context(), netip.MustParseAddrPort(to), someClient)
	rig.Is(t, errno, 0, "preparing")
	here, there := pair(t)
	prepared.Join(there)
	prepared.Close() // nothing happens any more
	return here
}

// TestJoin: whatever end closes first, and however, nothing is lost.
func TestJoin(t *testing.T) {
	t.Parallel()
	const much = 1 << 20
	got := make(chan int64, 1)
	for name, tt := range map[string]struct {
		serve func(net.Conn)
		use   func(*net.TCPConn)
	}{
		"the command sends and closes at once": {
			func(conn net.Conn) { got <- rig.Value(io.Copy(io.Discard, conn)) },
			func(conn *net.TCPConn) {
				rig.Must(t, rig.Err(conn.Write([]byte("hello"))), conn.Close())
				rig.Is(t, <-got, 5, "what arrived")
			},
		},
		"the server ends first, and the command still sends": {
			func(conn net.Conn) {
				rig.Check(t, conn.(*net.TCPConn).CloseWrite())
				got <- rig.Value(io.Copy(io.Discard, conn))
			},
			func(conn *net.TCPConn) {
				rig.Must(t, rig.Err(io.Copy(io.Discard, conn)))
				rig.Must(t, rig.Err(conn.Write(make([]byte, much))), conn.Close())
				rig.Is(t, <-got, much, "what arrived")
			},
		},
		"the server speaks first": {
			func(conn net.Conn) { _, _ = io.WriteString(conn, "hello") },
			func(conn *net.TCPConn) { rig.Is(t, string(rig.Value(io.ReadAll(conn))), "hello", "what came") },
		},
		"the server resets": {
			func(conn net.Conn) {
				_, _ = io.ReadFull(conn, make([]byte, 1))
				_ = conn.(*net.TCPConn).SetLinger(0)
			},
			func(conn *net.TCPConn) {
				rig.Must(t, rig.Err(conn.Write([]byte("x"))))
				_, err := conn.Read(make([]byte, 1))
				rig.Is(t, errors.Is(err, syscall.ECONNRESET), true, "the command reads %v", err)
			},
		},
		"the command resets": {
			func(conn net.Conn) {
				_, _ = io.ReadFull(conn, make([]byte, 1))
				_, err := conn.Read(make([]byte, 1))
				if errors.Is(err, syscall.ECONNRESET) {
					got <- -1
				} else {
					got <- 0
				}
			},
			func(conn *net.TCPConn) {
				rig.Must(t, rig.Err(conn.Write([]byte("x"))), conn.SetLinger(0), conn.Close())
				rig.Is(t, <-got, -1, "the server is reset")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := start(t, all())
			tt.use(joined(t, g, listen(t, tt.serve)))
		})
	}
}

// TestPrepareEnds: connections count, and end with the proxy, wherever they are.
func TestPrepareEnds(t *testing.T) {
	t.Parallel()
	at := netip.MustParseAddrPort(listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) }))
	g := start(t, all())
	g.bound(2)
	one, errno := g.Prepare(t.Context(), at, someClient)
	rig.Is(t, errno, 0, "the first")
	two, errno := g.Prepare(t.Context(), at, someClient)
	rig.Is(t, errno, 0, "the second")
	_, errno = g.Prepare(t.Context(), at, someClient)
	rig.Is(t, errno, syscall.EAGAIN, "the third")
	one.Close()
	three, errno := g.Prepare(t.Context(), at, someClient)
	rig.Is(t, errno, 0, "one has ended")
	here, there := pair(t)
	two.Join(there)
	rig.Must(t, g.Close())
	rig.Must(t, rig.Err(io.Copy(io.Discard, here)))
	here, there = pair(t)
	three.Join(there)
	rig.Must(t, rig.Err(io.Copy(io.Discard, here)))
	_, errno = g.Prepare(t.Context(), at, someClient)
	rig.Is(t, errno, syscall.EAGAIN, "after the end of the proxy")

	// A question that is open ends with its context.
	asked := make(chan struct{})
	q := start(t, rules.Rules{Local: true}, Config{Decide: func(ctx context.Context, _ Question) (Answer, error) {
		close(asked)
		<-ctx.Done()
		return Answer{}, ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	_, errno = q.Prepare(ctx, at, someClient)
	rig.Is(t, errno, syscall.EACCES, "nobody has answered")
}

// TestBothFamilies: a program that tries both addresses of a name is judged, asked about and reported
// once. A later attempt is a new one.
func TestBothFamilies(t *testing.T) {
	t.Parallel()
	names := map[string]string{"198.18.0.1": "asked.test", "198.18.0.2": "here.test", "fdc0::1": "asked.test", "fdc0::2": "here.test"}
	goOn, asked := make(chan struct{}), make(chan struct{}, 10)
	_, port, _ := net.SplitHostPort(listen(t, func(net.Conn) {}))
	g := start(t, rules.Rules{Local: true, Domains: map[string]rules.Action{"here.test": rules.Allow}}, Config{
		Resolver: loopback(t).resolver, Named: invented(names),
		Decide: func(context.Context, Question) (Answer, error) {
			asked <- struct{}{}
			<-goOn
			return Answer{Decision: rules.Deny}, nil
		},
	})
	g.times.family = time.Hour
	try := func(host string) syscall.Errno {
		prepared, errno := g.Prepare(t.Context(), netip.MustParseAddrPort(net.JoinHostPort(host, port)), someClient)
		if prepared != nil {
			prepared.Close()
		}
		return errno
	}
	for range 2 {
		var both sync.WaitGroup // as RFC 8305 has it: the second begins while the first waits
		both.Go(func() { rig.Is(t, try("fdc0::1"), syscall.EACCES, "the first") })
		<-asked
		both.Go(func() { rig.Is(t, try("198.18.0.1"), syscall.EACCES, "the second") })
		goOn <- struct{}{}
		both.Wait()
	}
	rig.Is(t, len(asked), 0, "more questions")
	rig.Is(t, len(g.reports(2)), 2, "reports")
	for range 2 {
		rig.Is(t, try("fdc0::2"), 0, "allowed")
		rig.Is(t, try("198.18.0.2"), 0, "allowed, the other family")
	}
	rig.Is(t, len(g.reports(6)), 6, "reports")
}

// TestInventedAddress: a program that resolves a name and gives the address to the proxy reaches the
// name.
func TestInventedAddress(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	_, port, _ := net.SplitHostPort(s.addr)
	cfg := Config{Resolver: loopback(t).resolver, Named: invented(map[string]string{"198.18.0.1": "here.test"})}
	g := start(t, all(), cfg)
	open(t, g.dial(), "198.18.0.1:"+port)
	g.want("domain allow baseline_policy allow https_connect here.test:" + port + " CONNECT")
	g = socks(t, all(), cfg)
	_ = g.through("198.18.0.1:" + port)
	g.want("domain allow baseline_policy allow socks5_tcp here.test:" + port + " ")
}

// TestTCPUpstream: SOCKS5 and held connections go through the upstream proxy for TCP, or nowhere.
func TestTCPUpstream(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var asked []string
	upstream := listen(t, func(conn net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		mu.Lock()
		asked = append(asked, r.Method+" "+r.RequestURI)
		mu.Unlock()
		if strings.HasPrefix(r.RequestURI, "11.22.33.45") {
			_, _ = io.WriteString(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
			return
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nearly")
		_, _ = io.Copy(io.Discard, conn)
	})
	dead := rig.FreeAddress(t)
	servers := newDNS(t, func(name string, v6 bool, _ int) []string {
		switch {
		case v6:
		case name == "two.test":
			return []string{"11.22.33.44"}
		case name == "mixed.test":
			return []string{"11.22.33.44", "10.9.8.7"}
		}
		return nil
	})
	named := invented(map[string]string{"198.18.0.1": "two.test", "198.18.0.2": "mixed.test", "198.18.0.3": "localhost"})
	public := rules.Rules{Domains: map[string]rules.Action{"*": rules.Allow, "10.0.0.1": rules.Allow}}
	for _, tt := range []struct {
		name  string
		rules rules.Rules
		to    string
		up    TCPUpstream
		want  syscall.Errno
		asked string
	}{
		{"a public address", public, "11.22.33.44:80", TCPUpstream{Address: upstream}, 0, "CONNECT 11.22.33.44:80"},
		{"IPv6", public, "[2600:1234::44]:80", TCPUpstream{Address: upstream}, 0, "CONNECT [2600:1234::44]:80"},
		{"a name", public, "198.18.0.1:80", TCPUpstream{Address: upstream}, 0, "CONNECT 11.22.33.44:80"},
		{"a name, where local addresses are like others", all(), "198.18.0.1:80", TCPUpstream{Address: upstream}, 0, "CONNECT two.test:80"},
		{"a name with a private address", public, "198.18.0.2:80", TCPUpstream{Address: upstream}, syscall.EACCES, ""},
		{"a private address", public, "10.0.0.1:80", TCPUpstream{Address: upstream}, syscall.EHOSTUNREACH, ""},
		{"a private address that it leads to", public, "10.0.0.1:80", TCPUpstream{Address: upstream, Private: true}, 0, "CONNECT 10.0.0.1:80"},
		{"its own loopback", all(), "127.0.0.1:80", TCPUpstream{Address: upstream, Private: true}, syscall.EHOSTUNREACH, ""},
		{"localhost", all(), "198.18.0.3:80", TCPUpstream{Address: upstream}, syscall.EHOSTUNREACH, ""},
		{"refused there", public, "11.22.33.45:80", TCPUpstream{Address: upstream}, syscall.EHOSTUNREACH, "CONNECT 11.22.33.45:80"},
		{"not allowed by the client", public, "11.22.33.44:80", TCPUpstream{Address: upstream, Closed: true}, syscall.EHOSTUNREACH, ""},
		{"nobody there", public, "11.22.33.44:80", TCPUpstream{Address: dead}, syscall.ECONNREFUSED, ""},
		{"denied first", allow("a.test"), "11.22.33.44:80", TCPUpstream{Address: upstream}, syscall.EACCES, ""},
	} {
		g := start(t, tt.rules, Config{TCP: &tt.up, Named: named, Resolver: servers.resolver})
		mu.Lock()
		asked = nil
		mu.Unlock()
		prepared, errno := g.Prepare(t.Context(), netip.MustParseAddrPort(tt.to), someClient)
		rig.Is(t, errno, tt.want, "%s", tt.name)
		if errno == 0 {
			here, there := pair(t)
			prepared.Join(there)
			rig.Must(t, rig.Err(io.ReadFull(here, make([]byte, 5))))
			rig.Must(t, here.Close())
		}
		mu.Lock()
		rig.Is(t, strings.Join(asked, " "), tt.asked, "what the upstream proxy was asked for: %s", tt.name)
		mu.Unlock()
	}
	// Plain requests and CONNECT do not go there.
	s := newSite(t, nil)
	g := start(t, all(), Config{TCP: &TCPUpstream{Address: dead}})
	open(t, g.dial(), s.addr)
	g = socks(t, all(), Config{TCP: &TCPUpstream{Address: dead}})
	conn := g.dial()
	say(t, conn, greeting+"\x05\x01\x00"+place(t, s.addr))
	var back [12]byte
	rig.Must(t, rig.Err(io.ReadFull(conn, back[:])))
	rig.Is(t, back[3], replyRefused, "SOCKS5 through an upstream proxy that is not there")
}
