package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/protocol"
)

// maxAbandoned is how many of our own calls may be abandoned without an answer
// before a connection counts as broken.
const maxAbandoned = 1024

// ErrClosed is the error of calls after the connection has ended.
var ErrClosed = errors.New("connection closed")

// ErrUnanswered is the error of a call whose answer had not come when the
// connection ended: the other side may or may not have acted on it.
var ErrUnanswered = fmt.Errorf("%w before the answer came", ErrClosed)

// answer is the answer to a call of ours, with its memory.
type answer struct {
	message protocol.Message
	data    []byte // what message is sliced from
	intake  *Intake
}

// Call sends a request and waits for its answer. The result is read into result: by
// its own UnmarshalObject, else by encoding/json; nil drops it. An error answer is
// a *protocol.Error. After the end of the connection, the error is [ErrClosed], or
// [ErrUnanswered] for a call that was already sent. Serve must be running.
func (p *Peer) Call(ctx context.Context, method string, params, result any) error {
	call, err := p.Begin(method, params)
	if err != nil {
		return err
	}
	return call.Wait(ctx, result)
}

// Pending is a sent call. The caller must call Wait once.
type Pending struct {
	peer   *Peer
	id     int64
	answer chan answer
}

// Begin is the first half of [Peer.Call]: it returns when the request is sent. So
// a caller can send several requests in order, before the first of them is
// answered.
func (p *Peer) Begin(method string, params any) (*Pending, error) {
	call := make(chan answer, 1)
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, ErrClosed
	}
	p.lastID++
	id := p.lastID
	p.calls[id] = call
	p.mu.Unlock()

	buf, err := protocol.AppendRequest(bufferFor(params), protocol.NumberID(id), method, params)
	if err == nil {
		err = p.write(buf)
	}
	buffer.Recycle(buf)
	if err != nil {
		p.mu.Lock()
		delete(p.calls, id)
		p.mu.Unlock()
		return nil, err
	}
	return &Pending{p, id, call}, nil
}

// Wait is the second half: it waits for the answer.
func (c *Pending) Wait(ctx context.Context, result any) error {
	select {
	case a, ok := <-c.answer:
		if !ok {
			return ErrUnanswered
		}
		return a.read(result)
	case <-ctx.Done():
		c.peer.abandon(c.id)
		select {
		case a, ok := <-c.answer: // it has come in the meantime
			if ok {
				a.intake.Recycle(a.data)
			}
		default:
		}
		return context.Cause(ctx)
	}
}

// abandon gives up a call whose answer may still come, and will then be dropped. A
// peer that owes too many such answers is broken: the connection ends.
func (p *Peer) abandon(id int64) {
	p.mu.Lock()
	_, open := p.calls[id]
	switch {
	case open && p.cfg.Forgets:
		delete(p.calls, id)
	case open:
		p.calls[id] = nil
		p.abandoned++
	}
	broken := p.abandoned > maxAbandoned
	p.mu.Unlock()
	if broken {
		p.Close()
	}
}

// answered delivers an answer. An unexpected answer is fatal (rpc.md 2.5), unless this peer forgets
// its calls (network.md 10, L19).
func (p *Peer) answered(m protocol.Message, data []byte) error {
	id, ok := m.ID.Number()
	p.mu.Lock()
	call, known := p.calls[id]
	delete(p.calls, id)
	if known && call == nil {
		p.abandoned--
	}
	if call != nil {
		call <- answer{m, data, p.intake} // there is room
	}
	ignore := p.cfg.Forgets && p.lastID > 0
	p.mu.Unlock()
	if call == nil {
		p.intake.Recycle(data)
	}
	if (!ok || !known) && !ignore {
		return protocol.InvalidRequest("unsolicited answer with id %.64s", m.ID)
	}
	return nil
}

func (a *answer) read(result any) error {
	defer a.intake.Recycle(a.data)
	if a.message.Kind == protocol.KindError {
		return a.message.Error
	}
	switch r := result.(type) {
	case nil:
		return nil
	case strictjson.Unmarshaler:
		// Only the text of err: callers take a *protocol.Error for an error answer.
		if err := protocol.UnmarshalParams(a.message.Result, r); err != nil {
			return errors.New("decoding the result: " + err.Error())
		}
		return nil
	default:
		if err := json.Unmarshal(a.message.Result, r); err != nil {
			return fmt.Errorf("decoding the result: %w", err)
		}
		return nil
	}
}
