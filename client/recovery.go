package client

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/execagent/execagent/protocol"
)

const (
	// pause is the time between two attempts to reconnect (client.md 2.2).
	pause = 100 * time.Millisecond
	// firstAttached is the first pause after the server said that the session still has
	// a connection, because the server has not noticed the loss yet. The pause then
	// doubles, up to pause.
	firstAttached = 2 * time.Millisecond
	// settled is how long a connection must live to count as useful although nothing
	// happened on it.
	settled = time.Second
	// catchers is how many processes are caught up at once.
	catchers = 32
)

// lost is called when the reader of l has ended. Only the loss of the installed
// connection changes anything: an attempt with another connection notices by
// itself.
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

// recoverLocked gives up the connection l and starts a recovery.
func (c *Client) recoverLocked(l *connection) {
	c.setLocked(Recovering)
	c.routines.Go(func() { c.recover(l) })
}

// recover moves the session to a new connection, or ends the client.
func (c *Client) recover(old *connection) {
	// From here on only this goroutine delivers events, because the old reader has ended.
	<-old.done
	old.starts.Wait()
	// A server that accepts each new connection and drops it before anything
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
		c.replacing = false // the connection from Replace was tried
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

// sleep waits for d, or returns an error if ctx ends first.
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
	// A process that caught up over the connection of an earlier, failed attempt has
	// also missed events since then.
	for _, p := range c.handles() {
		p.fallBehind()
	}
	// The reader runs before initialize is sent. Otherwise the events of a busy
	// process could block the answer.
	l := c.open(conn)
	if err := c.rejoin(ctx, l, late); err != nil {
		l.close(err)
		return nil, err
	}
	// A server that stops answering must not block this attempt.
	defer context.AfterFunc(ctx, l.abort)()
	if err := c.catchUp(ctx, l); err != nil {
		l.close(err)
		return nil, err
	}
	return l, nil
}

// rejoin resumes the session on l. While the server says that the session still has a
// connection, rejoin asks again on the same connection: for some time, or for ever if no
// other connection can come (see [Accept]). A client that dials then dials again, because
// a network may have duplicated this very connection, and the server may see the copy.
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

// catchUp gets the missed events of every process, over l. Its error is the loss of
// l: a process that cannot catch up fails alone.
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

// install makes l the connection of the client, if l still lives.
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
