// Package duplex is a stream of bytes in both directions that continues over several connections.
// Each side counts the bytes that it has received, and tells the other side the count after a
// connection was lost.
package duplex

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/internal/buffer"
)

const (
	// maxUnsent bounds the written bytes that the server has not confirmed.
	maxUnsent = 1 << 20
	// ackDelay is how long a few read bytes may stay unacknowledged. A server that is short of
	// memory sends nothing more until it gets the acknowledgement.
	ackDelay = 10 * time.Millisecond
)

// Stream is one end of the stream. A caller reads and writes it, and goroutines carry the bytes on
// the current connection. Its methods may be called concurrently.
//
//	Write ► out ► Next, Sent, Confirm ► the server
//	Read  ◄ in  ◄ Accept,  AckDue     ◄ the server
//
// A turn is the time of one connection. Resume begins the next turn, and ends the calls that wait
// in the last one.
type Stream struct {
	window  uint64
	readers sync.Mutex // held while reading

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	turn    int
	halted  bool  // no bytes are carried until the next turn
	err     error // why the stream has ended

	pieces   [][]byte // received pieces that were not read, in order
	rest     []byte   // the unread part of the first piece
	received uint64
	consumed uint64 // bytes up to here were read
	acked    uint64 // the server knows that bytes up to here were read
	hasty    bool   // acknowledge the read bytes now
	unsure   bool   // the server may not have got the last acknowledgement
	slow     *time.Timer
	ended    error // the error that follows the received bytes; nil while more may come

	out       buffer.Backlog
	next      uint64 // bytes up to here are on their way
	confirmed uint64 // the server has bytes up to here
	eof       bool   // nothing more is written
	eofSent   bool
	eofTaken  bool  // the server has got the end
	refused   error // why nothing more can be written

	reading, writing deadline
}

// New makes a stream. The server sends at most window unacknowledged bytes. Written bytes are
// carried in pieces of up to pieceSize bytes.
func New(window uint64, pieceSize int) *Stream {
	s := &Stream{window: window, out: buffer.Backlog{PieceSize: pieceSize}}
	s.changed.L = &s.mu
	return s
}

// deadline is a time at which calls fail.
type deadline struct {
	timer  *time.Timer
	passed bool
}

func (s *Stream) setDeadline(t time.Time, ds ...*deadline) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	for _, d := range ds {
		if d.timer != nil {
			d.timer.Stop()
		}
		*d = deadline{}
		if t.IsZero() {
			continue
		}
		now := deadline{}
		now.timer = time.AfterFunc(time.Until(t), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if d.timer == now.timer {
				d.passed = true
				s.changed.Broadcast()
			}
		})
		*d = now
	}
	return nil
}

// SetDeadline sets the deadlines of Read and of Write.
func (s *Stream) SetDeadline(t time.Time) error { return s.setDeadline(t, &s.reading, &s.writing) }

// SetReadDeadline sets the time at which Read fails with [os.ErrDeadlineExceeded]; the zero time
// means never.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.setDeadline(t, &s.reading) }

// SetWriteDeadline does the same for Write.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(t, &s.writing) }

// Read waits for bytes. It ends with io.EOF, or with the reason why no more bytes come.
func (s *Stream) Read(p []byte) (n int, err error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.readers.Lock()
	defer s.readers.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.awaitBytesLocked(); err != nil {
		return 0, err
	}
	n = copy(p, s.rest)
	s.consumeLocked(n)
	return n, nil
}

// awaitBytesLocked waits until rest has bytes.
func (s *Stream) awaitBytesLocked() error {
	for {
		switch {
		case s.err != nil:
			return s.err
		case s.reading.passed:
			return os.ErrDeadlineExceeded
		case len(s.pieces) > 0:
			return nil
		case s.ended != nil:
			return s.ended
		}
		s.changed.Wait()
	}
}

// consumeLocked notes that n bytes of rest were read.
func (s *Stream) consumeLocked(n int) {
	s.rest = s.rest[n:]
	s.consumed += uint64(n)
	if len(s.rest) == 0 {
		queue.Recycle(s.pieces[0])
		s.pieces[0] = nil
		if s.pieces = s.pieces[1:]; len(s.pieces) > 0 {
			s.rest = s.pieces[0]
		} else {
			s.pieces = nil
		}
	}
	switch {
	case s.consumed-s.acked >= s.window/4:
		s.hasty = true
		s.changed.Broadcast()
	case s.slow == nil:
		s.slow = time.AfterFunc(ackDelay, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.slow, s.hasty = nil, true
			s.changed.Broadcast()
		})
	}
}

// WriteTo writes all bytes to w until the end.
func (s *Stream) WriteTo(w io.Writer) (n int64, err error) {
	s.readers.Lock()
	defer s.readers.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if err := s.awaitBytesLocked(); err == io.EOF {
			return n, nil
		} else if err != nil {
			return n, err
		}
		bytes := s.rest
		s.mu.Unlock()
		m, err := w.Write(bytes)
		s.mu.Lock()
		if s.err != nil {
			return n, s.err
		}
		s.consumeLocked(m)
		n += int64(m)
		if err != nil {
			return n, err
		}
	}
}

// Write queues bytes for the server. It waits while maxUnsent written bytes are not confirmed.
func (s *Stream) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(p) > 0 {
		room := maxUnsent - (s.out.End() - s.confirmed)
		switch {
		case s.err != nil:
			return n, s.err
		case s.refused != nil:
			return n, s.refused
		case s.eof:
			return n, errors.New("write after the end of the input")
		case s.writing.passed:
			return n, os.ErrDeadlineExceeded
		case room == 0:
			s.changed.Wait()
			continue
		}
		space := s.out.Space()
		m := copy(space[:min(uint64(len(space)), room)], p)
		s.out.Filled(m)
		s.changed.Broadcast()
		n += m
		p = p[m:]
	}
	return n, s.err
}

// CloseWrite marks the end of the written bytes.
func (s *Stream) CloseWrite() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.eof = true
	s.changed.Broadcast()
	return nil
}

// Flush waits until the server has received all written bytes, or accepts no more, or until
// patience is over.
func (s *Stream) Flush(patience time.Duration) {
	late := false
	timer := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer timer.Stop()
	s.mu.Lock()
	defer s.mu.Unlock()
	for !late && s.err == nil && s.refused == nil && (s.confirmed < s.out.End() || s.eof && !s.eofTaken) {
		s.changed.Wait()
	}
}

// Fail ends the stream with an error. It returns false if the stream has ended before.
func (s *Stream) Fail(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return false
	}
	s.err = err
	for _, d := range []*deadline{&s.reading, &s.writing} {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
	if s.slow != nil {
		s.slow.Stop()
	}
	s.changed.Broadcast()
	return true
}

// Err returns why the stream has ended, or nil if it has not ended.
func (s *Stream) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Received returns how many bytes have been received.
func (s *Stream) Received() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received
}

// Resume begins the next turn. The server has received this many bytes. It sends again all bytes
// that have not been received here.
func (s *Stream) Resume(received uint64) (turn int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.confirmLocked(received, s.out.End()); err != nil {
		return 0, err
	}
	s.turn++
	s.halted = false
	s.next, s.eofSent, s.unsure = received, false, true
	s.changed.Broadcast()
	return s.turn, nil
}

// Halt stops carrying bytes in a turn.
func (s *Stream) Halt(turn int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turn == turn {
		s.halted = true
		s.changed.Broadcast()
	}
}

// Out is a piece of the written bytes.
type Out struct {
	Offset uint64
	Bytes  []byte
	EOF    bool
}

// Next waits for bytes that are not on their way yet, or for the end, and returns most bytes or
// fewer. The caller must call [Stream.Sent] afterwards, and the bytes stay valid until then. ok is
// false if the turn is over, or if nothing more follows.
func (s *Stream) Next(turn, most int) (o Out, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil || s.turn != turn || s.halted || s.refused != nil || s.eofSent:
			return o, false
		case s.next < s.out.End():
			o.Offset, o.Bytes = s.next, s.out.Borrow(s.next, most)
			s.next += uint64(len(o.Bytes))
			o.EOF = s.eof && s.next == s.out.End()
			s.eofSent = o.EOF
			return o, true
		case s.eof:
			s.eofSent = true
			return Out{Offset: s.next, EOF: true}, true
		}
		s.changed.Wait()
	}
}

// Sent ends the use of the bytes that Next has returned.
func (s *Stream) Sent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out.Return()
}

// Confirm notes that the server has taken a piece, and has received this many bytes in total.
func (s *Stream) Confirm(received uint64, o Out) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.EOF {
		s.eofTaken = true
	}
	if received < o.Offset+uint64(len(o.Bytes)) {
		return fmt.Errorf("the server has received %d bytes, and has taken those up to %d", received, o.Offset+uint64(len(o.Bytes)))
	}
	return s.confirmLocked(received, s.next)
}

func (s *Stream) confirmLocked(received, most uint64) error {
	if received < s.confirmed || received > most {
		return fmt.Errorf("the server has received %d bytes of %d to %d", received, s.confirmed, most)
	}
	s.confirmed = received
	s.out.Drop(received)
	s.changed.Broadcast()
	return nil
}

// Refuse notes that the server accepts no more bytes.
func (s *Stream) Refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refused = err
	s.changed.Broadcast()
}

// Accept takes received bytes, which begin at offset. end is the error that follows them, or nil if
// more may come. Bytes that were received before are skipped. The error of Accept says that the
// server breaks the protocol.
func (s *Stream) Accept(offset uint64, bytes []byte, end error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if offset > s.received {
		return fmt.Errorf("bytes from %d on have come, after %d", offset, s.received)
	}
	bytes = bytes[min(s.received-offset, uint64(len(bytes))):]
	switch {
	case s.err != nil:
		return nil
	case len(bytes) > 0 && s.ended != nil:
		return errors.New("bytes have come behind the end")
	case s.received+uint64(len(bytes)) > s.acked+s.window:
		return fmt.Errorf("more than %d bytes have come that were not acknowledged", s.window)
	}
	if len(bytes) > 0 {
		s.pieces = append(s.pieces, queue.Keep(bytes))
		if len(s.pieces) == 1 {
			s.rest = s.pieces[0]
		}
		s.received += uint64(len(bytes))
	}
	if s.ended == nil {
		s.ended = end
	}
	s.changed.Broadcast()
	return nil
}

// AckDue waits until the server should be told how many bytes were read, and returns this number.
// ok is false if the turn is over.
func (s *Stream) AckDue(turn int) (received uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		switch {
		case s.err != nil || s.turn != turn || s.halted:
			return 0, false
		case s.hasty && s.consumed > s.acked || s.unsure && s.consumed > 0:
			// The server may send more bytes as soon as it gets this acknowledgement, so acked is
			// set before.
			s.hasty, s.unsure, s.acked = false, false, s.consumed
			return s.acked, true
		}
		s.changed.Wait()
	}
}
