package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/share"
)

// A Conn is a connection that can be closed in one direction: *net.TCPConn and *net.UnixConn.
type Conn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// A Sink receives the data from the other end of a socket, in order. It may block. It must not use
// the bytes after it has returned. After it has returned an error, it gets nothing more.
type Sink func(Data) error

// Data is received data. Offset is the number of bytes received before it.
type Data struct {
	Offset uint64
	Bytes  []byte
	// End is io.EOF at the end of the stream, or the error that ended reading; nil if more may come.
	End error
}

// Errors of a [Socket].
var (
	// ErrClosed: this side has closed the socket.
	ErrClosed = errors.New("the socket is closed")
	// ErrInputEnded: a write has bytes after the end of the input.
	ErrInputEnded = errors.New("bytes after the end of what is written")
)

// A GapError says that a write begins after the end of the bytes received so far.
type GapError struct{ Offset, Received uint64 }

func (e *GapError) Error() string {
	return fmt.Sprintf("%d is beyond the %d bytes that have come", e.Offset, e.Received)
}

// A ReceivedError says that the client acknowledges bytes that were not sent, or wants to continue
// at bytes that were dropped.
type ReceivedError struct{ Received, From, To uint64 }

func (e *ReceivedError) Error() string {
	return fmt.Sprintf("%d is not between %d and %d", e.Received, e.From, e.To)
}

// A Socket is one connection. Its methods may be called concurrently.
type Socket struct {
	conn   Conn
	raw    syscall.RawConn
	window uint64

	mu      sync.Mutex // guards the fields below
	changed sync.Cond
	kept    buffer.Backlog // received bytes
	acked   uint64         // offset up to which bytes no longer count for the window
	dropped uint64         // offset up to which bytes are not needed again
	sent    uint64         // offset up to which bytes were given to the sink
	passed  uint64         // highest value of sent so far; Rewind lowers sent only
	filling bool           // the reading goroutine uses space of kept
	end     error          // the end after the last byte; nil while more may come
	told    bool           // the sink was given the end
	turn    int            // number of Rewind calls
	sink    Sink           // nil: no data is passed on
	closed  bool

	writing chan struct{} // holds an element during a write; its holder owns the fields below
	written uint64
	ended   bool  // nothing more may be written, because a write had eof
	failed  error // the error after which nothing more can be written

	whole   atomic.Bool // ended, for close
	running sync.WaitGroup
}

func newSocket(conn Conn, window uint64, bytes *share.Pool, owner string) (*Socket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &Socket{conn: conn, raw: raw, window: window, writing: make(chan struct{}, 1)}
	s.kept = buffer.Backlog{
		PieceSize: pieceSize,
		Take:      func() bool { return bytes.Take(owner, pieceSize) == nil },
		Give:      func() { bytes.Give(owner, pieceSize) },
	}
	s.changed.L = &s.mu
	s.running.Go(s.read)
	s.running.Go(s.tell)
	return s, nil
}

// read reads while there is room, until the end or an error.
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

// awaitRoom waits until there is room in the window and in the budget. It returns false if the
// socket is closed.
func (s *Socket) awaitRoom() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.closed && s.spaceLocked() == nil {
		s.changed.Wait()
	}
	s.settleLocked(0)
	return !s.closed
}

// spaceLocked returns space for the next bytes, or nil if there is none now. settleLocked must then
// say how many bytes of the space were used.
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

// readOnce waits for data and reads it. It takes memory only when data has arrived, so that an idle
// socket holds no memory.
func (s *Socket) readOnce() error {
	var n int
	var err error
	waitErr := s.raw.Read(func(fd uintptr) bool {
		s.mu.Lock()
		space := s.spaceLocked()
		s.mu.Unlock()
		if space == nil {
			n, err = 0, nil
			return true // other sockets have used up the budget, or this socket is closed
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

// tell passes the read bytes to the sink, until the socket is closed.
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
			s.passed = max(s.passed, s.sent)
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

// Ack records that the client has received this many bytes in total, which makes room for more.
func (s *Socket) Ack(received uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if received > s.passed {
		return &ReceivedError{received, s.acked, s.passed}
	}
	// Bytes that were on their way during a Rewind have come after all.
	s.sent = max(s.sent, received)
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

// Rewind records that the client has received this many bytes in total, and has lost all later
// bytes that were sent. The lost bytes still count for the window, because the client may not have
// room for more. Rewind waits for a running write, and returns the total number of bytes that were
// written for the client. It also returns a turn for Tell; until Tell is called, the sink gets
// nothing.
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

// Tell sets the sink that gets the kept and all later bytes. It has no effect if Rewind was called
// after the Rewind that returned this turn. The turn of a new socket is 0.
func (s *Socket) Tell(turn int, sink Sink) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if turn == s.turn {
		s.sink = sink
		s.changed.Broadcast()
	}
}

// lockWriting takes the right to write. If it has to wait, it first calls wait.
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
		// The client is gone, and will ask how many bytes were written. Nothing may be written after the
		// answer.
		<-s.writing
		return context.Cause(ctx)
	}
	return nil
}

// Write sends bytes. offset is the position of p in all bytes that are written to the socket. Bytes
// that Write has sent before are skipped. Write returns the total number of bytes sent. After a
// write with eof, nothing may follow. Before Write waits for the other end to read, it calls wait.
// It fails with the cause of ctx, or with the error of wait. If it fails, it may have sent some of
// the bytes.
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
		s.whole.Store(true)
		if err := s.conn.CloseWrite(); err != nil {
			return 0, s.fail(err)
		}
	}
	return s.written, nil
}

// pass gives all of p to the kernel.
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
		_ = s.conn.SetWriteDeadline(time.Unix(1, 0)) // an error means that it is closed already
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

// try gives as much of p to the kernel as it accepts without waiting.
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

// fail records that nothing more can be written.
func (s *Socket) fail(err error) error {
	if errors.Is(err, net.ErrClosed) {
		err = ErrClosed
	}
	s.failed = err
	return err
}

// close ends the connection. After it returns, no call of the sink begins, but a running call may
// continue. The caller must end a running call if wait must not wait for it.
func (s *Socket) close() {
	s.mu.Lock()
	s.closed = true
	s.changed.Broadcast()
	s.mu.Unlock()
	if tcp, ok := s.conn.(interface{ SetLinger(int) error }); ok && !s.whole.Load() {
		_ = tcp.SetLinger(0) // a reset, because the other end would take a part for the whole
	}
	_ = s.conn.Close() // else the kernel still sends the bytes that it has
}

// wait waits for the goroutines of a closed socket, and gives back its memory.
func (s *Socket) wait() {
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept.Clear()
}
