package socket

import (
	"sync"
	"time"
)

// defaultLaneLimit is the default limit of a lane, in bytes. It is the size of two of the
// largest records of a stream.
const defaultLaneLimit = 128 << 10

// Lane is a queue of messages to one Socket. The frames of one lane keep their
// order if only one goroutine sends. A lane that waits for its turn does not delay other
// lanes. Lanes are cheap, and an unused lane needs no Close.
type Lane struct {
	socket *Socket
	limit  int

	// Socket.mu protects the fields below.
	closed  bool
	budget  *Budget
	queue   []*Message // the elements before first are free
	first   int
	waiting int       // cost of the messages in queue, in bytes
	blocked int       // number of senders that wait for room
	room    sync.Cond // signalled for those senders
	next    *Lane     // in the scheduler's list that has this lane
}

// NewLane returns a lane in which messages of limit bytes of memory may wait before Send
// blocks; see [Message.Cost]. A limit of 0 or less stands for 128 KiB. The message that
// reaches the limit is still accepted. So a lane holds less than limit bytes and one
// more message.
func (s *Socket) NewLane(limit int) *Lane {
	if limit <= 0 {
		limit = defaultLaneLimit
	}
	l := &Lane{socket: s, limit: limit}
	l.room.L = &s.mu
	return l
}

// Share makes the messages of the lane count in b too, until they are written. The lane must
// be empty. While b is spent, an empty lane accepts one message of up to 4 KiB, and lanes
// that are not empty accept none. A Send that waits only for b checks every 100 ms whether
// there is room again.
func (l *Lane) Share(b *Budget) {
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	l.budget = b
}

// Send queues m, or writes m at once if nothing else is being written. It
// blocks while the lane is at its limit. It takes over one hold on m in any case. The error
// is errLaneClosed, errTooLarge, or the reason of the socket's end. A nil error does not mean
// that the peer has received m.
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

// dispatchLocked queues m for the writer's goroutine, or it makes the caller the
// writer and returns inline. The caller then unlocks, and calls [Socket.tryInline], which
// writes as much of m as the kernel accepts without waiting. So a sender waits only in
// waitForRoomLocked, and never for a peer that does not read.
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

// TrySend is Send without waiting for room or for the network. The bytes that the network
// does not accept at once are left to another goroutine. TrySend returns false if the lane
// or its budget is full, the message is too large, the lane is closed or the socket has
// ended. It takes over the hold on m in any case.
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

// Close makes every further Send fail, and every Send that waits for room. The messages
// in the lane are still sent.
func (l *Lane) Close() {
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	l.closed = true
	l.room.Broadcast()
}

// Waiting returns the memory of the messages that wait in the lane, in bytes.
func (l *Lane) Waiting() int {
	if l == nil {
		return 0
	}
	l.socket.mu.Lock()
	defer l.socket.mu.Unlock()
	return l.waiting
}

// Discard closes the lane, and discards the messages that wait in it.
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

// refusalLocked returns the reason why the lane accepts no message at all, or nil.
func (l *Lane) refusalLocked() error {
	if l.socket.err != nil {
		return l.socket.err
	}
	if l.closed {
		return errLaneClosed
	}
	return nil
}

// hasRoomLocked reports whether the lane is below its own limit.
func (l *Lane) hasRoomLocked() bool { return l.waiting < l.limit }

// isFullLocked reports whether the lane has no room for m, by its own limit or
// its budget's.
func (l *Lane) isFullLocked(m *Message) bool {
	return !l.hasRoomLocked() || l.budget.Spent() && (l.waiting > 0 || len(m.Bytes) > smallMessage)
}

// waitForRoomLocked waits until the lane has room for m. The error is the reason why the lane
// accepts no message at all.
func (l *Lane) waitForRoomLocked(m *Message) error {
	if l.isFullLocked(m) || l.blocked > 0 { // because senders that wait go first
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
		// The next waiting sender checks again once this message is queued or written.
		l.room.Signal()
	}
	return nil
}

// budgetRetry is the pause after which a lane that is below its own limit checks its budget
// again.
const budgetRetry = 100 * time.Millisecond

// awaitLocked waits until the caller should check for room again. A lane whose budget
// is spent checks every budgetRetry. A budget wakes no lanes, because thousands of lanes
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

// keptQueue is the largest capacity that an empty queue keeps, in messages.
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
		// The front half is free. Without this copy, the queue of a lane that never
		// runs empty would grow forever.
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
