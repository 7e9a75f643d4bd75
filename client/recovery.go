package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/protocol"
)

const (
	// pause is between two attempts to connect again (client.md 2.2).
	pause = 100 * time.Millisecond
	// firstAttached is the first pause after the server has said that the session still
	// has a connection: it has not noticed the loss yet. Then it doubles, up to pause.
	firstAttached = 2 * time.Millisecond
	// settled is for how long a connection lives that nothing has happened on and that
	// was worth having all the same.
	settled = time.Second
	// catchers is how many processes are caught up at once.
	catchers = 32
)

// lost hears that the reader of l has ended. Only the loss of the installed
// connection changes anything: the attempt that opened another one sees for itself.
func (c *Client) lost(l *connection) {
	c.mu.Lock()
	l.gone = true
	if c.current != l || c.state != Connected {
		c.mu.Unlock()
		return
	}
	if c.cfg.Dial == nil || c.cfg.Single {
		c.mu.Unlock()
		c.fail(l.lost)
		return
	}
	c.recoverLocked(l)
	c.mu.Unlock()
}

// recoverLocked leaves the connection l and begins to look for another one.
func (c *Client) recoverLocked(l *connection) {
	c.setLocked(Recovering)
	c.routines.Go(func() { c.recover(l) })
}

// recover brings the session to a new connection, or the client to its end.
func (c *Client) recover(old *connection) {
	// From here on nobody but us delivers events: the old reader has ended.
	<-old.done
	old.starts.Wait()
	// A server that takes us back each time and drops us before anything has
	// happened does not get more time each time.
	wait := time.Duration(0)
	if old.useful.Load() || time.Since(old.installed) >= settled {
		c.deadline = time.Now().Add(c.cfg.RecoveryTimeout)
	} else {
		wait = pause
	}
	late := &recoveryTimeoutError{after: c.cfg.RecoveryTimeout}
	ctx, cancel := context.WithDeadlineCause(c.ctx, c.deadline, late)
	defer cancel()

	for {
		if err := sleep(ctx, wait); err != nil {
			c.giveUp(ctx, old, late)
			return
		}
		l, err := c.attempt(ctx, late)
		if err == nil && c.install(l) {
			return
		}
		c.mu.Lock()
		c.replacing = false // what was handed over has been tried
		c.mu.Unlock()
		wait = pause
		switch {
		case err == nil: // lost again before it was installed
		case ctx.Err() != nil:
			c.giveUp(ctx, old, late)
			return
		case !isLoss(err) && !Retryable(err):
			c.fail(&DisconnectedError{Err: old.lost.Err, Resume: err})
			return
		default:
			late.last = err
		}
	}
}

// giveUp fails the client because ctx has ended: too late, or closed.
func (c *Client) giveUp(ctx context.Context, old *connection, late *recoveryTimeoutError) {
	var resume error = late
	if cause := context.Cause(ctx); !errors.Is(cause, late) {
		resume = cause
	}
	c.fail(&DisconnectedError{Err: old.lost.Err, Resume: resume})
}

// sleep waits, or returns an error when ctx has ended.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// attempt opens a connection, resumes the session on it and catches up with every
// process.
func (c *Client) attempt(ctx context.Context, late *recoveryTimeoutError) (*connection, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	// Also who has caught up over the connection of an attempt that failed later has
	// missed something since.
	for _, p := range c.handles() {
		p.fallBehind()
	}
	// The reader runs before initialize is sent: the events of a busy process could
	// otherwise keep its answer away.
	l := c.open(conn)
	if err := c.rejoin(ctx, l, late); err != nil {
		l.close(err)
		return nil, err
	}
	// A server that stops answering in the middle must not hold us up.
	defer context.AfterFunc(ctx, l.abort)()
	if err := c.catchUp(ctx, l); err != nil {
		l.close(err)
		return nil, err
	}
	return l, nil
}

// rejoin resumes the session on l. While the server says that the session still has a
// connection, it is asked again on the same one: for some time, or for ever where there is
// no other (see [Accept]). A client that dials then does so again, as what the server sees
// may be another copy of this very connection, which some network has made.
func (c *Client) rejoin(ctx context.Context, l *connection, late *recoveryTimeoutError) error {
	for wait := firstAttached; ; wait = min(2*wait, pause) {
		err := c.initialize(ctx, l, c.sessionID)
		refused, ok := errors.AsType[*ServerError](err)
		if !ok || refused.Err.Code != protocol.CodeSessionAttached {
			return err
		}
		late.last = err
		if wait == pause && c.replacement == nil || sleep(ctx, wait) != nil {
			return err
		}
	}
}

// catchUp brings every process up to the present, over l. Its error is the loss of l:
// a process that cannot be brought up fails alone.
func (c *Client) catchUp(ctx context.Context, l *connection) error {
	var running sync.WaitGroup
	var mu sync.Mutex
	var lost error
	slots := make(chan struct{}, catchers)
	for _, p := range c.handles() {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			err := p.catchUp(ctx, l)
			switch {
			case err == nil:
			case isLoss(err) || ctx.Err() != nil:
				mu.Lock()
				lost = err
				mu.Unlock()
			default:
				p.abandon(&RecoverError{ProcessID: p.id, Err: err})
			}
		})
	}
	running.Wait()
	return lost
}

// install makes l the connection of the client, if it still lives.
func (c *Client) install(l *connection) bool {
	c.mu.Lock()
	if c.state == Recovering && !l.gone {
		c.installLocked(l)
		c.mu.Unlock()
		return true
	}
	c.mu.Unlock()
	l.close(ErrClosed)
	return false
}

func (c *Client) installLocked(l *connection) {
	l.installed = time.Now()
	c.current = l
	c.generation++
	c.replacing = false
	c.setLocked(Connected)
	for w := range c.watches {
		c.routines.Go(func() { w.resume(l) })
	}
	for _, s := range c.sockets {
		c.routines.Go(func() { s.resume(l) })
	}
}
