package netproxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// hurry shortens the limits of time. It is called before the first connection.
func (g *proxied) hurry(times timing) {
	g.Proxy.mu.Lock() // as each connection does first
	defer g.Proxy.mu.Unlock()
	for _, d := range []struct{ to, from *time.Duration }{
		{&g.times.idle, &times.idle}, {&g.times.head, &times.head}, {&g.times.tunnel, &times.tunnel}, {&g.times.patience, &times.patience}, {&g.times.drain, &times.drain}, {&g.times.flow, &times.flow},
	} {
		if *d.from > 0 {
			*d.to = *d.from
		}
	}
}

// TestSlow: a connection ends without a request, with a head that does not come to its end,
// with a greeting of TLS that does not, and when a tunnel is idle.
func TestSlow(t *testing.T) {
	t.Parallel()
	const short = 10 * time.Millisecond
	mute := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	for name, c := range map[string]struct {
		timing
		kind Kind
		in   string
	}{
		"no request":          {timing{idle: short}, HTTP, ""},
		"another":             {timing{idle: short}, HTTP, "GET http://x.test/ HTTP/1.1\r\nX-Unix-Socket: /a\r\n\r\n"},
		"half a head":         {timing{head: short}, HTTP, "GET http://x.test/ HTTP/1.1\r\nX:"},
		"half a hello":        {timing{head: short}, HTTP, "CONNECT " + mute + " HTTP/1.1\r\n\r\n\x16\x03\x01\x01\x00"},
		"idle tunnel":         {timing{tunnel: short}, HTTP, "CONNECT " + mute + " HTTP/1.1\r\n\r\n"},
		"after a word":        {timing{tunnel: short}, HTTP, "CONNECT " + mute + " HTTP/1.1\r\n\r\nword"},
		"no greeting":         {timing{head: short}, SOCKS5, ""},
		"a version":           {timing{head: short}, SOCKS5, "\x05"},
		"half a greeting":     {timing{head: short}, SOCKS5, "\x05\x02\x00"},
		"a greeting":          {timing{head: short}, SOCKS5, greeting},
		"half a SOCKS5 place": {timing{head: short}, SOCKS5, greeting + "\x05\x01\x00\x03\x50abc"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := start(t, allow("127.0.0.1"))
			g.serve(c.kind)
			g.hurry(c.timing)
			conn := g.dial()
			// The proxy may hang up before it has read all, or while the test still writes: that is a reset.
			_, _ = io.WriteString(conn, c.in)
			_, err := io.Copy(io.Discard, conn)
			rig.Is(t, errors.Is(err, os.ErrDeadlineExceeded), false, "the proxy did not hang up")
		})
	}
}

// moving is a connection beside which the other direction of its tunnel moves so often while this
// one is waited for.
type moving struct {
	*net.TCPConn
	tunnel *tunnel
	times  int
	waits  int
}

func (m *moving) SetReadDeadline(t time.Time) error {
	m.waits++
	if m.waits <= m.times {
		m.tunnel.moves.Add(1)
	}
	return m.TCPConn.SetReadDeadline(t)
}

// TestBusyTunnel: a tunnel in which one direction moves is not idle.
func TestBusyTunnel(t *testing.T) {
	t.Parallel()
	mute := listen(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	conn, err := net.Dial("tcp", mute)
	rig.Must(t, err)
	defer conn.Close()
	busy := &tunnel{idle: time.Millisecond}
	m := &moving{TCPConn: conn.(*net.TCPConn), tunnel: busy, times: 3}
	rig.Is(t, busy.await(m), false, "it has ended with a word")
	rig.Is(t, m.waits, m.times+1, "times that it was waited")
}

// TestGone: who waits for an answer that does not come lets go when the command has hung up.
func TestGone(t *testing.T) {
	t.Parallel()
	reached, ended := make(chan struct{}), make(chan struct{})
	s := newSite(t, func(conn net.Conn, _ *http.Request, _ string) bool {
		close(reached)
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
		return false
	})
	g := start(t, allow("127.0.0.1"))
	g.hurry(timing{patience: 10 * time.Millisecond})
	conn := g.dial()
	_, _ = fmt.Fprintf(conn, "GET http://%s/ HTTP/1.1\r\n\r\n", s.addr)
	<-reached
	_ = conn.Close()
	<-ended
}

// TestMemory: what a proxy and a tunnel take while nothing moves.
func TestMemory(t *testing.T) { // not parallel: it measures the process
	const tunnels = 200
	measure := func(setUp func()) uint64 {
		use := func() uint64 {
			var m runtime.MemStats
			for range 3 { // stacks shrink one by one, and pools are emptied
				runtime.GC()
			}
			runtime.ReadMemStats(&m)
			return m.HeapAlloc + m.StackInuse
		}
		before := use()
		setUp()
		return use() - min(before, use())
	}
	s := listen(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
	ping := func(conn net.Conn) {
		rig.Must(t, rig.Err(io.WriteString(conn, "ping")), rig.Err(io.ReadFull(conn, make([]byte, 4))))
	}
	direct := measure(func() {
		for range tunnels {
			conn, err := net.Dial("tcp", s)
			rig.Must(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			ping(conn)
		}
	})
	var proxies []*proxied
	idle := measure(func() {
		for range 20 {
			proxies = append(proxies, start(t, allow("127.0.0.1", "*.example.org", "*.example.com")))
		}
	}) / 20
	through := measure(func() {
		for range tunnels {
			conn := proxies[0].dial()
			open(t, conn, s)
			ping(conn)
		}
	})
	each := (through - min(through, direct)) / tunnels
	t.Logf("an idle proxy: %d bytes; a tunnel: %d bytes", idle, each)
	rig.Is(t, idle <= 64<<10 && each <= 40<<10, true, "an idle proxy takes %d bytes, a tunnel %d: they are few", idle, each)
}
