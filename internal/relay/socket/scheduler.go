package socket

import "time"

const (
	// smallMessage is the size, in bytes, up to which a message goes before bulk
	// messages.
	smallMessage = 4 << 10
	// batchSize bounds the small frames of one round, in bytes. So it bounds the small
	// frames that go before a bulk frame that waits.
	batchSize = 32 << 10
	// burstGap is the time after the end of a write within which another small message
	// counts as part of a burst. It is less than a round trip on the same machine.
	burstGap = 3 * time.Microsecond
)

// scheduler decides which messages are sent next. Socket.mu protects its fields, and
// callers of its methods must have locked Socket.mu.
type scheduler struct {
	writing bool // a goroutine has the role of the writer: it writes, or is about to check for more

	lastWrite time.Time // end of the last write

	small, bulk laneList // lanes with something to send, by the size of their next message

	out      int // cost of the messages in the round that is being written, in bytes
	outSince time.Time

	begun   []byte // a frame whose first begunAt bytes are written; nil if there is none
	begunAt int

	pingDue, pongDue bool
	pong             string // payload

	idle chan struct{} // closed when nothing is left to write; nil if no Flush waits
}

// laneList is a queue of lanes.
type laneList struct{ first, last *Lane }

func (q *laneList) push(l *Lane) {
	if q.first == nil {
		q.first = l
	} else {
		q.last.next = l
	}
	q.last = l
}

func (q *laneList) pop() *Lane {
	l := q.first
	q.first, l.next = l.next, nil
	return l
}

// remove takes a lane out of the list, if it is there.
func (q *laneList) remove(l *Lane) {
	var before *Lane
	for at := q.first; at != nil; before, at = at, at.next {
		if at != l {
			continue
		}
		if before == nil {
			q.first = l.next
		} else {
			before.next = l.next
		}
		if q.last == l {
			q.last = before
		}
		l.next = nil
		return
	}
}

// delist takes a lane out of the list that it is in.
func (c *scheduler) delist(l *Lane) {
	c.small.remove(l)
	c.bulk.remove(l)
}

// enlist puts a lane whose queue is not empty at the end of the list for its next
// message.
func (c *scheduler) enlist(l *Lane) {
	if len(l.headLocked().Bytes) <= smallMessage {
		c.small.push(l)
	} else {
		c.bulk.push(l)
	}
}

// outgoing is a message that was taken out of its lane.
type outgoing struct {
	*Message
	budget *Budget // the budget of the lane, in which the message counts until release
}

// release gives up a message that was written, or that will never be written.
func (o outgoing) release() {
	o.budget.Give(o.Cost())
	o.Release()
}

// take takes the next message of the first lane of q.
func (c *scheduler) take(q *laneList) outgoing {
	l := q.pop()
	m := l.popLocked()
	if !l.isEmptyLocked() {
		c.enlist(l)
	}
	return m
}

// inBurst reports whether m should wait for other messages and share a system call
// with them, though nothing is being written now. The reason is that pipelined requests have
// many small answers, and a system call for each answer costs more than all other work.
func (c *scheduler) inBurst(m *Message) bool {
	return len(m.Bytes) <= smallMessage && time.Since(c.lastWrite) < burstGap
}

func (c *scheduler) isEmpty() bool {
	return c.begun == nil && c.small.first == nil && c.bulk.first == nil && !c.pingDue && !c.pongDue
}

// round has the frames that are written together: control frames, small messages of all
// lanes that have one, and at most one bulk message. Or it has the rest of a frame.
type round struct {
	begun      []byte
	begunAt    int
	ping, pong bool
	payload    string // of the pong
	small      []outgoing
	bulk       outgoing // its Message is nil if there is none
	size       int      // upper bound for all frames together, in bytes
}

// next fills r with the next round.
func (c *scheduler) next(r *round) {
	clear(r.small)
	if c.begun != nil {
		*r = round{begun: c.begun, begunAt: c.begunAt, small: r.small[:0]}
		c.begun = nil
		return
	}
	*r = round{ping: c.pingDue, pong: c.pongDue, payload: c.pong, small: r.small[:0]}
	c.pingDue, c.pongDue, c.pong = false, false, ""
	r.size = 2*maxHeader + len(r.payload)
	for c.small.first != nil && r.size < batchSize {
		m := c.take(&c.small)
		r.small = append(r.small, m)
		r.size += maxHeader + len(m.Bytes)
	}
	if c.bulk.first != nil {
		r.bulk = c.take(&c.bulk)
		r.size += maxHeader + len(r.bulk.Bytes)
	}
}

// cost returns the memory that the messages of the round take, in bytes.
func (r *round) cost() (n int) {
	for _, m := range r.small {
		n += m.Cost()
	}
	if r.bulk.Message != nil {
		n += r.bulk.Cost()
	}
	return n
}

func (r *round) release() {
	for _, m := range r.small {
		m.release()
	}
	if r.bulk.Message != nil {
		r.bulk.release()
	}
}
