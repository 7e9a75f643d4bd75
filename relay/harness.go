package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/execagent/execagent/internal/relay/api"
	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/socket"
	"github.com/execagent/execagent/internal/relay/wire"
)

// The reasons for the end of a harness's connection.
var (
	errTextMessage    = errors.New("rendezvous sent a text message")
	errInvalidFrame   = errors.New("invalid frame for this stream")
	errHandshakeTwice = errors.New("second handshake message")
)

// harness is a connection to an executor: one stream, on one websocket after
// another.
type harness struct {
	*stream
	dialer       *Dialer
	log          *slog.Logger
	id           []byte
	registration string
	executor     *wire.PublicKey // pinned for the life of the connection

	cancel context.CancelFunc // ends run; called when the stream is over
	done   chan struct{}      // run has returned
}

// Close ends the connection, see [Dialer.Dial].
func (c *harness) Close() error {
	err := c.stream.Close()
	c.cancel()
	<-c.done
	return err
}

// run serves one websocket after another until the stream is over.
func (c *harness) run(ctx context.Context, s *socket.Socket, lane *socket.Lane) {
	defer close(c.done)
	defer c.cancel()
	c.dialer.Identity.Prepare()
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

// serve carries the stream over the websocket s. It returns when the websocket has
// ended (then lost is true) or when the stream is over. With resume, the stream had
// another websocket before and continues on this one.
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
		_ = s.Close() // the websocket is over, whatever Close says
	})
	if resume {
		c.stream.resume(lane.Send)
	}
	lost, err = c.read(s)
	if !lost && err != nil {
		cancel() // the goroutine above then sends the executor a reset
	} else {
		close(over)
	}
	wg.Wait()
	lane.Close()
	return lost && ctx.Err() == nil, err
}

// read serves the frames of a websocket. lost says that the websocket has ended.
// Otherwise the stream is over: without an error if the executor ended it, else
// because the executor or the rendezvous broke the rules.
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

// receive handles one message as remote.md 9 requires; it ignores frames of other
// streams. The stream has ended if over is true or there is an error.
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

// farewell sends the reset that frees the executor's stream, after all earlier
// writes.
func (c *harness) farewell(ctx context.Context, s *socket.Socket, lane *socket.Lane) {
	patience := orDefault(c.dialer.timing.farewell, defaultFarewell)
	limit := time.AfterFunc(patience, func() { _ = s.Close() })
	defer limit.Stop()
	if lane.Send(newReset(c.id)) == nil {
		flush(ctx, s, patience)
	}
}

// reconnect opens another websocket to the same registration of the same executor.
// It tries for up to 30 s; delay is the pause before the first attempt.
func (c *harness) reconnect(ctx context.Context, pace *backoff, delay time.Duration) (*socket.Socket, error) {
	ctx, cancel := context.WithTimeout(ctx, orDefault(c.dialer.timing.grace, defaultGrace))
	defer cancel()
	var last error
	for {
		if err := api.Sleep(ctx, delay); err != nil {
			if last != nil {
				err = fmt.Errorf("%w, after: %w", err, last)
			}
			return nil, err
		}
		answer, s, err := c.dialer.connect(ctx)
		if answer == nil && !connectAgain(err) {
			return nil, err
		}
		if answer != nil && (answer.RegistrationID != c.registration || !answer.ExecutorKey.Equal(c.executor)) {
			if s != nil {
				_ = s.Close()
			}
			return nil, api.ErrExecutorChanged
		}
		if err == nil {
			return s, nil
		}
		// Unlike in Dial, a refusal by the rendezvous is not final: each attempt
		// asks the registry again, and only the registry's refusal is final.
		last, delay = err, pace.next(true)
		c.log.Warn("connection to the rendezvous not made", "error", err, "delay", delay)
	}
}
