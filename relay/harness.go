package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
	"github.com/execagent/execagent/rpc"
)

// defaultHandshakePatience is how long an executor may take to answer the
// handshake, from the opening of the websocket on (remote.md 9).
const defaultHandshakePatience = 10 * time.Second

// What ends a harness's connection.
var (
	errTextMessage     = errors.New("rendezvous sent a text message")
	errInvalidFrame    = errors.New("invalid frame for this stream")
	errDataTooEarly    = errors.New("data before the handshake was answered")
	errHandshakeTwice  = errors.New("second handshake message")
	errExecutorChanged = errors.New("registry names another executor than before")
	errPeerReset       = errors.New("executor has ended the stream")
)

// Dialer is a harness: it connects to the executor of an environment through a
// registry (remote.md 9). Registry and Identity are required. Dial may run any
// number of times at once.
type Dialer struct {
	// Registry says where the executor is and which key it has. It has to
	// outlive the connections.
	Registry *Registry
	// Identity is the harness's key pair, one for the whole process.
	Identity *Identity
	// Logger gets losses and reconnects, never a key, an authorization or
	// a signed URL. Nil: nothing is logged.
	Logger *slog.Logger

	timing timing
	socket socket.Config
}

// Dial connects to the executor: it asks the registry, opens a websocket of its
// own and completes the handshake, which may take 10 s. All of it ends with ctx;
// the connection does not.
//
// A lost websocket is replaced when the executor acknowledges (D15), without
// the caller seeing more of it than a delay: by another one within 30 s, to
// the same registration and key. Otherwise the connection ends. Its Close sends
// what was written before and the reset that frees the executor's stream, for
// up to a second, and waits for its goroutines.
func (d *Dialer) Dial(ctx context.Context) (rpc.Conn, error) {
	connection, s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	c := &harness{
		dialer:       d,
		log:          d.Logger,
		id:           []byte(uuid.NewString()),
		registration: connection.RegistrationID,
		executor:     connection.ExecutorKey,
		done:         make(chan struct{}),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.log = c.log.With("environment", d.Registry.EnvironmentID(), "stream", string(c.id))
	lane := s.NewLane(0)
	keys, err := c.shakeHands(ctx, s, lane, connection.Authorization)
	if err != nil {
		_ = s.Close() // the handshake's error says more
		return nil, fmt.Errorf("handshake with the executor: %w", err)
	}
	// The connection outlives the context of its making.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.stream = newStream(streamConfig{
		id:      c.id,
		session: keys,
		harness: true,
		send:    lane.Send,
		ended:   func(*stream, error) { cancel() },
	})
	go c.run(running, s, lane)
	return c, nil
}

// connect gets the address of a rendezvous and opens a websocket to it.
func (d *Dialer) connect(ctx context.Context) (*Connection, *socket.Socket, error) {
	connection, err := d.Registry.Connect(ctx, d.Identity.PublicKey())
	if err != nil {
		return nil, nil, fmt.Errorf("asking the registry for the executor: %w", err)
	}
	s, err := d.Registry.dial(ctx, connection.URL, nil, d.socket)
	if err != nil {
		return connection, nil, fmt.Errorf("connecting to the rendezvous: %w", err)
	}
	return connection, s, nil
}

// harness is a connection to an executor: one stream, on one websocket after
// another.
type harness struct {
	*stream
	dialer       *Dialer
	log          *slog.Logger
	id           []byte
	registration string
	executor     *protocol.PublicKey // pinned for the life of the connection

	cancel context.CancelFunc // the stream is over
	done   chan struct{}      // run has returned
}

// Close ends the connection, see [Dialer.Dial].
func (c *harness) Close() error {
	err := c.stream.Close()
	c.cancel()
	<-c.done
	return err
}

// shakeHands sends both first frames and waits for the answer.
func (c *harness) shakeHands(ctx context.Context, s *socket.Socket, lane *socket.Lane, authorization string) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.dialer.timing.handshake, defaultHandshakePatience))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()

	where := prologue(c.dialer.Registry.EnvironmentID(), c.registration, c.id)
	i, message1, err := initiate(c.dialer.Identity, c.executor, where, []byte(authorization))
	if err != nil {
		return nil, err
	}
	defer i.wipe()
	err = lane.Send(newFrame(&frame.Frame{StreamID: c.id, Body: frame.Resume}))
	if err == nil {
		err = lane.Send(newFrame(&frame.Frame{StreamID: c.id, Body: frame.Handshake, Payload: message1}))
	}
	var keys *session
	for err == nil && keys == nil {
		keys, err = c.readAnswer(s, i)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return keys, err
}

// readAnswer reads one frame; it returns nothing when that was not the answer.
func (c *harness) readAnswer(s *socket.Socket, i *initiator) (*session, error) {
	m, err := s.Read()
	if errors.Is(err, socket.ErrText) {
		return nil, errTextMessage
	}
	if err != nil {
		return nil, err
	}
	defer m.Release()
	var f frame.Frame
	invalid := frame.Decode(m.Bytes, &f)
	if !bytes.Equal(f.StreamID, c.id) {
		return nil, nil
	}
	switch {
	case invalid != nil:
		return nil, errInvalidFrame
	case f.Body == frame.Handshake:
		return i.finish(f.Payload)
	case f.Body == frame.Data:
		return nil, errDataTooEarly
	case f.Body == frame.Reset:
		return nil, fmt.Errorf("%w: reason %.64q", errPeerReset, f.Reason)
	}
	return nil, nil
}

// run serves one websocket after another until the stream is over.
func (c *harness) run(ctx context.Context, s *socket.Socket, lane *socket.Lane) {
	defer close(c.done)
	defer c.cancel()
	c.dialer.Identity.prepare()
	pace := backoff{timing: c.dialer.timing}
	first := true
	for {
		pace.connected()
		lost, err := c.serve(ctx, s, lane, !first)
		first = false
		if !lost {
			c.stream.end(err)
			return
		}
		if !c.stream.suspend() {
			return
		}
		delay := pace.next(true)
		c.log.Warn("connection to the rendezvous lost", "error", err, "delay", delay)
		s, err = c.reconnect(ctx, &pace, delay)
		if err != nil {
			c.stream.end(fmt.Errorf("%w: %w", errNoWebsocket, err))
			if ctx.Err() == nil {
				c.log.Warn("connection ended", "error", err)
			}
			return
		}
		c.log.Info("connection to the rendezvous restored")
		lane = s.NewLane(0)
	}
}

// serve runs a websocket until it ends, then lost is true, or the stream is
// over.
func (c *harness) serve(ctx context.Context, s *socket.Socket, lane *socket.Lane, resume bool) (lost bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-ctx.Done():
			c.farewell(ctx, s, lane)
		case <-over:
		}
		_ = s.Close() // it is over whatever Close says
	})
	if resume {
		c.stream.resume(lane.Send)
	}
	lost, err = c.read(s)
	if !lost && err != nil {
		cancel() // the executor is told
	} else {
		close(over)
	}
	wg.Wait()
	lane.Close()
	return lost && ctx.Err() == nil, err
}

// read serves the frames of a websocket. It returns lost when that has ended,
// no error when the executor has ended the stream, and otherwise what the
// executor or the rendezvous may not do.
func (c *harness) read(s *socket.Socket) (lost bool, err error) {
	var f frame.Frame
	for {
		m, err := s.Read()
		if errors.Is(err, socket.ErrText) {
			return false, errTextMessage
		}
		if err != nil {
			return true, err
		}
		over, err := c.receive(m, &f)
		m.Release()
		if over || err != nil {
			return false, err
		}
	}
}

// receive applies the rules of remote.md 9 to one message.
func (c *harness) receive(m *socket.Message, f *frame.Frame) (over bool, err error) {
	invalid := frame.Decode(m.Bytes, f)
	if !bytes.Equal(f.StreamID, c.id) {
		return false, nil
	}
	switch {
	case invalid != nil:
		return true, errInvalidFrame
	case f.Body == frame.Reset:
		c.log.Debug("executor has ended the stream", "reason", label(f.Reason))
		return true, nil
	case f.Body == frame.Handshake:
		return true, errHandshakeTwice
	case f.Body == frame.Heartbeat:
		return false, nil
	}
	if err := c.stream.receive(f); err != nil {
		return false, err
	}
	c.stream.in.waitForRoom()
	return false, nil
}

// farewell sends the reset that frees the executor's stream, behind what was
// written before.
func (c *harness) farewell(ctx context.Context, s *socket.Socket, lane *socket.Lane) {
	patience := orDefault(c.dialer.timing.farewell, defaultFarewell)
	limit := time.AfterFunc(patience, func() { _ = s.Close() })
	defer limit.Stop()
	if lane.Send(newReset(c.id)) == nil {
		flush(ctx, s, patience)
	}
}

// reconnect gets another websocket, for up to 30 s.
func (c *harness) reconnect(ctx context.Context, pace *backoff, delay time.Duration) (*socket.Socket, error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.dialer.timing.grace, defaultGrace))
	defer cancel()
	for {
		if err := sleep(ctx, delay); err != nil {
			return nil, err
		}
		connection, s, err := c.dialer.connect(ctx)
		if connection == nil {
			return nil, err // what the registry is asked is retried there
		}
		if connection.RegistrationID != c.registration || !connection.ExecutorKey.Equal(c.executor) {
			if s != nil {
				_ = s.Close()
			}
			return nil, errExecutorChanged
		}
		if err == nil {
			return s, nil
		}
		delay = pace.next(true)
		c.log.Warn("connection to the rendezvous not made", "error", err, "delay", delay)
	}
}
