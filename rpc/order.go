package rpc

import (
	"context"
	"encoding/json"
	"hash/maphash"
	"slices"

	"github.com/execagent/execagent/protocol"
)

// Order says which other requests may run at the same time as a request (rpc.md
// 2.6). With the zero value all may, and the request runs as soon as there is a
// slot.
type Order struct {
	// Queue returns the name of the queue of a request with these params, "" for
	// none. Requests of one queue keep their order of arrival; requests of
	// different queues do not wait for each other. Nil: no queue.
	Queue func(params json.RawMessage) string
	// Shared requests of a queue run together if they are neighbours. An
	// exclusive request waits for all earlier ones and delays all later ones.
	Shared bool
	// Urgent requests need no slot, and in their queue they pass requests that
	// called [Block]. For example, they end something that other requests wait
	// for.
	Urgent bool
	// Inline requests run in the read loop itself: no later message is read
	// before they are done.
	Inline bool
	// Piece returns which piece of which stream a request with these params
	// carries. The piece is "" for a request that begins or ends the stream, and
	// the stream is "" if the params name none. Once a piece was refused because
	// too much waits, the stream takes only the refused pieces, in the order in
	// which they came first, so that no hole can arise. A request that begins or
	// ends the stream and succeeds makes it forget them. Nil: no stream.
	Piece func(params json.RawMessage) (stream, piece string)
}

// InQueue is a function for Order.Queue: one queue for all requests.
func InQueue(name string) func(json.RawMessage) string {
	return func(json.RawMessage) string { return name }
}

// Limits of one connection. Sizes are those of the messages, in bytes.
const (
	// From here on the peer stops reading. These bounds are low, because parked
	// requests may wait until the client reads its answers, and other connections
	// may wait for their memory.
	maxParked      = 64
	maxParkedBytes = 4 << 20
	maxHeldBytes   = 64 << 20 // of parked and running requests: the size of the largest message
	// From here on requests are refused. A [Budget] refuses them earlier, because
	// its own bound for waiting requests is lower.
	maxWaiting      = 1024
	maxWaitingBytes = 256 << 20
	// maxMissing is how many refused pieces of streams may be missing. A client
	// that sends on beyond that does not heed refusals, and loses its connection.
	maxMissing = 4096
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

// counted says against which limits a ticket counts.
type counted int

// Requests wait for one of two reasons. Parked requests wait for the peer
// itself, which soon gets to them: they make it stop reading. Waiting requests
// are blocked or left, or queued behind a blocked one. That can last long, so
// they must not stop the reading, and too many are refused.
const (
	outside counted = iota
	parked
	active  // runs in a slot
	passing // urgent, runs without a slot: bounded like parked ones
	waiting
	places
)

// tally counts the requests of one kind.
type tally struct{ requests, bytes int }

// ticket is one request on its way through the order.
type ticket struct {
	order     Order
	queue     string
	size      int // bytes of the message, held until it is served
	memory    int // of the message, in bytes
	state     state
	place     counted
	suspended bool  // its memory counts as waiting
	refused   error // why it must not be served; nil if it may be
	piece     piece
	lacked    []uint64 // what the stream lacked when this request, which begins or ends it, came
	failed    bool     // it was answered with an error
	start     func()
}

// piece is a piece of a stream, by hashes: of "" the name is 0, and without a
// stream both are 0.
type piece struct{ stream, name uint64 }

// pieceOf returns the piece that a request with these params carries.
func (o *Order) pieceOf(seed maphash.Seed, params json.RawMessage) (p piece) {
	if o.Piece == nil {
		return p
	}
	stream, name := o.Piece(params)
	if stream != "" {
		p.stream = maphash.String(seed, stream)
	}
	if stream != "" && name != "" {
		p.name = maphash.String(seed, name)
	}
	return p
}

// queue has the unfinished requests of one queue, in order of arrival.
type queue struct {
	tickets []*ticket
	queued  int // how many of them are queued
	blocked int // and blocked
}

// sequence decides which requests run. It is guarded by the peer's lock.
type sequence struct {
	slots  int // free ones
	queues map[string]*queue
	ready  []*ticket // waiting for a slot, in order
	at     [places]tally

	// missing has the refused pieces of each stream that lacks some, in order.
	missing map[uint64][]uint64
	lacks   int // how many there are

	intake *Intake // gets back the memory of their messages
}

// full reports whether reading should stop until requests have run.
func (s *sequence) full() bool {
	held := s.at[parked].bytes + s.at[active].bytes + s.at[passing].bytes
	return s.at[parked].requests+s.at[passing].requests >= maxParked || s.at[parked].bytes >= maxParkedBytes || held >= maxHeldBytes
}

// mayWait returns the reason why t may not become one more waiting request, or nil.
func (s *sequence) mayWait(t *ticket) error {
	if s.at[waiting].requests >= maxWaiting || s.at[waiting].bytes+t.size > maxWaitingBytes {
		return busy("too many requests of this connection wait (at most %d, of %d bytes together): send this one again later", maxWaiting, maxWaitingBytes)
	}
	return s.suspendMemory(t)
}

// suspendMemory counts the memory of t as waiting. A waiting request may hold its
// memory for long, so it must not count where a high count stops the reading of
// connections.
func (s *sequence) suspendMemory(t *ticket) error {
	if t.suspended {
		return nil
	}
	if !s.intake.suspend(t.memory) {
		return busy("no memory to let a request of %d bytes wait: send it again later", t.memory)
	}
	t.suspended = true
	return nil
}

// busy is the error of a request that was not carried out because too much waits,
// and that may be sent again (rpc.md 2.6).
func busy(format string, args ...any) *protocol.Error {
	e := protocol.InvalidRequest(format, args...)
	e.Data = []byte(`{"reason":"busy"}`)
	return e
}

var errMissing error = busy("an earlier request of the same stream was refused: first send that request again")

// lack notes that a piece was refused. It comes before the missing pieces of its
// stream if it came before them, else after them.
func (s *sequence) lack(p piece, before bool) {
	missing := s.missing[p.stream]
	if p.name == 0 || slices.Contains(missing, p.name) {
		return
	}
	at := len(missing)
	if before {
		at = 0
	}
	if s.missing == nil {
		s.missing = map[uint64][]uint64{}
	}
	s.missing[p.stream] = slices.Insert(missing, at, p.name)
	s.lacks++
}

// found notes that a piece was let in, which is the first missing one of its
// stream.
func (s *sequence) found(p piece) {
	s.lacks--
	if s.missing[p.stream] = s.missing[p.stream][1:]; len(s.missing[p.stream]) == 0 {
		delete(s.missing, p.stream)
	}
}

// settle ends a request that begins or ends a stream. The stream lacks nothing of what it lacked
// before, unless the request failed. Then pieces that wait behind it are refused.
func (s *sequence) settle(t *ticket) {
	s.lacks -= len(t.lacked)
	if !t.failed || len(t.lacked) == 0 {
		return
	}
	since := s.missing[t.piece.stream]
	s.lacks -= len(since)
	delete(s.missing, t.piece.stream)
	for _, name := range slices.Concat(t.lacked, since) {
		s.lack(piece{t.piece.stream, name}, false)
	}
	q := s.queues[t.queue]
	if q == nil {
		return
	}
	var behind []*ticket
	for _, next := range q.tickets[slices.Index(q.tickets, t)+1:] {
		if next.state == queued && next.piece.stream == t.piece.stream && next.piece.name != 0 {
			s.lack(next.piece, false)
			behind = append(behind, next)
		}
	}
	if len(behind) > 0 {
		s.refuse(q, behind[0], errMissing) // and with it the others
	}
}

// move counts t as another kind. (The tally of outside is unused.)
func (s *sequence) move(t *ticket, to counted) {
	s.at[t.place].requests--
	s.at[t.place].bytes -= t.size
	t.place = to
	s.at[to].requests++
	s.at[to].bytes += t.size
	if to != waiting && t.suspended {
		t.suspended = false
		s.intake.resume(t.memory)
	}
}

// release notes that the message of t is no longer held.
func (s *sequence) release(t *ticket) {
	if t.memory == 0 {
		return
	}
	s.intake.give(t.memory, t.suspended)
	s.at[t.place].bytes -= t.size
	t.size, t.memory, t.suspended = 0, 0, false
}

// enter accepts a new ticket, or refuses it because too many requests wait or
// because an earlier piece of its stream was refused.
func (s *sequence) enter(t *ticket) error {
	missing := s.missing[t.piece.stream]
	err := errMissing
	if t.piece.name == 0 || len(missing) == 0 || missing[0] == t.piece.name {
		err = s.admit(t)
	}
	if err != nil {
		s.lack(t.piece, false)
		return err
	}
	switch {
	case len(missing) == 0:
	case t.piece.name == 0:
		t.lacked = missing // for settle
		delete(s.missing, t.piece.stream)
	default:
		s.found(t.piece)
	}
	return nil
}

// admit accepts a new ticket, or refuses it because too many requests wait.
func (s *sequence) admit(t *ticket) error {
	s.move(t, parked)
	if t.queue == "" {
		t.state = ready
		s.ready = append(s.ready, t)
		return nil
	}
	q := s.queues[t.queue]
	if q == nil {
		q = &queue{}
		s.queues[t.queue] = q
	}
	q.tickets = append(q.tickets, t)
	q.queued++
	s.advance(q)
	if t.state != queued || q.blocked == 0 || t.order.Urgent {
		return nil
	}
	if err := s.mayWait(t); err != nil {
		s.move(t, outside)
		q.tickets = slices.Delete(q.tickets, len(q.tickets)-1, len(q.tickets))
		q.queued--
		return err
	}
	s.move(t, waiting)
	return nil
}

// advance makes tickets of a queue ready that no earlier ticket delays.
func (s *sequence) advance(q *queue) {
	if q.queued == 0 {
		return
	}
	shared := true // all earlier ones are shared
	stuck := true  // all earlier ones are blocked, or queued behind a blocked one
	for i, t := range q.tickets {
		turn := (i == 0 || t.order.Shared && shared) && !overtaken(t, q.tickets[i+1:])
		if t.state == queued && (turn || t.order.Urgent && stuck) {
			t.state = ready
			q.queued--
			s.move(t, parked)
			s.ready = append(s.ready, t)
		}
		shared = shared && t.order.Shared
		stuck = stuck && (t.state == blocked || t.state == queued)
		if !shared && !stuck {
			return
		}
	}
}

// overtaken reports whether an urgent request that passed t is under way and
// must not run together with t.
func overtaken(t *ticket, behind []*ticket) bool {
	if t.state != queued {
		return false
	}
	return slices.ContainsFunc(behind, func(b *ticket) bool {
		return (b.state == ready || b.state == running) && !(b.order.Shared && t.order.Shared)
	})
}

// next removes and returns a ticket that can start now, or nil.
func (s *sequence) next() *ticket {
	for i, t := range s.ready {
		if s.slots == 0 && !t.order.Urgent {
			continue
		}
		s.ready = slices.Delete(s.ready, i, i+1)
		t.state = running
		if t.order.Urgent {
			s.move(t, passing)
		} else {
			s.move(t, active)
			s.slots--
		}
		return t
	}
	return nil
}

// finish removes a ticket whose request was answered.
func (s *sequence) finish(t *ticket) {
	s.settle(t)
	s.vacate(t, outside)
	if t.state != left {
		s.dequeue(t)
	}
}

// vacate counts a ticket that no longer runs as another kind, and frees its slot.
func (s *sequence) vacate(t *ticket, to counted) {
	if t.place == active {
		s.slots++
	}
	s.move(t, to)
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

// setBlocked sets the number of blocked tickets of a queue: with the first one,
// tickets queued behind it become waiting; when none is left, they are parked
// again.
func (s *sequence) setBlocked(q *queue, n int) {
	was := q.blocked > 0
	q.blocked += n
	is := q.blocked > 0
	if was == is {
		return
	}
	for _, t := range slices.Clone(q.tickets) {
		if t.state != queued || t.order.Urgent { // or an earlier one was refused, and t with it
			continue
		}
		if !is {
			s.move(t, parked)
		} else if err := s.suspendMemory(t); err == nil {
			s.move(t, waiting)
		} else {
			s.refuse(q, t, err)
		}
	}
}

// refuse removes a queued ticket from its queue. The request starts at once, to
// answer with err.
func (s *sequence) refuse(q *queue, t *ticket, err error) {
	s.cutOff(q, t)
	i := slices.Index(q.tickets, t)
	q.tickets = slices.Delete(q.tickets, i, i+1)
	q.queued--
	t.queue, t.order.Urgent = "", true
	t.state, t.refused = ready, err
	s.ready = append(s.ready, t)
}

// cutOff notes that t is missing in its stream, and refuses the tickets of the
// queue that follow in the stream. The caller refuses t.
func (s *sequence) cutOff(q *queue, t *ticket) {
	if t.piece.name == 0 {
		return
	}
	for _, next := range q.tickets[slices.Index(q.tickets, t)+1:] {
		if next.state == queued && next.piece.name != 0 && next.piece.stream == t.piece.stream {
			s.refuse(q, next, errMissing) // and so on
			break
		}
	}
	s.lack(t.piece, true)
}

// suspend turns a running ticket into a waiting one.
func (s *sequence) suspend(t *ticket, to state) error {
	if t.state == blocked && to == left { // it already counts as waiting
		s.dequeue(t)
		t.state = left
		return nil
	}
	if t.state != running {
		return nil
	}
	if err := s.mayWait(t); err != nil {
		if q := s.queues[t.queue]; q != nil {
			s.cutOff(q, t)
		}
		return err
	}
	s.vacate(t, waiting)
	t.state = to
	if to == left {
		s.dequeue(t)
	} else if q := s.queues[t.queue]; q != nil {
		s.setBlocked(q, 1)
		s.advance(q)
	}
	return nil
}

// Leave says that this request will only wait from now on: it gives up its slot
// and its place in its queue, so that it delays nothing. It fails if too many
// requests of the connection already wait. It may come after [Block]. With
// strict order it is Block.
func Leave(ctx context.Context) error { return suspend(ctx, left) }

// Block is [Leave] for a request whose successors must still wait for it: it
// gives up only the slot, and only urgent requests may pass.
func Block(ctx context.Context) error { return suspend(ctx, blocked) }

func suspend(ctx context.Context, to state) error {
	r, ok := ctx.Value(requestKey{}).(*request)
	if !ok {
		return nil
	}
	return r.peer.suspend(&r.ticket, to)
}
