package rig

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A Proxy passes TCP connections on to its servers, to each in turn. It skips servers that do not
// listen. It treats a connection that begins with GET as a websocket, and other connections as HTTP
// requests.
type Proxy struct {
	listener net.Listener
	servers  []string
	up, down gate
	ended    chan struct{} // closed by Close
	wg       sync.WaitGroup

	mu            sync.Mutex // guards the fields below
	closed        bool
	turn          int
	aimed         bool // the next websocket goes to the server whose turn it is, whatever comes before it
	conns         map[*passage]struct{}
	websockets    int // so far
	registrations int
	refused       int            // how many of the next websockets are refused
	each          int64          // bytes of a websocket after which CutEach cuts it; 0: none
	more          int64          // by how much each grows with each cut
	counted       *passage       // the websocket whose bytes CutAfter counts
	left          int64          // bytes before strike is called
	strike        func(*passage) // called once when left reaches 0
}

// A passage is one connection. All fields except from are zero until there is a server.
type passage struct {
	from, to  net.Conn
	server    int
	websocket bool
	carried   int64 // bytes, both ways
}

func (c *passage) close() {
	_ = c.from.Close() // either may have ended
	if c.to != nil {
		_ = c.to.Close()
	}
}

// NewProxy starts a proxy that ends with the test.
func NewProxy(t T, servers ...string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	p := &Proxy{listener: l, servers: servers, ended: make(chan struct{}), conns: make(map[*passage]struct{})}
	p.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			p.wg.Go(func() { p.serve(from) })
		}
	})
	t.Cleanup(p.Close)
	return p
}

// Close ends the proxy and its connections. It may be called more than once.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		_ = p.listener.Close()
		close(p.ended)
	}
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}

// Address returns the address at which the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// Cut ends every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.close()
	}
	clear(p.conns)
}

// CutAfter makes the proxy cut the next websocket exactly when it has carried n bytes, in both
// directions together. With a function, the proxy calls the function instead. If the websocket is
// lost before, the count continues with the next websocket.
func (p *Proxy) CutAfter(n int64, instead func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left, p.counted = n, nil
	p.strike = (*passage).close
	if instead != nil {
		p.strike = func(*passage) { instead() }
	}
}

// CutEach cuts every connection now, and the next websocket exactly when it has carried n bytes, in
// both directions together. Each later websocket carries n more bytes, so that one of them carries
// all that a slow machine must catch up with. stop ends this.
func (p *Proxy) CutEach(n int64) (stop func()) {
	set := func(n int64) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.each, p.more = n, n
	}
	set(n)
	p.Cut()
	return func() { set(0) }
}

// Struck reports whether the cut or the call of CutAfter has happened.
func (p *Proxy) Struck() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counted != nil && p.strike == nil
}

// HoldUp stops passing on data from clients, until Pass.
func (p *Proxy) HoldUp() { p.up.shut() }

// HoldDown stops passing on data from servers, until Pass. The proxy does not read these data
// either, except one buffer of each connection.
func (p *Proxy) HoldDown() { p.down.shut() }

// Pass ends HoldUp and HoldDown.
func (p *Proxy) Pass() {
	p.up.open()
	p.down.open()
}

// Refuse makes the proxy refuse the next n websockets with status 401.
func (p *Proxy) Refuse(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused = n
}

// Seen returns how many websockets were requested so far, including refused ones, and how many
// registrations of executors there were.
func (p *Proxy) Seen() (websockets, registrations int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.websockets, p.registrations
}

// At returns the index of the server of a websocket, or -1 if there is no websocket.
func (p *Proxy) At() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if c.websocket {
			return c.server
		}
	}
	return -1
}

// Move cuts all connections until the websocket is at this server.
func (p *Proxy) Move(t T, server int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for p.At() != server {
		if p.At() >= 0 {
			p.mu.Lock()
			p.turn, p.aimed = server, true
			p.mu.Unlock()
			p.Cut()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("the websocket does not come to %s", p.servers[server])
		}
	}
}

// track adds a connection, unless the proxy has ended.
func (p *Proxy) track(c *passage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conns[c] = struct{}{}
	return true
}

// serve passes one connection on.
func (p *Proxy) serve(from net.Conn) {
	defer from.Close()
	c := &passage{from: from}
	if !p.track(c) {
		return
	}
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.conns, c)
		if p.counted == c && p.strike != nil {
			p.counted = nil
		}
	}()
	reader := bufio.NewReader(from)
	method, err := reader.Peek(len(http.MethodGet))
	if err != nil {
		return
	}
	websocket := string(method) == http.MethodGet
	first, admitted := p.next(c, websocket)
	if !admitted {
		_, _ = io.WriteString(from, "HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n")
		return
	}
	var to net.Conn
	server := first
	for i := range p.servers {
		server = (first + i) % len(p.servers)
		if to, err = net.Dial("tcp", p.servers[server]); err == nil {
			break
		}
	}
	if err != nil {
		return
	}
	defer to.Close()
	p.mu.Lock()
	c.to, c.server, c.websocket = to, server, websocket
	p.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() {
		_, _ = io.Copy(&passing{p, c, from, &p.down}, to) // ends with the connection
		_ = from.Close()
	})
	forth := &passing{p, c, to, &p.up}
	if !websocket {
		p.count(io.TeeReader(reader, forth))
	}
	_, _ = io.Copy(forth, reader)
	_ = to.Close()
	back.Wait()
}

// next returns the server whose turn it is, and reports whether the connection is admitted.
func (p *Proxy) next(c *passage, websocket bool) (server int, admitted bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if websocket {
		p.websockets++
		if p.refused > 0 {
			p.refused--
			return 0, false
		}
		if p.strike != nil && p.counted == nil {
			p.counted = c
		}
	}
	turn := p.turn
	if !p.aimed || websocket {
		p.aimed = false
		p.turn = (p.turn + 1) % len(p.servers)
	}
	return turn, true
}

// count reads requests and counts registrations, until the end or until data that are no request.
func (p *Proxy) count(requests io.Reader) {
	reader := bufio.NewReader(requests)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		if strings.HasSuffix(request.URL.Path, "/register") {
			p.mu.Lock()
			p.registrations++
			p.mu.Unlock()
		}
		_, _ = io.Copy(io.Discard, request.Body) // an error shows at the next request
	}
}

// passing writes to one end of a passage, when its gate is open.
type passing struct {
	proxy *Proxy
	c     *passage
	to    net.Conn
	gate  *gate
}

func (w *passing) Write(data []byte) (int, error) {
	w.gate.wait(w.proxy.ended)
	before, strike := w.proxy.spend(w.c, len(data))
	if strike == nil {
		return w.to.Write(data)
	}
	if n, err := w.to.Write(data[:before]); err != nil {
		return n, err
	}
	strike(w.c)
	n, err := w.to.Write(data[before:])
	return before + n, err
}

// spend counts n bytes. If they reach the limit of CutAfter or CutEach, it returns the function to
// call, and the number of bytes to write before the call.
func (p *Proxy) spend(c *passage, n int) (before int, strike func(*passage)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.carried += int64(n)
	if p.each > 0 && c.websocket && c.carried >= p.each {
		before = max(0, n-int(c.carried-p.each))
		p.each += p.more
		return before, (*passage).close
	}
	if p.counted != c || p.strike == nil {
		return 0, nil
	}
	if p.left -= int64(n); p.left > 0 {
		return 0, nil
	}
	strike, p.strike = p.strike, nil
	return n + int(p.left), strike
}

// A gate is open or shut; its zero value is open.
type gate struct {
	mu     sync.Mutex
	opened chan struct{} // closed when it opens; nil while it is open
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened == nil {
		g.opened = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// wait returns when the gate is open, or when over is closed.
func (g *gate) wait(over <-chan struct{}) {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened == nil {
		return
	}
	select {
	case <-opened:
	case <-over:
	}
}
