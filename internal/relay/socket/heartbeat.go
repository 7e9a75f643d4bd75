package socket

import (
	"errors"
	"fmt"
	"time"
)

// errNoPong is the error of a socket whose peer did not answer a ping in time.
var errNoPong = errors.New("peer did not answer a ping")

// heartbeat holds the pings of a socket; Socket.mu protects it.
type heartbeat struct {
	timer    *time.Timer
	interval time.Duration
	next     time.Time // when the next ping is due
	asked    time.Time // when the open ping was due; zero for none
}

func (s *Socket) startHeartbeat(interval time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.beat.interval = interval
	s.beat.next = time.Now().Add(interval)
	s.beat.timer = time.AfterFunc(interval, s.tick)
}

// tick is the timer's function. It pings every interval unless a ping is open, and
// ends a socket whose ping stays open for PongTimeout.
func (s *Socket) tick() {
	now := time.Now()
	s.mu.Lock()
	if s.err != nil {
		s.mu.Unlock()
		return
	}
	b := &s.beat
	switch expires := b.asked.Add(s.patience); {
	case b.asked.IsZero():
	case now.Before(expires):
	case !s.wire.waiting():
		// Our own reader does not read now, so the peer's answer may have come but be
		// unread. The timeout starts again.
		b.asked = now
	default:
		s.mu.Unlock()
		s.fail(fmt.Errorf("%w within %v", errNoPong, s.patience))
		return
	}
	if !now.Before(b.next) {
		for !now.Before(b.next) {
			b.next = b.next.Add(b.interval)
		}
		if b.asked.IsZero() {
			b.asked = now
			s.sched.pingDue = true
			s.wakeWriterLocked()
		}
	}
	wake := b.next
	if expires := b.asked.Add(s.patience); !b.asked.IsZero() && expires.Before(wake) {
		wake = expires
	}
	b.timer.Reset(wake.Sub(now))
	s.mu.Unlock()
}

// answerPing runs in the reader's goroutine. It leaves the pong to the writer, because the
// reader must not wait for a peer that does not read. If several pings come while a
// frame is being written, only the last ping is answered (RFC 6455, 5.5.3).
func (s *Socket) answerPing(payload string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.sched.pongDue, s.sched.pong = true, payload
		s.wakeWriterLocked()
	}
	return nil
}

// ponged accepts any pong as the answer, because our pings are empty and only one ping is
// open at a time.
func (s *Socket) ponged(string) error {
	s.mu.Lock()
	s.beat.asked = time.Time{}
	s.mu.Unlock()
	return nil
}
