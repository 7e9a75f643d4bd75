package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/buffer"
)

// Conn is a connection that can be closed in one direction: *net.TCPConn and *net.UnixConn.
type Conn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// Sink takes what has come from the other end of a socket, in order. It may block.
// The bytes are its own only until it returns. After an error it gets nothing more.
type Sink func(Data) error

// Data is what has come. Offset is how many bytes came before.
type Data struct {
	Offset uint64
	Bytes  []byte
	// End is io.EOF when nothing more comes, or why nothing more can be read.
	End error
}

// Errors of a [Socket].
var (
	// ErrClosed: the socket was closed here.
	ErrClosed = errors.New("the socket is closed")
	// ErrInputEnded: bytes are written after the end.
	ErrInputEnded = errors.New("bytes after the end of what is written")
)

// GapError says that a write does not begin where the last one ended, or before that.
type GapError struct{ Offset, Received uint64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("%d is beyond the %d bytes that have come", e.Offset, e.Received)
}

// ReceivedError says that somebody acknowledges what was not sent, or wants to go on at what was
// dropped.
type ReceivedError struct{ Received, From, To uint64 }

func (e *ReceivedError) Error() string {
	return fmt.Sprintf("%d is not between %d and %d", e.Received, e.From, e.To)
}

// Socket is one connection. Its methods may be called at once.
type Socket struct {
	conn   Conn
	raw    syscall.RawConn
	window uint64

	mu      sync.Mutex // guards what follows
	changed sync.Cond
	kept    buffer.Backlog // what has come
	acked   uint64         // up to here it counts no longer for the window
	dropped uint64         // up to here nobody wants it again
	sent    uint64         // up to here it was given to the sink
	filling bool           // the goroutine that reads has space of kept
	end     error          // what follows the last byte; nil while more may come
	told    bool           // the sink knows the end
	turn    int            // how often Rewind was called
	sink    Sink           // nil: nobody takes anything
	closed  bool

	writing chan struct{} // holds an element while somebody writes, who has what follows
	written uint64
	ended   bool  // nothing more may be written
	failed  error // why nothing more can be written

	running sync.WaitGroup
}

func newSocket(conn Conn, window uint64, budget *Budget) (*Socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Socket{conn: conn, raw: raw, window: window, writing: make(chan struct{}, 1)}
	s.kept = buffer.Backlog{
		PieceSize: pieceSize,
		Take:      func() bool { return budget.take(pieceSize) },
		Give:      func() { budget.give(pieceSize) },
	}
	s.changed.L = &s.mu
	s.running.Go(s.read)
	s.running.Go(s.tell)
	return s, nil
}

// read reads while there is room.
func (s *Socket) read() {
	for s.awaitRoom() {
		if err := s.readOnce(); err != nil {
			s.mu.Lock()
			s.end = err
			s.changed.Broadcast()
			s.mu.Unlock()
			return
		}
	}
}

// awaitRoom waits until there is room in the window and in the budget. The result
// is false when the socket is closed.
func (s *Socket) awaitRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && s.spaceLocked() == nil {
		s.changed.Wait()
	}
	s.settleLocked(0)
	return !s.closed
}

// spaceLocked returns room for the next bytes, nil if there is none now.
// settleLocked says how much of it was used.
func (s *Socket) spaceLocked() []byte {
	room := s.window - (s.kept.End() - s.acked)
	if room == 0 || s.closed {
		return nil
	}
	space := s.kept.Space()
	s.filling = space != nil
	return space[:min(uint64(len(space)), room)]
}

func (s *Socket) settleLocked(n int) {
	if s.filling {
		s.filling = false
		s.kept.Filled(n)
	}
}

// readOnce reads what has come. Memory is taken only when something has: a socket
// on which nothing happens holds none.
func (s *Socket) readOnce() error {
	var n int
	var err error
	waitErr := s.raw.Read(func(fd uintptr) bool {
		s.mu.Lock()
		space := s.spaceLocked()
		s.mu.Unlock()
		if space == nil {
			n, err = 0, nil
			return true // others have used up the budget, or the socket is closed
		}
		n, err = ignoringEINTR(func() (int, error) { return unix.Read(int(fd), space) })
		s.mu.Lock()
		defer s.mu.Unlock()
		s.settleLocked(max(n, 0))
		if n > 0 {
			s.changed.Broadcast()
		} else if err == nil {
			err = io.EOF
		}
		return err != unix.EAGAIN
	})
	if waitErr != nil {
		return ErrClosed
	}
	return err
}

func ignoringEINTR(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); err != unix.EINTR {
			return n, err
		}
	}
}

// tell gives the sink what was read, until the socket is closed.
func (s *Socket) tell() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for !s.closed && (s.sink == nil || s.sent == s.kept.End() && (s.end == nil || s.told)) {
			s.changed.Wait()
		}
		if s.closed {
			return
		}
		d := Data{Offset: s.sent}
		if s.sent < s.kept.End() {
			d.Bytes = s.kept.Borrow(s.sent, pieceSize)
			s.sent += uint64(len(d.Bytes))
		}
		if s.sent == s.kept.End() && s.end != nil {
			d.End, s.told = s.end, true
		}
		sink, turn := s.sink, s.turn
		s.mu.Unlock()
		err := sink(d)
		s.mu.Lock()
		s.kept.Return()
		if err != nil && s.turn == turn {
			s.sink = nil
		}
	}
}

// Ack notes that the client has that many bytes in all, which makes room for more.
func (s *Socket) Ack(received uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if received > s.sent {
		return &ReceivedError{received, s.acked, s.sent}
	}
	if received > s.acked {
		s.acked = received
		s.dropLocked(received)
		s.changed.Broadcast()
	}
	return nil
}

func (s *Socket) dropLocked(before uint64) {
	s.dropped = max(s.dropped, before)
	s.kept.Drop(before)
}

// Rewind notes that the client has that many bytes in all, and none of those that
// were sent behind them. They go on to count for the window: the client may not
// have room for more. It returns how many bytes were written for the client, once a
// write that is under way is over, and a turn for Tell: nothing is told until then.
func (s *Socket) Rewind(ctx context.Context, received uint64) (turn int, written uint64, err error) {
	if err := s.lockWriting(ctx, nil); err != nil {
		return 0, 0, err
	}
	written = s.written
	<-s.writing
	s.mu.Lock()
	defer s.mu.Unlock()
	if received < s.dropped || received > s.kept.End() {
		return 0, 0, &ReceivedError{received, s.dropped, s.kept.End()}
	}
	s.turn++
	s.sink, s.sent, s.told = nil, received, false
	s.dropLocked(received)
	return s.turn, written, nil
}

// Tell gives the sink what has come and will come. It has no effect when Rewind was
// called since the one that has returned this turn; the turn of a new socket is 0.
func (s *Socket) Tell(turn int, sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn == s.turn {
		s.sink = sink
		s.changed.Broadcast()
	}
}

// lockWriting takes the right to write. It calls wait before it waits for it.
func (s *Socket) lockWriting(ctx context.Context, wait func() error) error {
	select {
	case s.writing <- struct{}{}:
	default:
		if wait != nil {
			if err := wait(); err != nil {
				return err
			}
		}
		select {
		case s.writing <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := ctx.Err(); err != nil {
		// The client has gone, and will ask how much was written. Nothing may be
		// written after the answer.
		<-s.writing
		return context.Cause(ctx)
	}
	return nil
}

// Write passes bytes on that begin at an offset of all that is written, but none
// that it has passed on before, and returns how many those are in all. With eof
// nothing may follow. It calls wait before it waits for the other end to read, and
// gives up with the cause of ctx, or the error of wait. If it fails on the way, it
// has passed some bytes on.
func (s *Socket) Write(ctx context.Context, offset uint64, p []byte, eof bool, wait func() error) (written uint64, err error) {
	if err := s.lockWriting(ctx, wait); err != nil {
		return 0, err
	}
	defer func() { <-s.writing }()
	switch {
	case s.failed != nil:
		return 0, s.failed
	case offset > s.written:
		return 0, &GapError{offset, s.written}
	}
	p = p[min(s.written-offset, uint64(len(p))):]
	if s.ended && len(p) > 0 {
		return 0, ErrInputEnded
	}
	if len(p) > 0 {
		if err := s.pass(ctx, p, wait); err != nil {
			return 0, err
		}
	}
	if eof && !s.ended {
		s.ended = true
		if err := s.conn.CloseWrite(); err != nil {
			return 0, s.fail(err)
		}
	}
	return s.written, nil
}

// pass gives the kernel all of p.
func (s *Socket) pass(ctx context.Context, p []byte, wait func() error) error {
	n, err := s.try(p)
	s.written += uint64(n)
	if err != nil {
		return s.fail(err)
	}
	if p = p[n:]; len(p) == 0 {
		return nil
	}
	if err := wait(); err != nil {
		return err
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(interrupted)
		_ = s.conn.SetWriteDeadline(time.Unix(1, 0)) // of a closed one it does not matter
	})
	n, err = s.conn.Write(p)
	s.written += uint64(n)
	if !stop() {
		<-interrupted
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	}
	return s.fail(err)
}

// try gives the kernel as much of p as it takes at once.
func (s *Socket) try(p []byte) (n int, err error) {
	waitErr := s.raw.Write(func(fd uintptr) bool {
		n, err = ignoringEINTR(func() (int, error) { return unix.Write(int(fd), p) })
		return true
	})
	if waitErr != nil {
		return 0, waitErr
	}
	if err == unix.EAGAIN {
		err = nil
	}
	return max(n, 0), err
}

// fail notes that nothing more can be written.
func (s *Socket) fail(err error) error {
	if errors.Is(err, net.ErrClosed) {
		err = ErrClosed
	}
	s.failed = err
	return err
}

// close ends the connection. Nothing is told once it has returned, but for what the
// sink has been given and not returned from: the caller ends that, if it does not
// want to wait in wait.
func (s *Socket) close() {
	s.mu.Lock()
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	_ = s.conn.Close() // what the kernel has of it, it still sends
}

// wait waits for the goroutines of a closed socket, and gives back what it holds.
func (s *Socket) wait() {
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.Clear()
}
