package socket

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/execagent/execagent/internal/buffer"
)

// wakeWriterLocked starts the writer's goroutine, unless some goroutine is the
// writer already.
func (s *Socket) wakeWriterLocked() {
	if !s.sched.writing && s.err == nil {
		s.sched.writing = true
		s.stopping.Go(s.drain)
	}
}

// drain is the writer's goroutine. It ends as soon as nothing waits.
func (s *Socket) drain() {
	// Goroutines that have a message ready queue it before this goroutine runs again. So
	// their messages share a system call.
	runtime.Gosched()
	var r round
	for {
		s.mu.Lock()
		if s.finishLocked() {
			s.mu.Unlock()
			return
		}
		s.sched.next(&r)
		if s.sched.out = r.cost(); s.sched.out > 0 {
			s.sched.outSince = time.Now()
		}
		s.mu.Unlock()
		err := s.writeRound(&r)
		r.release()
		if err != nil {
			s.fail(err)
		}
	}
}

// finishLocked gives up the role of the writer if nothing is left to write. It reports
// whether it has given up the role.
func (s *Socket) finishLocked() bool {
	if s.err == nil && !s.sched.isEmpty() {
		return false
	}
	s.sched.writing, s.sched.lastWrite, s.sched.out = false, time.Now(), 0
	if s.sched.idle != nil {
		close(s.sched.idle)
		s.sched.idle = nil
	}
	return true
}

// writeInline writes the sender's own message. Messages that others have queued
// meanwhile are left to the writer's goroutine.
func (s *Socket) writeInline(m *Message) error {
	err := s.writeMessage(m)
	m.Release()
	if err != nil {
		s.fail(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.finishLocked() {
		s.stopping.Go(s.drain)
	}
	if err != nil {
		return s.err
	}
	return nil
}

// tryInline writes as much of a sender's own message as the kernel accepts without waiting.
// The rest, and the messages that others have queued meanwhile, are left to the writer's
// goroutine.
func (s *Socket) tryInline(m *Message) {
	b := appendFrame(buffer.Get(maxHeader+len(m.Bytes)), binaryFrame, m.Bytes, s.client)
	m.Release()
	n, err := s.wire.tryWrite(b)
	s.wire.traffic.sent(n)
	if err != nil {
		s.fail(fmt.Errorf("writing: %w", err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || n == len(b) {
		buffer.Recycle(b)
	} else {
		s.sched.begun, s.sched.begunAt = b, n
	}
	if !s.finishLocked() {
		s.stopping.Go(s.drain)
	}
}

// writeRound writes a round of scheduler.next. Only the goroutine in the
// role of the writer may call writeRound, writeMessage and writeBytes.
func (s *Socket) writeRound(r *round) error {
	if r.begun != nil {
		err := s.writeBytes(r.begun[r.begunAt:], nil)
		buffer.Recycle(r.begun)
		return err
	}
	if r.bulk.Message != nil && len(r.small) == 0 && !r.ping && !r.pong {
		return s.writeMessage(r.bulk.Message)
	}
	size := r.size
	inPlace := r.bulk.Message != nil && s.wire.gathers && !s.client
	if inPlace {
		size -= len(r.bulk.Bytes)
	}
	b := buffer.Get(size)
	if r.pong {
		b = appendFrame(b, pongFrame, []byte(r.payload), s.client)
	}
	if r.ping {
		b = appendFrame(b, pingFrame, nil, s.client)
	}
	for _, m := range r.small {
		b = appendFrame(b, binaryFrame, m.Bytes, s.client)
	}
	var err error
	switch {
	case inPlace:
		b = appendHeader(b, binaryFrame, len(r.bulk.Bytes), false)
		err = s.writeBytes(b, r.bulk.Bytes)
	case r.bulk.Message != nil:
		b = appendFrame(b, binaryFrame, r.bulk.Bytes, s.client)
		err = s.writeBytes(b, nil)
	default:
		err = s.writeBytes(b, nil)
	}
	buffer.Recycle(b)
	return err
}

// writeMessage writes one message in one frame.
func (s *Socket) writeMessage(m *Message) error {
	if s.wire.gathers && !s.client && len(m.Bytes) > smallMessage {
		b := appendHeader(buffer.Get(maxHeader), binaryFrame, len(m.Bytes), false)
		err := s.writeBytes(b, m.Bytes)
		buffer.Recycle(b)
		return err
	}
	b := appendFrame(buffer.Get(maxHeader+len(m.Bytes)), binaryFrame, m.Bytes, s.client)
	err := s.writeBytes(b, nil)
	buffer.Recycle(b)
	return err
}

// writeBytes writes a and then b, in one system call if possible. b may be nil.
func (s *Socket) writeBytes(a, b []byte) error {
	// This fails on a closed connection only, on which the write fails too.
	_ = s.wire.Conn.SetWriteDeadline(time.Now().Add(s.patience))
	err := s.wire.write(a, b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("peer took no frame within %v: %w", s.patience, os.ErrDeadlineExceeded)
	}
	if err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}

// Flush waits until all messages in lanes have been written. It is for an
// orderly end, when nothing new is sent. The error is the cause of the context's end, or
// the reason of the socket's end.
func (s *Socket) Flush(ctx context.Context) error {
	for {
		s.mu.Lock()
		err, writing := s.err, s.sched.writing
		if err != nil || !writing {
			s.mu.Unlock()
			return err
		}
		if s.sched.idle == nil {
			s.sched.idle = make(chan struct{})
		}
		idle := s.sched.idle
		s.mu.Unlock()
		select {
		case <-idle:
		case <-s.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// dropWaitingLocked releases the messages in all lanes.
func (s *Socket) dropWaitingLocked() {
	for _, q := range []*laneList{&s.sched.small, &s.sched.bulk} {
		for q.first != nil {
			l := q.pop()
			for !l.isEmptyLocked() {
				l.popLocked().release()
			}
			l.room.Broadcast()
		}
	}
}
