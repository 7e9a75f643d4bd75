package client

import (
	"context"
	"io"

	"github.com/execagent/execagent/protocol"
)

const (
	// maxIdle is how often in a row process/read may return nothing new although a
	// later event was announced.
	maxIdle = 3
	// idleWait is how long the server then waits for something new, in milliseconds.
	idleWait = 1000
)

// accept takes an event from the reader of a connection. If it is the next event,
// accept publishes it, and waits while the queue is full, so that in the end the
// server waits too. While the process is behind, accept never waits. It reports
// whether the event was published.
func (p *Process) accept(ctx context.Context, e Event) bool {
	p.mu.Lock()
	if p.deaf || e.Seq <= p.order.last {
		p.mu.Unlock()
		return false
	}
	if p.behind || e.Seq != p.order.last+1 {
		p.order.hold(e)
		if !p.behind {
			p.behind = true
			p.chaseLocked()
		}
		p.mu.Unlock()
		return false
	}
	p.noteLocked(e)
	p.mu.Unlock()

	// Nothing else publishes now, because the process is not behind and this is its reader.
	if e.Seq > p.from && !p.events.Put(ctx, e, len(e.Data)) {
		return false // the connection ends; the event is read again over the next one
	}
	p.mu.Lock()
	err := p.publishedLocked(e)
	p.mu.Unlock()
	p.settled(err)
	return true
}

// noteLocked notes how the process has ended before anybody can see the event.
func (p *Process) noteLocked(e Event) {
	if e.Kind == Exited && p.exit == nil {
		p.exit, p.ending = &e.ExitCode, e.Ending
	}
}

// publishedLocked notes that an event is in the queue.
func (p *Process) publishedLocked(e Event) error {
	if e.Kind == Exited && p.order.exited {
		return protocolErrorf("process %.256s has exited twice", p.id)
	}
	p.order.publish(e)
	return nil
}

// settled ends the handle after Closed, or because the server broke the rules.
func (p *Process) settled(err error) {
	p.mu.Lock()
	closed := p.order.closed
	p.mu.Unlock()
	switch {
	case err != nil:
		p.abandon(err)
	case closed:
		p.end(nil, io.EOF)
	}
}

// fallBehind notes that events may have been missed. From now on events are held,
// until catchUp has asked the server.
func (p *Process) fallBehind() {
	p.mu.Lock()
	p.behind = true
	p.mu.Unlock()
}

// doubt notes that the server may not know the process. believe ends the doubt: all
// events are asked for, from the first.
func (p *Process) doubt() {
	p.mu.Lock()
	p.unknown, p.behind = true, true
	p.mu.Unlock()
}

func (p *Process) believe() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unknown = false
	p.chaseLocked()
}

// catchUp asks the server over l for missed events, until none is missing. A process
// whose events are not taken stays behind, and chase continues later. Errors: the loss
// of l, a [ServerError], [GapError], [ProtocolError].
func (p *Process) catchUp(ctx context.Context, l *connection) error {
	p.catching.Lock()
	defer p.catching.Unlock()
	wait := uint64(0)
	for idle := 0; idle < maxIdle; {
		p.mu.Lock()
		if p.deaf || !p.behind || p.unknown {
			p.mu.Unlock()
			return nil
		}
		if p.events.Overfull() {
			p.chaseLocked()
			p.mu.Unlock()
			return nil
		}
		after := p.order.last
		p.mu.Unlock()

		var r protocol.ReadResult
		params := protocol.ReadParams{ProcessID: p.id, AfterSeq: &after, WaitMs: &wait}
		if err := l.call(ctx, protocol.MethodProcessRead, &params, &r); err != nil {
			return err
		}
		moved, err := p.take(&r)
		if err != nil {
			return err
		}
		if moved {
			idle, wait = 0, 0
			l.useful.Store(true)
		} else {
			idle++
			wait = idleWait
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.behind {
		return nil
	}
	return protocolErrorf("events after %d of the process were announced, and cannot be read", p.order.last)
}

// take publishes the events in the server's answer and the events that waited for
// them. It reports whether there were any.
func (p *Process) take(r *protocol.ReadResult) (moved bool, err error) {
	p.mu.Lock()
	if p.deaf {
		p.mu.Unlock()
		return false, nil
	}
	events, failure := p.order.merge(r)
	for i := 0; err == nil; i++ {
		var e Event
		if i < len(events) {
			e = events[i]
		} else {
			var ok bool
			if e, ok = p.order.next(); !ok || failure != nil {
				break
			}
		}
		p.noteLocked(e)
		if err = p.publishedLocked(e); err == nil && e.Seq > p.from {
			p.events.Push(e, len(e.Data))
		}
		moved = true
	}
	if err == nil {
		err = failure
	}
	if err == nil {
		p.behind = p.order.behind()
	}
	p.mu.Unlock()
	if err == nil {
		p.settled(nil)
	}
	return moved, err
}

// chaseLocked starts the goroutine that catches up with the process, unless it runs.
func (p *Process) chaseLocked() {
	if !p.chasing {
		p.chasing = p.client.begin(p.chase)
	}
}

// chase catches up as soon as the consumer has made room.
func (p *Process) chase() {
	c := p.client
	for {
		err := context.Cause(c.ctx)
		if err == nil && p.events.WaitForRoom(c.ctx) {
			var l *connection
			if l, err = c.connected(c.ctx); err == nil {
				err = p.catchUp(c.ctx, l)
			}
		}
		if isLoss(err) {
			err = nil // connected will wait, or return the reason
		}
		p.mu.Lock()
		if !p.behind || p.deaf || err != nil || c.ctx.Err() != nil {
			p.chasing = false
			deaf := p.deaf
			p.mu.Unlock()
			if err != nil && !deaf && c.ctx.Err() == nil {
				p.abandon(&RecoverError{ProcessID: p.id, Err: err})
			}
			return
		}
		p.mu.Unlock()
	}
}
