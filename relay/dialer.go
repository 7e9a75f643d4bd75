package relay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/rpc"
)

const (
	// defaultHandshakePatience is how long an executor may take to answer a
	// handshake, from the opening of the websocket on (remote.md 9).
	defaultHandshakePatience = 10 * time.Second
	// refusalPatience is for how long handshakes are repeated after the executor
	// has refused the first one.
	refusalPatience = 10 * time.Second
)

// Why there is no connection to the executor.
var (
	errDataTooEarly = errors.New("data before the handshake was answered")
	errPeerReset    = errors.New("executor has ended the stream")
)

// Dialer is a harness: it connects to the executor of an environment through a
// registry (remote.md 9). Registry and Identity are required. Dial may run any
// number of times at once. Once one has connected, all others are to the same key
// (client.md 1.2): whoever holds a session tells no other executor of it.
type Dialer struct {
	// Registry says where the executor is and which key it has. It has to
	// outlive the connections.
	Registry *Registry
	// Identity is the harness's key pair, one for the whole process.
	Identity *Identity
	// Logger gets losses and reconnects, never a key, an authorization or
	// a signed URL. Nil: nothing is logged.
	Logger *slog.Logger
	// Failed hears of each attempt of Dial that has failed and is to be repeated, from the
	// goroutine of that Dial. True ends Dial with this error. Nil: all are repeated.
	Failed func(error) (enough bool)

	timing timing
	socket socket.Config

	mu           sync.Mutex      // guards what follows
	executor     *wire.PublicKey // pinned by the first connection; nil before it
	registration string          // of the last one
}

// Same asks the registry whether the executor is still the one that the last connection of Dial
// was made to: its registration and its key. Without a connection it is not.
func (d *Dialer) Same(ctx context.Context) (bool, error) {
	now, err := d.Registry.connect(ctx, d.Identity.PublicKey())
	if err != nil {
		return false, fmt.Errorf("asking the registry for the executor: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.executor != nil && d.registration == now.RegistrationID && d.executor.Equal(now.ExecutorKey), nil
}

// Dial connects to the executor: it asks the registry, opens a websocket of its own
// and completes the handshake. After a failure that may pass it starts over, from
// the question to the registry, until ctx ends: the executor is offline, the
// registry or the rendezvous fails, the websocket is lost. A handshake that the
// executor refuses, since it is busy or the harness may not connect, is repeated
// for 10 s. That the registry names another key than for an earlier connection is
// final. The connection outlives ctx.
//
// When the executor acknowledges (remote.md 8.1), a lost websocket is replaced
// within 30 s by another one to the same registration and key, and the caller
// notices no more than a delay. Otherwise the connection ends with its websocket.
// Close of the connection sends what was written before and the reset that frees
// the executor's stream, for up to a second, and waits for its goroutines.
func (d *Dialer) Dial(ctx context.Context) (rpc.Conn, error) {
	var c *harness
	var refusals refusals
	again := func(err error) bool {
		return refusals.again(err) && (d.Failed == nil || !d.Failed(err))
	}
	err := api.Repeat(ctx, d.logger(), "connecting is repeated", again, func() (err error) {
		c, err = d.open(ctx)
		return err
	})
	if err != nil {
		return nil, err // not c: a nil *harness in an rpc.Conn is not equal to nil
	}
	return c, nil
}

// refusals notes when the executor refused a handshake for the first time;
// refusalPatience counts from then.
type refusals struct {
	first time.Time // zero: none yet
}

// again tells whether a failed attempt to connect may be repeated.
func (r *refusals) again(err error) bool {
	if !errors.Is(err, errPeerReset) {
		return connectAgain(err)
	}
	if r.first.IsZero() {
		r.first = time.Now()
	}
	return time.Since(r.first) < refusalPatience
}

func (d *Dialer) logger() *slog.Logger {
	log := cmp.Or(d.Logger, slog.New(slog.DiscardHandler))
	return log.With("environment", d.Registry.environmentID)
}

// open makes one attempt at a connection.
func (d *Dialer) open(ctx context.Context) (*harness, error) {
	answer, s, err := d.connect(ctx)
	if err != nil {
		return nil, err
	}
	id := uuid.NewString()
	c := &harness{
		dialer:       d,
		log:          d.logger().With("stream", id),
		id:           []byte(id),
		registration: answer.RegistrationID,
		executor:     answer.ExecutorKey,
		done:         make(chan struct{}),
	}
	lane := s.NewLane(0)
	keys, acknowledges, err := c.shakeHands(ctx, s, lane, answer.Authorization)
	if err != nil {
		_ = s.Close() // the handshake's error says more
		return nil, fmt.Errorf("handshake with the executor: %w", err)
	}
	// The connection outlives ctx, which bounds only the opening.
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	c.stream = newStream(streamConfig{
		id:           c.id,
		session:      keys,
		harness:      true,
		acknowledges: acknowledges,
		send:         lane.Send,
		ended:        func(*stream, error) { cancel() },
	})
	go c.run(running, s, lane)
	if !d.pin(c) {
		_ = c.Close() // frees the stream; that another executor answers says more
		return nil, errExecutorChanged
	}
	return c, nil
}

// pin notes the executor of a connection. It is false if an earlier one was to another.
func (d *Dialer) pin(c *harness) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.executor != nil && !d.executor.Equal(c.executor) {
		return false
	}
	d.executor, d.registration = c.executor, c.registration
	return true
}

// connect asks the registry for the address of a rendezvous, once, and opens a
// websocket to it.
func (d *Dialer) connect(ctx context.Context) (*connectAnswer, *socket.Socket, error) {
	answer, err := d.Registry.connect(ctx, d.Identity.PublicKey())
	if err != nil {
		return nil, nil, fmt.Errorf("asking the registry for the executor: %w", err)
	}
	s, err := d.Registry.dial(ctx, answer.URL, nil, d.socket)
	if err != nil {
		return answer, nil, fmt.Errorf("connecting to the rendezvous: %w", err)
	}
	return answer, s, nil
}

// connectAgain tells whether a failed attempt may be repeated: when the executor is
// offline, when the registry or the rendezvous is busy or fails, when the network
// fails. Any other refusal by the registry is final. So is one by the rendezvous: it
// was shown a URL that the registry had just signed, and the next one would fare no
// better. Refusals by the executor are not decided here, see refusals.
func connectAgain(err error) bool {
	if refused, ok := errors.AsType[*socket.RefusedError](err); ok {
		// Status 410 says that another executor has registered since the registry
		// was asked.
		return refused.Status == http.StatusGone || api.Busy(refused.Status)
	}
	return api.ConnectAgain(err)
}

// Final tells whether an error of [Dialer.Dial] would be that of the next attempt, too:
// the registry or the rendezvous refuses the harness, or the credential is of no use.
// What the network, a busy server or an executor that is away may be the reason for is
// not final.
func Final(err error) bool {
	if errors.Is(err, errPeerReset) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return !connectAgain(err)
}

// shakeHands sends the empty resume frame and the handshake that every stream begins
// with, and waits for the executor's answer, which also tells whether the executor
// acknowledges. When ctx ends or the time is over, the websocket is closed.
func (c *harness) shakeHands(ctx context.Context, s *socket.Socket, lane *socket.Lane, authorization string) (keys *noise.Session, acknowledges bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.dialer.timing.handshake, defaultHandshakePatience))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()

	where := noise.Prologue(c.dialer.Registry.environmentID, c.registration, c.id)
	i, message1, err := noise.Initiate(c.dialer.Identity, c.executor, where, []byte(authorization))
	if err != nil {
		return nil, false, err
	}
	defer i.Wipe()
	err = lane.Send(newFrame(&frame.Frame{StreamID: c.id, Body: frame.Resume}))
	if err == nil {
		err = lane.Send(newHandshake(c.id, message1))
	}
	if err != nil {
		err = &api.NetworkError{Cause: err}
	}
	for err == nil && keys == nil {
		keys, acknowledges, err = c.readAnswer(s, i)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return keys, acknowledges, err
}

// readAnswer reads one frame. It returns no keys and no error when the frame was
// not the executor's answer.
func (c *harness) readAnswer(s *socket.Socket, i *noise.Initiator) (keys *noise.Session, acknowledges bool, err error) {
	m, err := s.Read()
	if errors.Is(err, socket.ErrText) {
		return nil, false, errTextMessage
	}
	if err != nil {
		return nil, false, &api.NetworkError{Cause: err}
	}
	defer m.Release()
	var f frame.Frame
	invalid := frame.Decode(m.Bytes, &f)
	if !bytes.Equal(f.StreamID, c.id) {
		return nil, false, nil
	}
	switch {
	case invalid != nil:
		return nil, false, errInvalidFrame
	case f.Body == frame.Handshake:
		keys, err := i.Finish(f.Payload)
		return keys, f.Acknowledges(), err
	case f.Body == frame.Data:
		return nil, false, errDataTooEarly
	case f.Body == frame.Reset:
		return nil, false, fmt.Errorf("%w: reason %.64q", errPeerReset, f.Reason)
	}
	return nil, false, nil
}
