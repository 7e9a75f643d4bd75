package socket

import (
	"sync"
	"time"
)

// defaultLaneLimit is in bytes: two of the largest records of a stream.
const defaultLaneLimit = 128 << 10

// Lane is a queue of messages to one Socket. The frames of one lane keep their
// order, if one goroutine sends; a lane that waits for its turn delays no
// other. Lanes are light, and one that is no longer used needs no Close.
type Lane struct {
	socket *Socket
	limit  int

	// Socket.mu protects the rest.
	closed  bool
	budget  *Budget
	queue   []*Message // those before first have left
	first   int
	waiting int       // cost of the messages in queue, in bytes
	blocked int       // senders that wait for room
	room    sync.Cond // signalled for those senders
	next    *Lane     // in the list of lanes it is in, see scheduler
}

// NewLane returns a lane in which limit bytes of memory may wait before Send
// blocks, see [Message.Cost]; 0 or less stands for 128 KiB. The message that
// reaches the limit is still taken, so a lane holds at most limit bytes and one
// message.
func (s *Socket) NewLane(limit int) *Lane {
	if limit <= 0 {
		limit = defaultLaneLimit
	}
	l := &Lane{socket: s, limit: limit}
	l.room.L = &s.mu
	return l
}

// Share makes what waits in the lane count in b as well, until the network has
// taken it; the lane must be empty. While b is spent, an empty lane takes a message
// of up to 4 KiB, and no other lane takes any. A Send that waits for b alone looks
// every 100 ms whether there is room again.
func (l *Lane) Share(b *Budget) {
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	l.budget = b
}

// Send queues m, or writes it at once when nothing else is being written. It
// blocks while limit bytes of the lane wait. It takes over one hold on m,
// whatever it returns: errLaneClosed, errTooLarge, or the reason of the
// socket's end. No error does not mean that the peer got it.
func (l *Lane) Send(m *Message) error {
	s := l.socket
	if len(m.Bytes) > s.maxMessage {
		m.Release()
		return errTooLarge
	}
	s.mu.Lock()
	if err := l.waitForRoomLocked(m); err != nil {
		s.mu.Unlock()
		m.Release()
		return err
	}
	if !s.wire.tries() && !s.sched.writing && !s.sched.inBurst(m) {
		s.sched.writing = true
		s.mu.Unlock()
		return s.writeInline(m)
	}
	inline := l.dispatchLocked(m)
	s.mu.Unlock()
	if inline {
		s.tryInline(m)
	}
	return nil
}

// dispatchLocked queues m for the writer's goroutine; or it makes the caller the
// writer and tells it so with inline. The caller then unlocks, and writes with
// [Socket.tryInline] what the kernel takes of m at once: a sender waits in
// waitForRoomLocked only, never for a peer that does not read.
func (l *Lane) dispatchLocked(m *Message) (inline bool) {
	s := l.socket
	bulk := len(m.Bytes) > smallMessage
	if s.sched.writing || !s.wire.tries() || bulk && !s.client || s.sched.inBurst(m) {
		l.pushLocked(m)
		s.wakeWriterLocked()
		return false
	}
	s.sched.writing = true
	return true
}

// TrySend is Send without waiting, neither for room nor for the network: what the
// network does not take at once is left to another goroutine. TrySend reports false
// when the limit is reached, the message is too large, the lane is closed or the
// socket has ended. It takes over the hold on m in any case.
func (l *Lane) TrySend(m *Message) bool {
	s := l.socket
	s.mu.Lock()
	if l.refusalLocked() != nil || l.isFullLocked(m) || len(m.Bytes) > s.maxMessage {
		s.mu.Unlock()
		m.Release()
		return false
	}
	inline := l.dispatchLocked(m)
	s.mu.Unlock()
	if inline {
		s.tryInline(m)
	}
	return true
}

// Close makes every further Send fail, and those that wait for room. What the
// lane has taken still goes out.
func (l *Lane) Close() {
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	l.closed = true
	l.room.Broadcast()
}

// Waiting is how much memory the messages take that wait in the lane, in bytes.
func (l *Lane) Waiting() int {
	if l == nil {
		return 0
	}
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	return l.waiting
}

// Discard closes the lane, and throws away what waits in it.
func (l *Lane) Discard() {
	s := l.socket
	s.mu.Lock()
	defer s.mu.Unlock()
	l.closed = true
	if !l.isEmptyLocked() {
		s.sched.delist(l)
		for !l.isEmptyLocked() {
			l.popLocked().release()
		}
	}
	l.room.Broadcast()
}

// Locked means Socket.mu in the methods below.

// refusalLocked returns why the lane takes no message at all, or nil.
func (l *Lane) refusalLocked() error {
	if l.socket.err != nil {
		return l.socket.err
	}
	if l.closed {
		return errLaneClosed
	}
	return nil
}

// hasRoomLocked reports whether less than the lane's own limit waits in it.
func (l *Lane) hasRoomLocked() bool { return l.waiting < l.limit }

// isFullLocked reports whether the lane has no room for m, by its own limit or
// its budget's.
func (l *Lane) isFullLocked(m *Message) bool {
	return !l.hasRoomLocked() || l.budget.Spent() && (l.waiting > 0 || len(m.Bytes) > smallMessage)
}

// waitForRoomLocked waits until the lane has room for m. An error says why it will
// not take any message.
func (l *Lane) waitForRoomLocked(m *Message) error {
	if l.isFullLocked(m) || l.blocked > 0 { // senders that wait are not overtaken
		l.blocked++
		for waited := false; l.refusalLocked() == nil && (!waited || l.isFullLocked(m)); waited = true {
			l.awaitLocked()
		}
		l.blocked--
	}
	if err := l.refusalLocked(); err != nil {
		l.room.Broadcast()
		return err
	}
	if l.blocked > 0 && l.hasRoomLocked() {
		// The next sender that waits looks again once this message has found its
		// place.
		l.room.Signal()
	}
	return nil
}

// budgetRetry is the pause after which a lane that has room of its own looks again
// for room in its budget.
const budgetRetry = 100 * time.Millisecond

// awaitLocked waits until it is worth looking for room again. A lane whose budget
// is spent looks every budgetRetry: a budget wakes nobody, since thousands of lanes
// may wait for it when there is room for one.
func (l *Lane) awaitLocked() {
	if l.hasRoomLocked() {
		again := time.AfterFunc(budgetRetry, func() {
			l.socket.mu.Lock()
			defer l.socket.mu.Unlock()
			l.room.Broadcast()
		})
		defer again.Stop()
	}
	l.room.Wait()
}

// pushLocked appends m to the queue. If the queue was empty, the scheduler learns
// that the lane has something to send.
func (l *Lane) pushLocked(m *Message) {
	l.queue = append(l.queue, m)
	l.waiting += m.Cost()
	l.budget.Take(m.Cost())
	if len(l.queue)-l.first == 1 {
		l.socket.sched.enlist(l)
	}
}

// headLocked returns the message that goes out next; the queue must not be empty.
func (l *Lane) headLocked() *Message { return l.queue[l.first] }

// keptQueue is how many slots an empty queue keeps at most.
const keptQueue = 64

// popLocked takes the head out of the queue, which makes room in the lane. The
// message counts in the budget until it is released.
func (l *Lane) popLocked() outgoing {
	m := l.headLocked()
	l.queue[l.first] = nil
	l.first++
	switch {
	case l.first == len(l.queue) && cap(l.queue) > keptQueue:
		l.queue, l.first = nil, 0
	case l.first == len(l.queue):
		l.queue, l.first = l.queue[:0], 0
	case l.first >= keptQueue && 2*l.first >= len(l.queue):
		// The front half is spent: without this a lane that never runs empty
		// would grow for ever.
		n := copy(l.queue, l.queue[l.first:])
		clear(l.queue[n:])
		l.queue, l.first = l.queue[:n], 0
	}
	l.waiting -= m.Cost()
	if l.blocked > 0 && l.hasRoomLocked() {
		l.room.Signal()
	}
	return outgoing{m, l.budget}
}

func (l *Lane) isEmptyLocked() bool { return len(l.queue) == l.first }
