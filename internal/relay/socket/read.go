package socket

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gorilla/websocket"

	"github.com/execagent/execagent/internal/buffer"
)

// Sizes of the buffers that a message is read into, in bytes. Most messages are small, most
// of the others are the largest record of a stream, and the rest may be [MaxMessage].
const (
	firstBuffer  = 1 << 10
	recordBuffer = 64 << 10
)

// Read returns the next binary message, which the caller releases. [ErrText]
// stands for a text message. After any other error the socket has ended, and
// every further Read returns that error. The error wraps io.EOF if the peer ended the
// connection.
//
// Only while Read runs, the socket answers pings and receives the answers to its own pings.
// A caller that slows the peer down by not reading should call Read again soon.
func (s *Socket) Read() (*Message, error) {
	s.mu.Lock()
	s.freeLargeLocked()
	err := s.err
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	m, err := s.readMessage()
	if err == nil || err == ErrText {
		return m, err
	}
	s.fail(explain(err))
	return nil, s.Err()
}

func (s *Socket) readMessage() (*Message, error) {
	kind, r, err := s.ws.NextReader()
	if err != nil {
		return nil, err
	}
	s.wire.used(maxHeader)
	if kind != websocket.BinaryMessage {
		if err := s.discard(r); err != nil {
			return nil, err
		}
		return nil, ErrText
	}
	b, err := s.readAll(r)
	if err != nil {
		buffer.Recycle(b)
		return nil, err
	}
	m := &Message{Bytes: b}
	m.holders.Store(1)
	return m, nil
}

// readAll reads a message into a pooled buffer, which it returns with an error too.
// gorilla does not report the length of a message, so the buffer grows as the message
// arrives, up to the largest size that is allowed.
func (s *Socket) readAll(r io.Reader) ([]byte, error) {
	b := buffer.Get(firstBuffer)
	for {
		space := b[len(b):cap(b)]
		switch {
		case len(b) == s.maxMessage:
			space = make([]byte, 1) // only io.EOF can follow, because newSocket has set the read limit
		case len(space) == 0:
			if cap(b) < recordBuffer && s.large != nil {
				if err := s.beginLarge(); err != nil {
					return b, err
				}
				// This fails on a closed connection only, on which the next read fails too.
				defer func() { _ = s.ws.SetReadDeadline(time.Time{}) }()
			}
			size := min(max(recordBuffer, 2*cap(b)), s.maxMessage)
			if err := s.takeMemory(size); err != nil {
				return b, err
			}
			b = moved(b, size)
			space = b[len(b):cap(b)]
		}
		n, err := r.Read(space)
		s.wire.used(n)
		b = b[:len(b)+n]
		if err == io.EOF {
			if cap(b) >= recordBuffer && len(b) < cap(b)/4 {
				// The message may wait in a queue that counts the length and not the
				// memory of a message.
				b = moved(b, len(b))
			}
			s.whole()
			return b, nil
		}
		if err != nil {
			return b, err
		}
	}
}

func (s *Socket) discard(r io.Reader) error {
	b := buffer.Get(readBuffer)
	defer buffer.Recycle(b)
	for {
		n, err := r.Read(b[:cap(b)])
		s.wire.used(n)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// beginLarge waits for a place in large, and takes it for the message that is being
// read.
func (s *Socket) beginLarge() error {
	select {
	case s.large <- struct{}{}:
	case <-s.done:
		return s.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.isLarge, s.since = true, time.Now()
	if s.err != nil {
		s.freeLargeLocked()
		return s.err
	}
	// This fails on a closed connection only, on which the next read fails too.
	_ = s.ws.SetReadDeadline(time.Now().Add(messageTimeout))
	return nil
}

// freeLargeLocked frees the place and the memory of the last message.
func (s *Socket) freeLargeLocked() {
	if s.isLarge {
		s.isLarge, s.since = false, time.Time{}
		<-s.large
	}
	s.memory.Give(s.taken)
	s.taken = 0
}

// memoryRetry is the pause after which a socket checks again for memory.
const memoryRetry = 20 * time.Millisecond

// takeMemory waits until memory is left, and then counts a total of n bytes for the message
// that is being read.
func (s *Socket) takeMemory(n int) error {
	for s.memory.rootSpent() {
		select {
		case <-time.After(memoryRetry):
		case <-s.done:
			return s.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.memory.Take(n - s.taken)
	s.taken = n
	return nil
}

// whole notes that the message is complete.
func (s *Socket) whole() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.since = time.Time{}
}

// Slow returns the memory of the messages, in bytes, whose transfer began before the time
// before and has not ended: a message above 1 KiB that is being read, and messages that are
// being written. since is the start of the oldest transfer. Without such messages bytes is 0.
func (s *Socket) Slow(before time.Time) (bytes int, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.since.IsZero() && s.since.Before(before) {
		bytes, since = s.taken, s.since
	}
	if out := s.sched.outSince; s.sched.out > 0 && out.Before(before) {
		bytes += s.sched.out
		if since.IsZero() || out.Before(since) {
			since = out
		}
	}
	return bytes, since
}

// moved moves b to a pooled buffer with room for n bytes, and recycles the old buffer.
func moved(b []byte, n int) []byte {
	other := append(buffer.Get(n), b...)
	buffer.Recycle(b)
	return other
}

// explain turns an error of gorilla into an error that describes the cause. For a close
// frame it repeats the code only, and not the text, because the peer chose the text.
func explain(err error) error {
	if errors.Is(err, websocket.ErrReadLimit) {
		return errTooLarge
	}
	if closed, ok := errors.AsType[*websocket.CloseError](err); ok {
		// This is how gorilla reports a connection that ends without a close frame.
		if closed.Code == websocket.CloseAbnormalClosure {
			return fmt.Errorf("peer is gone: %w", io.EOF)
		}
		return fmt.Errorf("peer closed with code %d: %w", closed.Code, io.EOF)
	}
	return fmt.Errorf("reading: %w", err)
}
