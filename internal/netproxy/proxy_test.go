package netproxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/execagent/execagent/internal/netproxy/rules"
	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A proxied is a proxy with a listener, and what it has reported.
type proxied struct {
	*Proxy
	t    testing.TB
	addr string

	mu      sync.Mutex
	told    []Report
	changed chan struct{} // closed and replaced at each report
}

// start starts a proxy with these rules. A configuration may be given for the rest.
func start(t testing.TB, r rules.Rules, cfg ...Config) *proxied {
	t.Helper()
	c := append(cfg, Config{})[0]
	if c.Policy == nil {
		c.Policy = rig.Value(rules.Compile(r))
	}
	g := &proxied{t: t, changed: make(chan struct{})}
	c.Report = func(r Report) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.told = append(g.told, r)
		close(g.changed)
		g.changed = make(chan struct{})
	}
	g.Proxy = New(c)
	g.serve(HTTP)
	return g
}

// serve has the proxy serve at an address of its own, which is then dialled.
func (g *proxied) serve(kind Kind) {
	g.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	rig.Must(g.t, err)
	g.addr = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- g.Serve(kind, l) }()
	g.t.Cleanup(func() { rig.Must(g.t, g.Close(), <-served) })
}

// bound lets the proxy have so many connections at once.
func (g *proxied) bound(limit int) {
	g.Proxy.mu.Lock()
	defer g.Proxy.mu.Unlock()
	g.limit = limit
}

// reports waits for so many reports, and returns them without time and client.
func (g *proxied) reports(n int) []Report {
	g.t.Helper()
	for {
		g.mu.Lock()
		told, changed := slices.Clone(g.told), g.changed
		g.mu.Unlock()
		if len(told) >= n {
			for i := range told {
				if told[i].Time.IsZero() || told[i].Client == "" {
					g.t.Errorf("report without time or client: %+v", told[i])
				}
				told[i].Time, told[i].Client = time.Time{}, ""
			}
			return told
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			g.t.Fatalf("%d reports, want %d: %+v", len(told), n, told)
		}
	}
}

// want compares what was reported: "scope decision source reason protocol host:port method",
// with a star behind it where the Decider has allowed.
func (g *proxied) want(lines ...string) {
	g.t.Helper()
	var got []string
	for _, r := range g.reports(len(lines)) {
		line := fmt.Sprintf("%s %s %s %s %s %s %s", r.Scope, r.Decision, r.Source, r.Reason, r.Protocol, net.JoinHostPort(r.Host, strconv.Itoa(int(r.Port))), r.Method)
		if r.Override {
			line += " *"
		}
		got = append(got, line)
	}
	rig.Same(g.t, "reports", lines, got)
}

// dial connects to the proxy as a command does. Nothing in a test takes longer than minutes.
func (g *proxied) dial() *net.TCPConn {
	g.t.Helper()
	conn, err := net.Dial("tcp", g.addr)
	rig.Must(g.t, err)
	g.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(2 * time.Minute))
	return conn.(*net.TCPConn)
}

// say writes a text.
func say(t testing.TB, w io.Writer, text string) {
	t.Helper()
	_, err := io.WriteString(w, text)
	rig.Must(t, err)
}

// raw sends a text and returns all that comes back until the proxy hangs up.
func (g *proxied) raw(text string) string {
	g.t.Helper()
	conn := g.dial()
	say(g.t, conn, text)
	back, err := io.ReadAll(conn)
	if err != nil {
		g.t.Errorf("after %q: %v", back, err)
	}
	return string(back)
}

// status sends a text and returns the first line of the answer, and behind it the field that says
// why the text was refused.
func (g *proxied) status(text string) string {
	g.t.Helper()
	line, fields, _ := parts(g.raw(text))
	return strings.TrimSpace(line + " " + fields.Get("X-Proxy-Error"))
}

// answer is status with the body behind it.
func (g *proxied) answer(text string) string {
	g.t.Helper()
	line, fields, body := parts(g.raw(text))
	return strings.TrimSpace(line+" "+fields.Get("X-Proxy-Error")) + "|" + body
}

// ask sends a request that the proxy answers itself.
func (g *proxied) ask() net.Conn {
	conn := g.dial()
	_, _ = io.WriteString(conn, "GET http://x.test/ HTTP/1.1\r\nX-Unix-Socket: /a\r\n\r\n")
	return conn
}

// served reports whether an answer comes.
func served(conn net.Conn) bool {
	_, err := io.ReadFull(conn, make([]byte, 20))
	return err == nil
}

// parts splits an answer into its first line, the fields, and the body.
func parts(answer string) (line string, fields http.Header, body string) {
	head, body, _ := strings.Cut(answer, "\r\n\r\n")
	line, rest, _ := strings.Cut(head, "\r\n")
	fields = http.Header{}
	for f := range strings.SplitSeq(rest, "\r\n") {
		if name, value, ok := strings.Cut(f, ": "); ok {
			fields.Add(name, value)
		}
	}
	return line, fields, body
}

// A site is a destination. It keeps the requests that it got as they came.
type site struct {
	addr string // 127.0.0.1:PORT
	port string

	mu    sync.Mutex
	heads []string // of the requests
	conns int
}

// newSite starts a destination. The handler writes the answer; it gets the request with its
// body read, and returns whether another may follow. Nil: 200 with path and body.
func newSite(t testing.TB, handle func(conn net.Conn, q *http.Request, body string) bool) *site {
	t.Helper()
	s := &site{}
	if handle == nil {
		handle = func(conn net.Conn, q *http.Request, body string) bool {
			body = q.RequestURI + " " + body
			if q.Method == http.MethodHead {
				body = ""
			}
			_, err := fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			return err == nil
		}
	}
	s.addr = listen(t, func(conn net.Conn) {
		s.mu.Lock()
		s.conns++
		s.mu.Unlock()
		s.serve(conn, handle)
	})
	_, s.port, _ = net.SplitHostPort(s.addr)
	return s
}

func (s *site) serve(conn net.Conn, handle func(net.Conn, *http.Request, string) bool) {
	var came bytes.Buffer
	r := bufio.NewReader(io.TeeReader(conn, &came))
	for {
		q, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if q.Header.Get("Expect") != "" {
			_, _ = io.WriteString(conn, "HTTP/1.1 100 Continue\r\n\r\n")
		}
		body, err := io.ReadAll(q.Body)
		if err != nil {
			return
		}
		head, _, _ := strings.Cut(came.String(), "\r\n\r\n")
		came.Reset()
		s.mu.Lock()
		s.heads = append(s.heads, head)
		s.mu.Unlock()
		if !handle(conn, q, string(body)) {
			return
		}
	}
}

// seen returns the heads of the requests that came.
func (s *site) seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.heads)
}

func (s *site) connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns
}

// A dns is a name server, and the questions that it got.
type dns struct {
	resolver *net.Resolver

	mu    sync.Mutex
	asked []string
}

// newDNS starts a name server. Answers has addresses of names without the dot at their end; it
// is told how often the name was asked for addresses of this kind before.
func newDNS(t testing.TB, answers func(name string, v6 bool, before int) []string) *dns {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	rig.Must(t, err)
	d := &dns{}
	d.resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 1<<10)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if back, err := d.answer(buf[:n], answers); err != nil {
				t.Errorf("name server: %v", err)
			} else {
				_, _ = conn.WriteTo(back, from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return d
}

func (d *dns) answer(message []byte, answers func(string, bool, int) []string) ([]byte, error) {
	var p dnsmessage.Parser
	h, err := p.Start(message)
	if err != nil {
		return nil, err
	}
	q, err := p.Question()
	if err != nil {
		return nil, err
	}
	name := strings.TrimSuffix(q.Name.String(), ".")
	key := name + " " + q.Type.String()
	d.mu.Lock()
	before := 0
	for _, a := range d.asked {
		if a == key {
			before++
		}
	}
	d.asked = append(d.asked, key)
	d.mu.Unlock()
	b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: h.ID, Response: true, RecursionAvailable: true, RecursionDesired: true})
	err = errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers())
	for _, text := range answers(name, q.Type == dnsmessage.TypeAAAA, before) {
		addr := netip.MustParseAddr(text)
		header := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class}
		switch {
		case addr.Is4() && q.Type == dnsmessage.TypeA:
			err = errors.Join(err, b.AResource(header, dnsmessage.AResource{A: addr.As4()}))
		case addr.Is6() && q.Type == dnsmessage.TypeAAAA:
			err = errors.Join(err, b.AAAAResource(header, dnsmessage.AAAAResource{AAAA: addr.As16()}))
		}
	}
	back, finish := b.Finish()
	return back, errors.Join(err, finish)
}

// questions returns what was asked for.
func (d *dns) questions() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.asked)
}

// loopback is a name server for which every name is on this host.
func loopback(t testing.TB) *dns {
	return newDNS(t, func(string, bool, int) []string { return []string{"127.0.0.1"} })
}

// all lets everything through, local addresses too.
func all() rules.Rules {
	return rules.Rules{Local: true, Domains: map[string]rules.Action{"*": rules.Allow}}
}

// allow lets these patterns through, and nothing that is local but for such literals.
func allow(patterns ...string) rules.Rules {
	r := rules.Rules{Domains: map[string]rules.Action{}}
	for _, p := range patterns {
		r.Domains[p] = rules.Allow
	}
	return r
}

// TestClose: Close ends what waits for an answer, for the next request, for a destination, and
// tunnels; and New, Serve and Close after it do nothing.
func TestClose(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 8)
	s := newSite(t, func(conn net.Conn, _ *http.Request, _ string) bool {
		reached <- struct{}{}
		_, _ = conn.Read(make([]byte, 1)) // the end
		return false
	})
	asked := make(chan struct{})
	g := start(t, rules.Rules{Local: true, Domains: map[string]rules.Action{"127.0.0.1": rules.Allow}}, Config{
		Decide: func(ctx context.Context, _ Question) (Answer, error) {
			close(asked)
			<-ctx.Done()
			return Answer{Decision: rules.Allow}, nil // too late
		},
	})
	var conns []*net.TCPConn
	for _, text := range []string{
		"", "GET", "GET http://ask.test/ HTTP/1.1\r\n\r\n", "GET http://" + s.addr + "/ HTTP/1.1\r\n\r\n",
		"POST http://" + s.addr + "/ HTTP/1.1\r\nContent-Length: 5\r\n\r\nab",
	} {
		conn := g.dial()
		say(t, conn, text)
		conns = append(conns, conn)
	}
	tunnel := g.dial()
	open(t, tunnel, s.addr)
	conns = append(conns, tunnel)
	<-asked
	<-reached
	rig.Must(t, g.Close())
	for i, conn := range conns {
		back, err := io.ReadAll(conn)
		rig.Is(t, len(back) == 0 || strings.HasPrefix(string(back), "HTTP/1.1 "), true, "connection %d: %q, %v: an answer at most", i, back, err)
	}
	for _, r := range g.reports(1) {
		if r.Host == "ask.test" && (r.Decision != rules.Deny || r.Reason != rules.ReasonNotAllowed) {
			t.Errorf("what waited for an answer: %+v", r)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	rig.Must(t, err)
	rig.Must(t, g.Serve(HTTP, l), g.Close())
	rig.Is(t, rig.Err(l.Accept()), net.ErrClosed, "the listener after Serve")
}

// open opens a tunnel.
func open(t testing.TB, conn net.Conn, place string) {
	t.Helper()
	say(t, conn, "CONNECT "+place+" HTTP/1.1\r\nHost: "+place+"\r\n\r\n")
	var back []byte
	for b := make([]byte, 1); !bytes.HasSuffix(back, []byte("\r\n\r\n")); back = append(back, b...) {
		if _, err := io.ReadFull(conn, b); err != nil {
			t.Fatalf("after %q: %v", back, err)
		}
	}
	if !strings.HasPrefix(string(back), "HTTP/1.1 200 OK\r\ndate: ") {
		t.Fatalf("CONNECT was answered with %q", back)
	}
}

// TestConnectionLimit: a connection too many is closed at once, and one that ends makes room.
func TestConnectionLimit(t *testing.T) {
	t.Parallel()
	one := start(t, all())
	rig.Is(t, one.limit >= 16 && one.limit <= maxConnections, true, "a limit of %d is one", one.limit)
	one.bound(2)
	first, second := one.ask(), one.ask()
	rig.Is(t, served(first) && served(second), true, "two are served")
	rig.Is(t, served(one.ask()), false, "the third is served")
	_ = first.Close()
	for !served(one.ask()) { // until there is room, since one has ended
	}
}

// TestDestinationsTogether: for its own, each proxy has only so many connections to destinations.
func TestDestinationsTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	l := start(t, all())
	l.bound(2)
	ours, theirs := net.Pipe()
	defer theirs.Close()
	for range 3 { // as of HTTP/2, or of datagrams
		other, _ := net.Pipe()
		rig.Is(t, l.Proxy.hold(other), true, "there is room for a connection")
	}
	rig.Is(t, l.status("GET http://"+s.addr+"/"+closing), "HTTP/1.1 502 Bad Gateway", "with too many connections")
	held := l.Proxy.hold(ours)
	rig.Is(t, held && l.Proxy.hold(ours), false, "there is room for any number of connections")
}
