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
	// ErrText is the error of [Socket.Read] for a text message, which Read has
	// discarded. The socket stays open.
	ErrText = errors.New("text message on a binary websocket")
	// errTooLarge is for a message above [Config.MaxMessage]. Receiving such a
	// message ends the socket. Sending it fails, and the socket stays open.
	errTooLarge = errors.New("websocket message is too large")
	// errLaneClosed is for a Send on a closed lane.
	errLaneClosed = errors.New("lane is closed")
)

// Config has the options of a Socket. The zero value is usable.
type Config struct {
	PingInterval time.Duration // between pings, from the start on; 0 is 30 s
	// PongTimeout is the time in which a peer must answer a ping, and must accept
	// a write. Otherwise the socket ends. 0 is 60 s.
	PongTimeout time.Duration
	MaxMessage  int // bytes, in both directions; 0 is [MaxMessage]

	// Large bounds the number of sockets that hold a received message above 1 KiB at
	// once. The bound is the capacity of the channel, for all sockets that share the
	// channel. A socket takes a place when a message becomes that large, and waits if
	// no place is free. It frees the place with its next Read, or at its end. If the
	// message is not complete within messageTimeout after the socket got the place,
	// the socket ends. Nil: no bound.
	Large chan struct{}

	// Traffic counts the bytes that are sent and received; nil: they are not counted.
	Traffic *Traffic

	// Memory counts the buffers of received messages above 1 KiB, from the start of
	// their Read until the next Read. Before a socket takes another buffer, it waits
	// until the topmost parent of Memory has memory left. Nil: no bound.
	Memory *Budget

	// Only [Dial] uses the fields below.

	// TLS is for wss; nil verifies against the system's roots. Dial does not change it.
	TLS *tls.Config
	// DialContext replaces TCP and the proxies of the environment, if not nil.
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

// withDefaults sets the fields whose zero value stands for a default.
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

// Socket is one WebSocket. [Dial] and [Upgrade] make sockets, and their callers close
// them. Only one goroutine may call Read. Any number of goroutines may call the other
// methods concurrently.
//
// A socket ends by Close, by an error of the network, or by a violation of RFC 6455. It also
// ends if its peer does not answer a ping, or does not accept a write, within PongTimeout.
// The end unblocks all callers and releases every message that waits.
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
	err     error      // why the socket ended; nil before the end
	isLarge bool       // the message that is being read, or else the last one, has a place in large
	taken   int        // bytes that this message takes from memory
	since   time.Time  // when this message got its place; zero once it is complete
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

// fail ends the socket for the reason err. Only the first call has an effect.
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
	// An error of the close changes nothing: the connection is no longer used.
	_ = s.wire.shut()
	s.stopping.Done()
}

// Close ends the socket at once, without a close frame, and waits for its
// goroutines. Written messages still arrive. Messages that wait in lanes are
// discarded; see [Socket.Flush].
func (s *Socket) Close() error {
	s.fail(net.ErrClosed)
	s.stopping.Wait()
	return nil
}

// Done is closed when the socket has ended.
func (s *Socket) Done() <-chan struct{} { return s.done }

// Err returns the reason why the socket ended: net.ErrClosed after Close, nil before
// the end. The error repeats nothing that the peer sent, except for the code of a close frame.
func (s *Socket) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
