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
	// handshake, counted from the opening of the websocket (remote.md 9).
	defaultHandshakePatience = 10 * time.Second
	// refusalPatience is how long handshakes are repeated after the executor
	// refused the first one.
	refusalPatience = 10 * time.Second
)

// Reasons why there is no connection to the executor.
var (
	errDataTooEarly = errors.New("data before the handshake was answered")
	errPeerReset    = errors.New("executor has ended the stream")
)

// Dialer is a harness: it connects to the executor of an environment through a
// registry (remote.md 9). Registry and Identity are required. Dial may run any
// number of times at once. After the first connection, all others must go to the
// same key (client.md 1.2), so that no other executor learns of a session.
type Dialer struct {
	// Registry returns the address and the key of the executor. It must outlive
	// the connections.
	Registry *Registry
	// Identity is the harness's key pair, one for the whole process.
	Identity *Identity
	// Logger logs losses and reconnects, but never a key, an authorization or a
	// signed URL. Nil discards.
	Logger *slog.Logger
	// Failed is called after each failed attempt of Dial that would be repeated, in the
	// goroutine of that Dial. If it returns true, Dial ends with this error. Nil: all are
	// repeated.
	Failed func(error) (enough bool)

	timing timing
	socket socket.Config

	mu           sync.Mutex      // guards what follows
	executor     *wire.PublicKey // pinned by the first connection; nil before that
	registration string          // of the last connection
}

// Same asks the registry, and reports whether the executor still has the registration and the key
// of the last connection of Dial. Before the first connection it returns false.
func (d *Dialer) Same(ctx context.Context) (bool, error) {
	now, err := d.Registry.connect(ctx, d.Identity.PublicKey())
	if err != nil {
		return false, fmt.Errorf("asking the registry for the executor: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.executor != nil && d.registration == now.RegistrationID && d.executor.Equal(now.ExecutorKey), nil
}

// Dial connects to the executor: it asks the registry, opens a new websocket and
// completes the handshake. After a temporary failure it starts over, from the
// question to the registry, until ctx ends: if the executor is offline, the
// registry or the rendezvous fails, or the websocket is lost. A handshake that the
// executor refuses, because it is busy or the harness may not connect, is repeated
// for 10 s. If the registry names another key than for an earlier connection, the
// failure is final, because the session is gone with its executor. A new Dialer
// connects to the other one. The connection outlives ctx.
//
// If the executor acknowledges (remote.md 8.1), a lost websocket is replaced
// within 30 s by another one to the same registration and key, and the caller
// notices only a delay. Otherwise the connection ends with its websocket. For up
// to a second, Close of the connection sends earlier writes and the reset that
// frees the executor's stream. Then it waits for its goroutines.
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

// again reports whether a failed attempt to connect may be repeated.
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
		_ = c.Close() // frees the stream; the error about another executor says more
		return nil, api.ErrExecutorChanged
	}
	return c, nil
}

// pin notes the executor of a connection. It returns false if an earlier connection went to another
// executor.
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

// connectAgain reports whether a failed attempt may be repeated: if the executor is
// offline, the registry or the rendezvous is busy or fails, or the network fails.
// Any other refusal by the registry is final. So is a refusal by the rendezvous,
// because the registry had just signed the URL, and the next URL would be refused
// too. Refusals by the executor are not decided here, see refusals.
func connectAgain(err error) bool {
	if refused, ok := errors.AsType[*socket.RefusedError](err); ok {
		// Status 410 means that another executor has registered since we asked
		// the registry.
		return refused.Status == http.StatusGone || api.Busy(refused.Status)
	}
	return api.ConnectAgain(err)
}

// Final reports whether the next attempt would fail with the same error of
// [Dialer.Dial]: the registry or the rendezvous refuses the harness, or the credential
// is useless. An error is not final if the network, a busy server or an absent executor
// may be the reason.
func Final(err error) bool {
	if errors.Is(err, errPeerReset) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	return !connectAgain(err)
}

// shakeHands sends the empty resume frame and the handshake that begin every stream,
// and waits for the executor's answer, which also says whether the executor
// acknowledges. If ctx ends or the time is over, it closes the websocket.
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

// readAnswer reads one frame. It returns no keys and no error if the frame was
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
