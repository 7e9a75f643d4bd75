package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/rpctest"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// serveEach calls serve with each connection that comes to the address, until the test ends.
func serveEach(t testing.TB, network, address string, serve func(net.Conn)) (url string) {
	return network + "://" + rig.Listen(t, network, address, serve).String()
}

func TestSocket(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		for _, address := range []string{
			serveEach(t, "tcp", "127.0.0.1:0", rig.Echo),
			serveEach(t, "unix", filepath.Join(t.TempDir(), "s"), rig.Echo),
		} {
			s := rig.Value(c.DialSocket(t.Context(), address, nil))
			rig.Must(t, rig.Err(s.Write([]byte("hello"))))
			got := make([]byte, 5)
			rig.Must(t, rig.Err(io.ReadFull(s, got)))
			rig.Is(t, string(got), "hello", "read")
			rig.Must(t, s.SetReadDeadline(time.Now().Add(time.Millisecond)))
			n, err := s.Read(got)
			rig.Is(t, n == 0 && errors.Is(err, os.ErrDeadlineExceeded), true, "after the deadline: %d, %v", n, err)
			rig.Must(t, s.SetReadDeadline(time.Time{}))
			rig.Must(t, s.CloseWrite())
			rig.Is(t, len(rig.Value(io.ReadAll(s))), 0, "bytes after half a close")
			rig.Is(t, rig.Err(s.Write([]byte("more"))) != nil, true, "no bytes can be written behind the end")
			rig.Is(t, s.RemoteAddr().Network()+"://"+s.RemoteAddr().String(), address, "the address")
			rig.Must(t, errors.Join(s.Close(), s.Close()))
			rig.Is(t, rig.Err(s.Read(got)), net.ErrClosed, "after Close")
		}
	})
}

// TestSocketRefused: what the other end says comes as an error, with its words.
func TestSocketRefused(t *testing.T) {
	t.Parallel()
	c := connect(t, client.Config{Dial: overPipe(t, newAgent(t))})
	for address, want := range map[string]string{
		"tcp://" + rig.FreeAddress(t): "Connection refused (os error 111)",
		"unix:///nowhere/at/all":      "No such file or directory (os error 2)",
		"unix:///etc/passwd":          "Connection refused (os error 111)",
		"udp://127.0.0.1:1":           `address: "udp://127.0.0.1:1": want tcp://HOST:PORT or unix:///PATH`,
	} {
		err := rig.Err(c.DialSocket(t.Context(), address, nil))
		rig.Is(t, strings.HasPrefix(said(err), want+" (code "), true, "%s: %v, want %s", address, err, want)
	}
	box := &protocol.Sandbox{WindowsSandboxLevel: "disabled", Permissions: protocol.Permissions{Type: protocol.PermissionsExternal, Network: protocol.NetworkRestricted}}
	rig.Says(t, rig.Err(c.DialSocket(t.Context(), "unix:///s", box)), "cannot confine", "with a sandbox")
	// A connection that is reset.
	reset := serveEach(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.(*net.TCPConn).SetLinger(0)
	})
	s := rig.Value(c.DialSocket(t.Context(), reset, nil))
	defer s.Close()
	rig.Must(t, rig.Err(s.Write([]byte("x"))))
	_, err := io.ReadAll(s)
	e, ok := errors.AsType[*client.SocketError](err)
	rig.Is(t, ok && e.Text == "Connection reset by peer (os error 104)", true, "a connection that was reset: %v", err)
}

// TestSocketPressure: what comes from a socket that nobody reads holds up nothing else.
func TestSocketPressure(t *testing.T) {
	t.Parallel()
	c := connect(t, client.Config{Dial: overWebSocket(t, newAgent(t))})
	flood := serveEach(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		for {
			if _, err := conn.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	over := make(chan struct{})
	deaf := serveEach(t, "tcp", "127.0.0.1:0", func(net.Conn) { <-over })
	t.Cleanup(func() { close(over) })
	var writers sync.WaitGroup
	defer writers.Wait()
	for range 20 {
		s := rig.Value(c.DialSocket(t.Context(), flood, nil))
		w := rig.Value(c.DialSocket(t.Context(), deaf, nil))
		writers.Go(func() {
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		})
		defer s.Close()
		defer w.SetWriteDeadline(time.Unix(1, 0))
	}
	for range 20 {
		roundTrip(t, c, serveEach(t, "tcp", "127.0.0.1:0", rig.Echo), 300<<10)
		ran := rig.Value(c.Run(t.Context(), client.Spec{Argv: []string{"echo", "here"}}, nil))
		rig.Is(t, string(ran.Stdout), "here\n", "Run gives")
	}
}

// roundTrip sends bytes to an echo and compares what comes back.
func roundTrip(t testing.TB, c *client.Client, address string, n int) {
	s, err := c.DialSocket(t.Context(), address, nil)
	if err != nil {
		t.Error(err)
		return
	}
	defer s.Close()
	seed := [32]byte{byte(n)}
	sent, came := sha256.New(), sha256.New()
	var writing sync.WaitGroup
	writing.Go(func() {
		random := rand.NewChaCha8(seed)
		for left := n; left > 0; {
			piece := make([]byte, min(left, 1+int(random.Uint64()%100_000)))
			_, _ = random.Read(piece)
			sent.Write(piece)
			if _, err := s.Write(piece); err != nil {
				t.Error(err)
				return
			}
			left -= len(piece)
		}
		rig.Check(t, s.CloseWrite())
	})
	got, err := io.Copy(came, s)
	writing.Wait()
	if err != nil || got != int64(n) || !bytes.Equal(sent.Sum(nil), came.Sum(nil)) {
		t.Errorf("%d bytes of %d came back, %v", got, n, err)
	}
}

// TestSocketCuts: connections fail at any byte, and nothing of what is sent through
// sockets is lost, comes twice or in another order, in either direction.
func TestSocketCuts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	address := serveEach(t, "tcp", "127.0.0.1:0", rig.Echo)
	size := 100_000
	if rig.Runs(rig.Merge) {
		size = 400_000
	}
	proxy := rpctest.NewFaulty(t, strings.TrimPrefix(listen(t, ""), "ws://"), seed, 400_000)
	cfg := client.URL("ws://" + proxy.Address())
	cfg.ConnectTimeout, cfg.InitializeTimeout, cfg.RecoveryTimeout = patience, patience, patience
	c, err := client.Connect(t.Context(), cfg)
	for err != nil && client.Retryable(err) {
		c, err = client.Connect(t.Context(), cfg)
	}
	rig.Must(t, err)
	defer c.Close()
	var trips sync.WaitGroup
	for i := range 4 {
		trips.Go(func() { roundTrip(t, c, address, size+i) })
		trips.Go(func() {
			for j := range 1 + size/100_000 {
				roundTrip(t, c, address, 1+1000*j)
			}
		})
	}
	trips.Wait()
	for c.Generation() < 3 { // a lucky connection carries all
		roundTrip(t, c, address, size)
	}
	t.Logf("%d connections", c.Generation())
	proxy.Heal()
}

// cutAt is a connection that is lost at a message: before that is sent, or right after it.
type cutAt struct {
	rpc.Conn
	text  string
	after bool
	armed *atomic.Int32 // how many messages with the text pass before
}

func (c cutAt) Write(message []byte) error {
	if !bytes.Contains(message, []byte(c.text)) || c.armed.Add(-1) != 0 {
		return c.Conn.Write(message)
	}
	var err error
	if c.after {
		err = c.Conn.Write(message)
	}
	_ = c.Conn.Close()
	return err
}

// TestSocketCutAt: the connection is lost at a request of each kind, the first or a later one. The
// other end sees one connection, and each byte once.
func TestSocketCutAt(t *testing.T) {
	t.Parallel()
	a := newAgent(t)
	for _, method := range []string{"socket/open", "socket/write", "socket/ack", "socket/close"} {
		for _, after := range []bool{false, true} {
			for _, nth := range []int32{1, 3} {
				if nth > 1 && (method == "socket/open" || method == "socket/close") {
					continue
				}
				t.Run(fmt.Sprint(method, nth, after), func(t *testing.T) {
					t.Parallel()
					var seen atomic.Int32
					address := serveEach(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
						seen.Add(1)
						rig.Echo(conn)
					})
					var armed atomic.Int32
					armed.Store(nth)
					dial := overPipe(t, a)
					c := connect(t, client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
						conn, err := dial(ctx)
						return cutAt{conn, `"` + method + `"`, after, &armed}, err
					}})
					trips := int32(0)
					for trips == 0 || armed.Load() > 0 { // a busy machine acknowledges more at once, and less often
						roundTrip(t, c, address, 3_000_000)
						trips++
					}
					rig.Is(t, seen.Load(), trips, "connections that were made there")
					rig.Is(t, c.Generation(), 2, "connections to the agent")
				})
			}
		}
	}
}

// TestSocketLies: a server that breaks the rules loses that socket, and nothing else.
func TestSocketLies(t *testing.T) {
	t.Parallel()
	able := *plainInfo
	able.Capabilities.SocketForward = true
	for name, data := range map[string]protocol.SocketData{
		"a gap":         {Offset: 5, Chunk: []byte("x")},
		"a flood":       {Chunk: make([]byte, protocol.MaxSocketWindow+1)},
		"a huge offset": {Offset: 1<<64 - 1, Chunk: []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			closed := make(chan struct{})
			s, dial := newServer(t, &able, rpc.Table{
				protocol.MethodSocketOpen:        {Handle: answer(protocol.Empty{})},
				protocol.MethodEnvironmentStatus: {Handle: answer(&protocol.StatusResult{Status: protocol.StatusReady})},
				protocol.MethodSocketClose: {Handle: func(context.Context, json.RawMessage) (any, error) {
					close(closed)
					return protocol.Empty{}, nil
				}},
			})
			c := connect(t, client.Config{Dial: dial, Single: true})
			socket := rig.Value(c.DialSocket(t.Context(), "tcp://h:1", nil))
			// The id is the client's choice, and in the request.
			data.SocketID = socket.ID()
			rig.Must(t, s.Notify(protocol.MethodSocketData, &data))
			rig.Says(t, rig.Err(io.ReadAll(socket)), "protocol error", "reading")
			<-closed
			rig.Is(t, rig.Value(c.Status(t.Context())), protocol.StatusReady, "the client is")
		})
	}
}
