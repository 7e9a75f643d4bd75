package socket

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

// Timings and sizes of the relay's WebSockets (remote.md 4).
const (
	// MaxMessage is the default for the largest message, in bytes.
	MaxMessage = 262144

	defaultPingInterval = 30 * time.Second
	defaultPongTimeout  = 60 * time.Second
	upgradeTimeout      = 10 * time.Second

	// messageTimeout is how long the rest of a message may take, see [Config.Large].
	messageTimeout = 60 * time.Second
)

// Errors of a Socket's methods.
var (
	// ErrText is [Socket.Read]'s answer to a text message, which it has thrown
	// away. The socket lives on.
	ErrText = errors.New("text message on a binary websocket")
	// errTooLarge is for a message above [Config.MaxMessage]. One that comes
	// in ends the socket; one that should go out is only refused.
	errTooLarge = errors.New("websocket message is too large")
	// errLaneClosed is for a Send on a closed lane.
	errLaneClosed = errors.New("lane is closed")
)

// Config says what a Socket is like. The zero value is usable.
type Config struct {
	PingInterval time.Duration // between pings, from the start on; 0 is 30 s
	// PongTimeout ends a socket whose ping was not answered, or whose peer did
	// not take what is written, for so long; 0 is 60 s.
	PongTimeout time.Duration
	MaxMessage  int // bytes, either way; 0 is [MaxMessage]

	// Large bounds how many sockets hold a message above 1 KiB at once: as many as
	// the channel has room for, among all sockets that share the channel. A socket
	// takes a place when a message turns out to be that large, and waits if there
	// is none. It gives the place back with its next Read, or at its end. If the
	// message is not whole messageTimeout after the socket got the place, the
	// socket ends. Nil: no bound.
	Large chan struct{}

	// Traffic counts the bytes that pass; nil: nobody counts.
	Traffic *Traffic

	// Memory counts the buffers of messages above 1 KiB, while they are read and until
	// the next Read. A socket waits before it takes another buffer while nothing is left
	// of the budget that Memory and others are a part of. Nil: no bound.
	Memory *Budget

	// The rest is for [Dial] alone.

	// TLS is for wss; nil verifies against the system's roots. It is not changed.
	TLS *tls.Config
	// DialContext replaces TCP and the proxies of the environment; nil for none.
	DialContext func(ctx context.Context, network, address string) (net.Conn, error)
}

// Traffic counts bytes of websockets, with the headers of their frames.
type Traffic struct{ Sent, Received atomic.Uint64 }

func (t *Traffic) sent(n int) {
	if t != nil {
		t.Sent.Add(uint64(n))
	}
}

func (t *Traffic) received(n int) {
	if t != nil {
		t.Received.Add(uint64(n))
	}
}

// withDefaults fills in what is left zero.
func (c Config) withDefaults() Config {
	if c.PingInterval <= 0 {
		c.PingInterval = defaultPingInterval
	}
	if c.PongTimeout <= 0 {
		c.PongTimeout = defaultPongTimeout
	}
	if c.MaxMessage <= 0 {
		c.MaxMessage = MaxMessage
	}
	return c
}

// Socket is one WebSocket. [Dial] and [Upgrade] make them, and their callers close
// them. One goroutine reads; everything else may be called by any number of
// goroutines at once.
//
// It ends by Close, by an error of the network, by a breach of RFC 6455, or
// when its peer neither answers a ping nor takes a write within PongTimeout.
// The end unblocks everybody and releases every message that waits.
type Socket struct {
	ws         *websocket.Conn // for reading only
	wire       *wire
	client     bool
	maxMessage int
	large      chan struct{} // Config.Large
	memory     *Budget       // Config.Memory
	patience   time.Duration // Config.PongTimeout

	done     chan struct{} // closed by the end
	stopping sync.WaitGroup

	mu      sync.Mutex // protects the fields below and those of the lanes
	err     error      // why it ended; nil before
	isLarge bool       // the last message, or the one that is being read, has a place in large
	taken   int        // bytes of memory, for the same message
	since   time.Time  // when it got its place, if it is still being read
	sched   scheduler
	beat    heartbeat
}

// newSocket takes over ws and the connection under it.
func newSocket(ws *websocket.Conn, w *wire, client bool, cfg Config) *Socket {
	cfg = cfg.withDefaults()
	s := &Socket{
		ws:         ws,
		wire:       w,
		client:     client,
		maxMessage: cfg.MaxMessage,
		large:      cfg.Large,
		memory:     cfg.Memory,
		patience:   cfg.PongTimeout,
		done:       make(chan struct{}),
	}
	w.upgraded()
	w.traffic = cfg.Traffic
	ws.SetReadLimit(int64(cfg.MaxMessage))
	ws.SetPingHandler(s.answerPing)
	ws.SetPongHandler(s.ponged)
	ws.SetCloseHandler(func(int, string) error { return nil }) // no echo: remote.md 4
	s.startHeartbeat(cfg.PingInterval)
	return s
}

// fail ends the socket for the reason given; the first one counts.
func (s *Socket) fail(err error) {
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	s.err = err
	close(s.done)
	s.beat.timer.Stop()
	s.freeLargeLocked()
	s.dropWaitingLocked()
	s.stopping.Add(1)
	s.mu.Unlock()
	// The connection is of no use whether or not its closing reports an error.
	_ = s.wire.shut()
	s.stopping.Done()
}

// Close ends the socket at once, without a close frame, and waits for its
// goroutines. What has been written still arrives; what waits in lanes is
// thrown away, see [Socket.Flush].
func (s *Socket) Close() error {
	s.fail(net.ErrClosed)
	s.stopping.Wait()
	return nil
}

// Done is closed when the socket has ended.
func (s *Socket) Done() <-chan struct{} { return s.done }

// Err tells why the socket has ended: net.ErrClosed after Close, nil before
// the end. Of what the peer sent, an error repeats at most the code of a close frame.
func (s *Socket) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
