package socket

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/execagent/execagent/test/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test beside others, in a bubble of its own.
func bubble(t *testing.T, test func(t *testing.T)) {
	t.Parallel()
	synctest.Test(t, test)
}

// run is bubble as a part of a test.
func run(t *testing.T, name string, test func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { bubble(t, test) })
}

// serve answers every request with Upgrade and returns the URL for Dial.
func serve(t testing.TB, l net.Listener, cfg Config, accepted chan<- *Socket) string {
	t.Helper()
	var running sync.WaitGroup
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s, err := Upgrade(w, r, cfg)
		rig.Check(t, err)
		accepted <- s
	})}
	running.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() {
		server.Close()
		running.Wait()
	})
	return "ws://" + l.Addr().String() + "/rendezvous/?sig=secret"
}

func listenTCP(t testing.TB) net.Listener {
	t.Helper()
	return rig.Value(net.Listen("tcp", "127.0.0.1:0"))
}

// pair returns both ends of a socket over TCP.
func pair(t testing.TB, clientConfig, serverConfig Config) (client, server *Socket) {
	t.Helper()
	return pairOver(t, listenTCP(t), clientConfig, serverConfig)
}

func pairOver(t testing.TB, l net.Listener, clientConfig, serverConfig Config) (client, server *Socket) {
	t.Helper()
	accepted := make(chan *Socket, 1)
	client = rig.Value(Dial(t.Context(), serve(t, l, serverConfig, accepted), nil, clientConfig))
	server = <-accepted
	t.Cleanup(func() {
		client.Close()
		server.Close()
	})
	return client, server
}

// pipes is a listener of connections in memory.
type pipes struct {
	net.Listener
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

func newPipes() pipes {
	l, dial := rig.Pipes(&net.UnixAddr{Name: "relay.test"})
	return pipes{l, dial}
}

// pipePair returns both ends of a socket in memory, for use under synctest.
func pipePair(t testing.TB, clientConfig, serverConfig Config) (client, server *Socket) {
	t.Helper()
	l := newPipes()
	clientConfig.DialContext = l.Dial
	return pairOver(t, l, clientConfig, serverConfig)
}

// message returns a message with the text given.
func message(text string) *Message {
	m := NewMessage(len(text))
	m.Bytes = append(m.Bytes, text...)
	return m
}

// drainAll reads until the socket ends.
func drainAll(s *Socket) <-chan error {
	done := make(chan error, 1)
	go func() {
		for {
			m, err := s.Read()
			if err != nil && !errors.Is(err, ErrText) {
				done <- err
				return
			}
			if err == nil {
				m.Release()
			}
		}
	}()
	return done
}

// texts reads n messages.
func texts(t testing.TB, s *Socket, n int) []string {
	t.Helper()
	var got []string
	for range n {
		m := rig.Value(s.Read())
		got = append(got, string(m.Bytes))
		m.Release()
	}
	return got
}

func TestPair(t *testing.T) {
	t.Parallel()
	client, server := pair(t, Config{}, Config{})
	for _, tt := range []struct {
		name     string
		from, to *Socket
	}{{"client to server", client, server}, {"server to client", server, client}} {
		lane := tt.from.NewLane(0)
		for _, size := range []int{0, 1, 125, 126, 1023, 1024, 1025, 4096, 4097, 61_526, 65_535, 65_536, MaxMessage - 1, MaxMessage} {
			text := strings.Repeat("abcdefghijklmnopqrstuvwxyz0123456789", size/36+1)[:size]
			sent := make(chan error, 1)
			go func() { sent <- lane.Send(message(text)) }()
			m := rig.Value(tt.to.Read())
			rig.Is(t, string(m.Bytes), text, "%s: what arrived of %d bytes", tt.name, size)
			rig.Is(t, 4*len(m.Bytes) < cap(m.Bytes) && cap(m.Bytes) > firstBuffer, false,
				"%s: %d bytes occupy %d", tt.name, size, cap(m.Bytes))
			m.Release()
			rig.Is(t, <-sent, nil, "%s, %d bytes", tt.name, size)
		}
		rig.Is(t, lane.Send(message(strings.Repeat("x", MaxMessage+1))), errTooLarge, "%s: sending too much", tt.name)
	}
	client.Close()
	rig.Is(t, rig.Err(server.Read()), io.EOF, "server after Close of the client")
	rig.Is(t, client.Err(), net.ErrClosed, "the client's Err")
}
