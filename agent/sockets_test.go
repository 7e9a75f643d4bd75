package agent

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// listenFor calls serve with each connection that comes to the address it returns, until the
// test ends.
func listenFor(t testing.TB, serve func(net.Conn)) (address string) {
	return rig.Listen(t, "tcp", "127.0.0.1:0", serve).String()
}

// flood writes until the other end is gone.
func flood(conn net.Conn) {
	for buf := make([]byte, 1<<20); ; {
		if _, err := conn.Write(buf); err != nil {
			return
		}
	}
}

// told is how many bytes of a socket a client was told, and whether they came in order.
func told(notes []note, id string) (bytes int) {
	for _, n := range notes {
		if n.method == protocol.MethodSocketData && n.id == id {
			bytes += len(n.data)
		}
	}
	return bytes
}

// TestSocketPressure: of a socket whose client acknowledges nothing no more is held than its
// window, and other sockets and processes go on meanwhile; an acknowledgement opens it again.
func TestSocketPressure(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	c := r.attach("")
	address := "tcp://" + listenFor(t, flood)
	const window, n = 200_000, 8
	for i := range n {
		c.must("socket/open", object{"socketId": fmt.Sprint(i), "address": address, "window": window}, nil)
	}
	for i := range n {
		c.await("the window", func(notes []note) bool { return told(notes, fmt.Sprint(i)) == window })
	}
	echo := "tcp://" + listenFor(t, rig.Echo)
	for i := range 20 {
		id := fmt.Sprint("echo ", i)
		c.must("socket/open", object{"socketId": id, "address": echo}, nil)
		c.must("socket/write", object{"socketId": id, "offset": 0, "chunk": []byte("hello")}, nil)
		rig.Is(t, string(c.awaitNote(protocol.MethodSocketData, id).data), "hello", "what has come")
		c.must("process/start", sh(fmt.Sprint(i), "echo here"), nil)
		c.awaitNote("process/closed", fmt.Sprint(i))
	}
	for i := range n {
		id := fmt.Sprint(i)
		rig.Is(t, told(c.await("", func([]note) bool { return true }), id), window, "bytes of socket %s that were told", id)
		c.must("socket/ack", object{"socketId": id, "received": 1000}, nil)
		c.await("1000 more", func(notes []note) bool { return told(notes, id) == window+1000 })
	}
}

// TestSocketLostWrite: a write that waits when its connection is lost is over when the client is
// back, and what was written by then is final.
func TestSocketLostWrite(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	came := make(chan int64, 1)
	address := "tcp://" + listenFor(t, func(conn net.Conn) {
		<-read
		n, _ := io.Copy(io.Discard, conn)
		came <- n
	})
	r := newHarness(t, Config{})
	a := r.attach("")
	a.must("socket/open", object{"socketId": "s", "address": address}, nil)
	var sent uint64
	var written atomic.Uint64
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for {
			var received protocol.SocketReceived
			chunk := make([]byte, protocol.MaxSocketChunk)
			if a.call("socket/write", object{"socketId": "s", "offset": sent, "chunk": chunk}, &received) != nil {
				return
			}
			sent = received.Received
			written.Store(sent)
		}
	}()
	// A request behind it shows that it waits: it was read, and is not answered.
	var stuck uint64
	rig.Until(t, "a write waits", func() bool {
		before := stuck
		stuck = written.Load()
		return stuck > 0 && stuck == before
	})
	a.drop()
	<-lost
	b := r.attach(a.session)
	var now, later protocol.SocketReceived
	b.must("socket/resume", object{"socketId": "s", "received": 0}, &now)
	rig.Is(t, now.Received >= sent, true, "%d bytes were written, at least the %d before", now.Received, sent)
	close(read)
	b.must("socket/resume", object{"socketId": "s", "received": 0}, &later)
	b.must("socket/write", object{"socketId": "s", "offset": now.Received, "chunk": []byte("end"), "eof": true}, nil)
	rig.Is(t, <-came, int64(now.Received)+3, "bytes that have come")
	rig.Is(t, later, now, "resumed again, the socket has received")
}

// TestSocketSession: sockets end with their session, and not before.
func TestSocketSession(t *testing.T) {
	t.Parallel()
	ended := make(chan struct{})
	address := "tcp://" + listenFor(t, func(conn net.Conn) {
		_, _ = io.Copy(io.Discard, conn)
		close(ended)
	})
	r := newHarness(t, Config{SessionTTL: 300 * time.Millisecond})
	a := r.attach("")
	a.must("socket/open", object{"socketId": "s", "address": address}, nil)
	select {
	case <-ended:
		t.Fatal("it has ended before its session")
	default:
	}
	a.drop()
	waitFor(t, ended, "the end of the session's sockets")
	b, c := r.attach(""), r.attach("")
	b.must("socket/open", object{"socketId": "s", "address": "tcp://" + listenFor(t, flood)}, nil)
	wantCode(t, "a socket of another session", c.call("socket/write", object{"socketId": "s", "offset": 0, "chunk": ""}, nil), protocol.CodeInvalidRequest)
}

// TestSocketOwnListener: with a sandbox nobody becomes a client of the agent by way of a socket,
// whatever address of the host is named.
func TestSocketOwnListener(t *testing.T) {
	t.Parallel()
	own := listenFor(t, flood)
	other := listenFor(t, flood)
	r := newHarness(t, Config{Listening: []Listening{{Addr: netip.MustParseAddrPort(own)}}})
	c := r.attach("")
	box := managed("enabled", special("root", "read"))
	_, port, _ := net.SplitHostPort(own)
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "127.1.2.3", "[::ffff:127.0.0.1]"} {
		err := c.call("socket/open", object{"socketId": "s", "address": "tcp://" + host + ":" + port, "sandbox": box}, nil)
		rig.Is(t, fmt.Sprint(err), protocol.InvalidRequest("Operation not permitted (os error 1)").Error(), "%s", host)
	}
	c.must("socket/open", object{"socketId": "other", "address": "tcp://" + other, "sandbox": box}, nil)
	c.must("socket/open", object{"socketId": "own", "address": "tcp://" + own}, nil)
}

// TestSocketOwnPath: the same holds for a UNIX socket of the agent, also in a
// folder that the sandbox may write to.
func TestSocketOwnPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"own", "other"} {
		l := rig.Value(net.Listen("unix", filepath.Join(dir, name)))
		t.Cleanup(func() { l.Close() })
	}
	c := newHarness(t, Config{Listening: []Listening{{Path: filepath.Join(dir, "own"), Authenticated: true}}}).attach("")
	box := managed("enabled", special("root", "read"), at(dir, "write"))
	open := func(name string, box any) error {
		params := object{"socketId": name, "address": "unix://" + filepath.Join(dir, name), "sandbox": box}
		return c.call("socket/open", params, nil)
	}
	rig.Check(t, open("other", box))
	rig.Says(t, open("own", box), "os error", "the agent's own")
	rig.Check(t, open("own", nil))
}

// TestSocketCannotConfine: a sandbox that cannot be enforced connects nothing.
func TestSocketCannotConfine(t *testing.T) {
	t.Parallel()
	address := "tcp://" + listenFor(t, func(net.Conn) { t.Error("somebody has connected") })
	// Whoever can connect at an address that is not loopback would be a client.
	r := newHarness(t, Config{Listening: []Listening{{Addr: netip.MustParseAddrPort("0.0.0.0:7000")}}})
	c := r.attach("")
	err := c.call("socket/open", object{"socketId": "s", "address": address, "sandbox": managed("enabled", special("root", "read"))}, nil)
	wantCode(t, "an open listener", err, protocol.CodeInvalidRequest)
	rig.Says(t, err, "sandbox: this agent cannot enforce", "an open listener")
	err = c.call("socket/open", object{"socketId": "s", "address": address, "sandbox": managed("enabled", special("current_working_directory", "read"))}, nil)
	wantCode(t, "a sandbox that needs a folder", err, protocol.CodeInvalidParams)
}

// TestSocketMany: a session has so many sockets, another one has room of its own.
func TestSocketMany(t *testing.T) {
	t.Parallel()
	r := newHarness(t, Config{})
	c := r.attach("")
	address := "tcp://" + listenFor(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	open := func(c *client, id int) error {
		return c.call("socket/open", object{"socketId": fmt.Sprint(id), "address": address}, nil)
	}
	n := 0
	for ; n < 300; n++ {
		if err := open(c, n); err != nil {
			wantCode(t, "one more", err, protocol.CodeInvalidRequest)
			rig.Says(t, err, "at most 256", "one more")
			break
		}
	}
	rig.Is(t, n, 256, "sockets of a session")
	rig.Check(t, open(r.attach(""), 0))
	c.must("socket/close", object{"socketId": "7"}, nil)
	rig.Check(t, open(c, 7))
}

// TestSocketConfinedDials: so many processes connect for sockets at once, of all
// sessions. What has to wait for them delays nothing else, can be closed, and goes
// on afterwards.
func TestSocketConfinedDials(t *testing.T) {
	t.Parallel()
	address := "tcp://" + listenFor(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	r := newHarness(t, Config{ConcurrentRequests: 2})
	c := r.attach("")
	box := managed("enabled", special("root", "read"))
	open := func(c *client, id string) *rpc.Pending {
		return rig.Value(c.peer.Begin("socket/open", object{"socketId": id, "address": address, "sandbox": box}))
	}
	dials := &r.agent.sandboxes.dials
	rig.Is(t, dials.Used(), 0, "those who connect already")
	dials.Add("others", maxConfinedDials-1)
	rig.Must(t, open(c, "last").Wait(t.Context(), nil))
	// Its place is free again once the process has ended, which the answer waits for.
	rig.Is(t, dials.Used(), maxConfinedDials-1, "those who connect")
	dials.Add("others", 1)
	var waiting []*rpc.Pending
	for i := range 5 {
		waiting = append(waiting, open(c, fmt.Sprint(i)))
	}
	other := open(r.attach(""), "s")
	c.must("socket/open", object{"socketId": "free", "address": address}, nil)
	c.must("process/start", sh("p", "exit 0"), nil)
	c.awaitNote("process/closed", "p")
	c.must("socket/close", object{"socketId": "0"}, nil)
	wantCode(t, "one that was closed", waiting[0].Wait(t.Context(), nil), protocol.CodeInvalidRequest)
	rig.Is(t, dials.Used(), maxConfinedDials, "those who connect, where there is no room")
	dials.Give("others", maxConfinedDials)
	for _, p := range append(waiting[1:], other) {
		rig.Must(t, p.Wait(t.Context(), nil))
	}
	rig.Is(t, dials.Used(), 0, "places that were not given back")
}
