package rpctest

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// Faulty passes TCP connections on to a server, and makes each connection fail in some way, until
// Heal is called.
type Faulty struct {
	listener net.Listener
	server   string
	most     int64
	ended    chan struct{} // closed by Close
	wg       sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	random *rand.Rand
	healed bool
	closed bool
	conns  map[net.Conn]struct{}
	faults map[fault]int
}

// fault is the way in which a connection fails.
type fault int

// The faults. All except refused happen when a connection has carried a number of bytes, or a
// number of pieces, which are mostly messages.
const (
	reset   fault = iota // both ends are reset, in the middle of the data
	ended                // both ends are closed in good order
	hidden               // the client's end is reset; the server learns of it some time later
	held                 // nothing passes any more; some time later both ends are reset
	slow                 // the bytes pass in small pieces, then both ends are reset
	refused              // nobody serves the connection
	doubled              // the first data of the client come to the server on two connections
	faultKinds
)

// NewFaulty starts a proxy that ends with the test. Connections fail after up to most bytes.
func NewFaulty(t testing.TB, server string, seed uint64, most int64) *Faulty {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("%v", err)
	}
	f := &Faulty{
		listener: l, server: server, most: most, ended: make(chan struct{}),
		random: rand.New(rand.NewPCG(seed, 1)), conns: map[net.Conn]struct{}{}, faults: map[fault]int{},
	}
	f.wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return // closed
			}
			f.wg.Go(func() { f.serve(from.(*net.TCPConn)) })
		}
	})
	t.Cleanup(f.Close)
	return f
}

// Close ends the proxy and its connections. It may be called more than once.
func (f *Faulty) Close() {
	f.mu.Lock()
	if !f.closed {
		f.closed, f.healed = true, true
		_ = f.listener.Close()
		close(f.ended)
		for c := range f.conns {
			_ = c.Close()
		}
	}
	f.mu.Unlock()
	f.wg.Wait()
}

// Address returns the address at which the proxy listens.
func (f *Faulty) Address() string { return f.listener.Addr().String() }

// Heal ends the faults for new connections, and for connections that have not failed yet.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.healed = true
}

// Faults returns how many connections have failed so far, and in which ways.
func (f *Faulty) Faults() (total int, kinds [faultKinds]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for kind, n := range f.faults {
		total += n
		kinds[kind] = n
	}
	return total, kinds
}

// flawed is a connection from a client to the server, with its planned fault.
type flawed struct {
	proxy    *Faulty
	from, to *net.TCPConn
	fault    fault
	delay    time.Duration

	mu     sync.Mutex // guards the fields below
	bytes  int64      // bytes that still pass
	pieces int        // pieces that still pass; 0: pieces are not counted
	over   bool       // the connection has failed
}

// plan chooses the fault of a connection.
func (f *Faulty) plan(c *flawed) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.fault = fault(f.random.IntN(int(faultKinds)))
	c.delay = time.Duration(f.random.IntN(20)) * time.Millisecond
	// As many connections fail within the first hundred bytes as between a thousand and
	// ten thousand.
	c.bytes = 1
	for limit := f.most; limit > 1 && f.random.IntN(3) > 0; limit /= 4 {
		c.bytes *= 4
	}
	c.bytes += f.random.Int64N(4 * c.bytes)
	if f.random.IntN(2) == 0 {
		c.pieces, c.bytes = 1+f.random.IntN(40), f.most
	}
}

func (f *Faulty) serve(from *net.TCPConn) {
	defer from.Close()
	c := &flawed{proxy: f, from: from}
	f.plan(c)
	if c.fault == refused && f.fails(refused) {
		_ = from.SetLinger(0)
		return
	}
	to, err := net.Dial("tcp", f.server)
	if err != nil {
		return // the server has ended
	}
	defer to.Close()
	c.to = to.(*net.TCPConn)
	if !f.keep(c.from) || !f.keep(c.to) {
		return
	}
	defer f.forget(c.from, c.to)
	var up io.Writer = way{c, c.to}
	if c.fault == doubled {
		second, err := net.Dial("tcp", f.server)
		if err == nil && f.keep(second) {
			defer f.forget(second)
			defer second.Close()
			f.wg.Go(func() { _, _ = io.Copy(io.Discard, second) })
			up = io.MultiWriter(up, &first{to: second, pieces: 2})
		}
	}
	var both sync.WaitGroup
	both.Go(func() { c.copy(up, c.from); _ = c.to.CloseWrite() })
	both.Go(func() { c.copy(way{c, c.from}, c.to); _ = c.from.CloseWrite() })
	both.Wait()
}

// fails counts a fault and returns true. After Heal it returns false.
func (f *Faulty) fails(kind fault) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.healed {
		f.faults[kind]++
	}
	return !f.healed
}

func (f *Faulty) keep(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		_ = c.Close()
		return false
	}
	f.conns[c] = struct{}{}
	return true
}

func (f *Faulty) forget(conns ...net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range conns {
		delete(f.conns, c)
	}
}

// first writes only the first pieces: a client's request for a websocket, and its hello. Further
// pieces would be calls, which the server would execute for another client.
type first struct {
	to     net.Conn
	pieces int
}

func (w *first) Write(p []byte) (int, error) {
	if w.pieces > 0 {
		w.pieces--
		_, _ = w.to.Write(p) // the server may have refused the connection
	}
	return len(p), nil
}

// copy does what io.Copy does, without shortcuts that bypass to.
func (c *flawed) copy(to io.Writer, from net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// way is one direction of a connection.
type way struct {
	*flawed
	to *net.TCPConn
}

func (w way) Write(p []byte) (int, error) {
	pass, strikes := w.spend(len(p))
	if w.fault == slow {
		return w.drip(p, pass, strikes)
	}
	n, err := w.to.Write(p[:pass])
	if strikes {
		w.strike()
		return n, io.ErrClosedPipe
	}
	return len(p), err
}

// drip writes the first bytes in small pieces.
func (w way) drip(p []byte, pass int, strikes bool) (int, error) {
	few := min(pass, 500)
	for rest := p[:few]; len(rest) > 0; {
		n := min(len(rest), 7)
		if _, err := w.to.Write(rest[:n]); err != nil {
			return 0, err
		}
		rest = rest[n:]
		time.Sleep(50 * time.Microsecond) // bytes that are written together may arrive together
	}
	if _, err := w.to.Write(p[few:pass]); err != nil {
		return 0, err
	}
	if strikes {
		w.strike()
		return pass, io.ErrClosedPipe
	}
	return len(p), nil
}

// spend returns how many of n bytes pass, and whether the connection fails after them.
func (c *flawed) spend(n int) (pass int, strikes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, true
	}
	c.bytes -= int64(n)
	c.pieces--
	switch {
	case c.pieces == 0:
		pass = 0
	case c.bytes < 0:
		pass = n + int(c.bytes)
	default:
		return n, false
	}
	if !c.proxy.fails(c.fault) {
		c.bytes = 1 << 60
		return n, false
	}
	c.over = true
	return pass, true
}

// strike ends the connection as its fault requires.
func (c *flawed) strike() {
	switch c.fault {
	case ended:
	case hidden:
		_ = c.from.SetLinger(0)
		_ = c.from.Close()
		c.wait()
	case held:
		c.wait()
		fallthrough
	default:
		_ = c.from.SetLinger(0)
		_ = c.to.SetLinger(0)
	}
	_ = c.from.Close()
	_ = c.to.Close()
}

// wait waits for the delay, or until the proxy is closed.
func (c *flawed) wait() {
	select {
	case <-time.After(c.delay):
	case <-c.proxy.ended:
	}
}
