package netproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

// TestSpellings: however a local address is spelled, it is one.
func TestSpellings(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("*"), Config{Resolver: loopback(t).resolver})
	for _, host := range []string{
		"127.0.0.1", "127.0.0.1.", "127.1", "127.0.1", "2130706433", "017700000001", "0x7f000001", "0X7F000001", "0x7f.0.0.1", "0177.0.0.1", "0.0.0.0", "0",
		"localhost", "LOCALHOST", "localhost.", "a.localhost", "[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:ffff:7f00:1]",
		"[64:ff9b::127.0.0.1]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[::ffff:0:127.0.0.1]", "[fec0::1]", "[fe80::1]", "[fc00::1]", "[2001:db8::1]", "[100::1]", "[3fff::1]", "[5f00::1]",
		"169.254.169.254", "100.64.0.1", "192.0.0.8", "224.0.0.1", "255.255.255.255", "a.test",
	} {
		place := host + ":" + s.port
		rig.Is(t, g.status("GET http://"+place+"/"+closing), notAllowed, "GET %s", host)
		rig.Is(t, g.status("CONNECT "+place+closing), notAllowed, "CONNECT %s", host)
	}
	for _, host := range []string{"[fe80::1%25lo]", "[::1%lo]", "[127.0.0.1]", "127.0.0.1%00", "localhost%2e", "1.2.3.4:80@127.0.0.1@", "127.0.0.1\\", "[v1.a]"} {
		rig.Is(t, g.status("CONNECT "+host+":"+s.port+closing), "HTTP/1.1 400 Bad Request", "CONNECT %s", host)
	}
	rig.Is(t, s.connections(), 0, "connections to the site")
	for _, r := range g.reports(1) {
		rig.Is(t, r.Decision, rules.Deny, "%s", r.Host)
	}
}

// TestLongMethod: what a command makes up as a method costs no memory of those who are told.
func TestLongMethod(t *testing.T) {
	t.Parallel()
	g := start(t, allow())
	g.raw(strings.Repeat("M", 100<<10) + " http://a.test/" + closing)
	g.want("domain deny baseline_policy not_allowed http a.test:80 " + strings.Repeat("M", maxMethod))
}

// TestPorts: an entry with a port opens no other, for name servers and QUIC as little as for
// anything else.
func TestPorts(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	g := start(t, allow("127.0.0.1:"+s.port, "a.test:443"))
	open(t, g.dial(), s.addr)
	for _, place := range []string{"127.0.0.1:53", "a.test:53", "a.test:80", "a.test:853"} {
		rig.Is(t, g.status("CONNECT "+place+" HTTP/1.1\r\n\r\n"), notAllowed, "CONNECT %s", place)
	}
}

// TestManyLookups: names are resolved a few at a time, however many are asked for.
func TestManyLookups(t *testing.T) {
	t.Parallel()
	const requests = 4 * maxLookups
	var now, most atomic.Int64
	gate := make(chan struct{})
	g := start(t, allow("*.test"), Config{Resolver: &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		n := now.Add(1)
		defer now.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return nil, errors.New("no name server")
	}}})
	var conns []net.Conn
	for i := range requests {
		conn := g.dial()
		_, _ = fmt.Fprintf(conn, "GET http://c2VjcmV0-%d.test/%s", i, closing)
		conns = append(conns, conn)
	}
	for now.Load() < maxLookups { // as many as may be at work
		runtime.Gosched()
	}
	close(gate)
	for _, conn := range conns {
		back, err := io.ReadAll(conn)
		rig.Is(t, strings.HasPrefix(string(back), "HTTP/1.1 403 "), true, "%q, %v: it is refused", back, err)
	}
	if n := most.Load(); n > 2*maxLookups { // IPv4 and IPv6 of each
		t.Errorf("%d questions at once", n)
	}
}

// TestEndlessAnswers: a destination that never comes to the end of a head, of what comes before
// an answer, or of the line before a chunk is left alone after some bytes.
func TestEndlessAnswers(t *testing.T) {
	t.Parallel()
	const patience = 1 << 30
	for name, c := range map[string]struct{ first, again string }{
		"fields":      {"HTTP/1.1 200 OK\r\n", "X-A: " + strings.Repeat("a", 1000) + "\r\n"},
		"a field":     {"HTTP/1.1 200 OK\r\nX-A: ", strings.Repeat("a", 1000)},
		"a status":    {"HTTP/1.1 200 ", strings.Repeat("a", 1000)},
		"hints":       {"", "HTTP/1.1 103 Early Hints\r\nX-A: " + strings.Repeat("a", 1000) + "\r\n\r\n"},
		"a chunk":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", strings.Repeat("a", 1000)},
		"trailers":    {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X-A: " + strings.Repeat("a", 1000) + "\r\n"},
		"no line":     {"", strings.Repeat("a", 1000)},
		"empty lines": {"", strings.Repeat("\r\n", 500)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var sent atomic.Int64
			s := listen(t, func(conn net.Conn) {
				_, err := io.WriteString(conn, c.first)
				for err == nil && sent.Load() < patience {
					_, err = io.WriteString(conn, c.again)
					sent.Add(int64(len(c.again)))
				}
			})
			g := start(t, allow("127.0.0.1"))
			conn := g.dial()
			_, _ = io.WriteString(conn, "GET http://"+s+"/"+closing)
			rig.Check(t, rig.Err(io.Copy(io.Discard, conn)))
			if n := sent.Load(); n > patience/16 { // what buffers of the kernel hold is far less
				t.Errorf("%d bytes were taken", n)
			}
		})
	}
}

// TestManyTunnels: ten thousand tunnels take bounded memory, as many as there is room for are
// served, and there is room again when they end.
func TestManyTunnels(t *testing.T) { // not parallel: it measures the process
	rig.Tier(t, rig.Merge)
	s := listen(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	g := start(t, allow("127.0.0.1"))
	room := min(g.limit, 2000) // each takes four descriptors here, two outside of a test
	g.bound(room)
	use := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	before := use()
	var open []net.Conn
	for range 10_000 {
		conn, err := net.Dial("tcp", g.addr)
		rig.Must(t, err)
		_, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\n\r\n", s)
		if line, err := bufio.NewReaderSize(conn, 64).ReadString('\n'); err == nil && strings.HasPrefix(line, "HTTP/1.1 200") {
			open = append(open, conn)
		} else {
			_ = conn.Close()
		}
	}
	rig.Is(t, len(open), room, "tunnels")
	used := use()
	rig.Is(t, used <= before+uint64(room)*(40<<10), true, "%d tunnels take %d bytes, from %d", room, used, before)
	for _, conn := range open {
		_ = conn.Close()
	}
	for { // the proxy notices
		conn := g.dial()
		_, _ = io.WriteString(conn, "GET http://other.test/"+closing)
		a, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			continue
		}
		rig.Is(t, a.StatusCode, http.StatusForbidden, "the status after them")
		break
	}
}
