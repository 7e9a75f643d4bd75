package rpc

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/execagent/execagent/protocol"
)

// Order says what a request may run beside (D8). The zero value runs beside
// everything, as soon as there is a slot.
type Order struct {
	// Queue names the queue that a request stands in, by its params; "" is
	// none. Requests of one queue keep their order of arrival; those of
	// different queues do not know each other. Nil: no queue.
	Queue func(params json.RawMessage) string
	// Shared requests of a queue run together when they are neighbours. An
	// exclusive one waits for all before it and holds all behind it.
	Shared bool
	// Urgent requests need no slot, and in their queue they pass requests
	// that called [Block]: what is stuck can still be ended.
	Urgent bool
	// Inline requests run in the read loop itself: nothing that was sent
	// after them is looked at before they are done.
	Inline bool
}

// InQueue is a function for Order.Queue: one queue for all requests.
func InQueue(name string) func(json.RawMessage) string {
	return func(json.RawMessage) string { return name }
}

// Limits of one connection. Sizes are those of the messages, in bytes.
const (
	// maxParked and maxParkedBytes: from here on the peer stops reading.
	maxParked      = 64
	maxParkedBytes = 256 << 20
	// maxWaiting and maxWaitingBytes: from here on requests are refused (D8).
	maxWaiting      = 1024
	maxWaitingBytes = 256 << 20
)

// state of a ticket.
type state int

const (
	queued  state = iota // behind others of its queue
	ready                // free to run, but without a slot
	running              // its handler runs
	blocked              // its handler waits, holding its place in the queue
	left                 // its handler waits, outside of any queue
)

// ticket is one request on its way through the order.
type ticket struct {
	order Order
	queue string
	size  int // bytes of the message, held until the answer
	state state
	slot  bool
	start func()
}

// queue is the requests of one queue that are not done, in order of arrival.
type queue struct {
	tickets []*ticket
	blocked int // how many of them are blocked
}

// sequence decides which requests run. It is guarded by the peer's lock.
type sequence struct {
	slots  int // free ones
	queues map[string]*queue
	ready  []*ticket // waiting for a slot, in order

	// Requests wait for two kinds of reason. Parked ones wait for the peer
	// itself, which soon gets to them: they make it stop reading. Waiting
	// ones are blocked or left, or queued behind one that is blocked: that
	// can last, so they must not stop the reading, and too many are refused.
	parked, parkedBytes   int
	waiting, waitingBytes int
}

// full tells whether reading should stop until parked requests have run.
func (s *sequence) full() bool { return s.parked >= maxParked || s.parkedBytes >= maxParkedBytes }

// enter takes a new ticket in.
func (s *sequence) enter(t *ticket) error {
	if t.queue == "" {
		s.park(t, 1)
		t.state = ready
		s.ready = append(s.ready, t)
		return nil
	}
	q := s.queues[t.queue]
	if q == nil {
		q = &queue{}
		s.queues[t.queue] = q
	}
	if q.blocked == 0 || t.order.Urgent {
		s.park(t, 1)
	} else if s.waiting >= maxWaiting || s.waitingBytes+t.size > maxWaitingBytes {
		return tooManyWaiting()
	} else {
		s.wait(t, 1)
	}
	q.tickets = append(q.tickets, t)
	s.advance(q)
	return nil
}

func tooManyWaiting() error {
	return protocol.InvalidRequest("too many requests of this connection are waiting, at most %d or %d bytes may",
		maxWaiting, maxWaitingBytes)
}

func (s *sequence) park(t *ticket, n int) { s.parked += n; s.parkedBytes += n * t.size }
func (s *sequence) wait(t *ticket, n int) { s.waiting += n; s.waitingBytes += n * t.size }

// advance makes those tickets of a queue ready that nothing before them holds.
func (s *sequence) advance(q *queue) {
	shared := true // all before are shared
	stuck := true  // all before are blocked, or queued behind one that is
	for i, t := range q.tickets {
		if t.state == queued && (i == 0 || t.order.Shared && shared || t.order.Urgent && stuck) {
			t.state = ready
			s.ready = append(s.ready, t)
		}
		shared = shared && t.order.Shared
		stuck = stuck && (t.state == blocked || t.state == queued)
		if !shared && !stuck {
			return
		}
	}
}

// next takes a ticket that can start now, nil when there is none.
func (s *sequence) next() *ticket {
	for i, t := range s.ready {
		if s.slots == 0 && !t.order.Urgent {
			continue
		}
		s.ready = slices.Delete(s.ready, i, i+1)
		s.park(t, -1)
		t.state = running
		if t.slot = !t.order.Urgent; t.slot {
			s.slots--
		}
		return t
	}
	return nil
}

// finish lets go of a ticket whose request has been answered.
func (s *sequence) finish(t *ticket) {
	if t.state == blocked || t.state == left {
		s.wait(t, -1)
	}
	s.freeSlot(t)
	if t.state != left {
		s.dequeue(t)
	}
}

func (s *sequence) freeSlot(t *ticket) {
	if t.slot {
		t.slot = false
		s.slots++
	}
}

func (s *sequence) dequeue(t *ticket) {
	q := s.queues[t.queue]
	if q == nil {
		return
	}
	if i := slices.Index(q.tickets, t); i >= 0 {
		q.tickets = slices.Delete(q.tickets, i, i+1)
	}
	if len(q.tickets) == 0 {
		delete(s.queues, t.queue)
		return
	}
	if t.state == blocked {
		s.setBlocked(q, -1)
	}
	s.advance(q)
}

// setBlocked counts the blocked tickets of a queue: with the first one, those
// that are queued behind it become waiting ones, with the last one they are
// parked again.
func (s *sequence) setBlocked(q *queue, n int) {
	was := q.blocked > 0
	q.blocked += n
	is := q.blocked > 0
	if was == is {
		return
	}
	for _, t := range q.tickets {
		if t.state != queued || t.order.Urgent {
			continue
		}
		if is {
			s.park(t, -1)
			s.wait(t, 1)
		} else {
			s.wait(t, -1)
			s.park(t, 1)
		}
	}
}

// suspend turns a running ticket into a waiting one.
func (s *sequence) suspend(t *ticket, to state) error {
	if t.state != running {
		return nil
	}
	if s.waiting >= maxWaiting || s.waitingBytes+t.size > maxWaitingBytes {
		return tooManyWaiting()
	}
	s.wait(t, 1)
	t.state = to
	s.freeSlot(t)
	if to == left {
		s.dequeue(t)
	} else if q := s.queues[t.queue]; q != nil {
		s.setBlocked(q, 1)
		s.advance(q)
	}
	return nil
}

// ticketKey is the context key of a request's ticket and peer.
type ticketKey struct{}

type ticketOf struct {
	peer   *Peer
	ticket *ticket
}

// Leave tells the order that this request will only wait from now on: it
// gives back its slot and its place in its queue, so that it delays nothing.
// It fails when too many requests of the connection wait already. With strict
// order it does nothing.
func Leave(ctx context.Context) error { return suspend(ctx, left) }

// Block is [Leave] for a request whose successors must still wait for it:
// only the slot is given back, and only urgent requests may pass.
func Block(ctx context.Context) error { return suspend(ctx, blocked) }

func suspend(ctx context.Context, to state) error {
	r, ok := ctx.Value(ticketKey{}).(ticketOf)
	if !ok {
		return nil
	}
	return r.peer.suspend(r.ticket, to)
}
