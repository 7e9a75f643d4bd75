package names

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxQuestion bounds the bytes of a question. One name fits many times.
	maxQuestion = 4 << 10
	// maxStreams bounds the connections to one Server. Further ones are closed.
	maxStreams = 64
	// patience is how long a connection without a question lasts.
	patience = 10 * time.Second
	// maxWaiting bounds the questions by datagrams that wait for a look-up. Further ones get
	// no answer, and are asked again.
	maxWaiting = 32
)

// A Server answers the questions of one command at its sockets. Its methods may be called at
// once.
type Server struct {
	names   *Names
	ctx     context.Context // of all look-ups; Close ends it
	cancel  context.CancelFunc
	work    sync.WaitGroup
	waiting chan struct{}

	mu      sync.Mutex
	open    map[io.Closer]struct{}
	streams int
	closed  bool
}

// NewServer returns a server without sockets.
func NewServer(n *Names) *Server {
	s := &Server{names: n, waiting: make(chan struct{}, maxWaiting), open: map[io.Closer]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Close closes all sockets, and waits until nothing uses them.
func (s *Server) Close() {
	s.mu.Lock()
	s.closed = true
	s.cancel()
	for c := range s.open {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
}

// start serves a socket in a goroutine. After Close it closes the socket.
func (s *Server) start(c io.Closer, serve func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		_ = c.Close()
		return
	}
	s.open[c] = struct{}{}
	s.work.Go(func() {
		defer func() {
			_ = c.Close()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.open, c)
		}()
		serve()
	})
}

// Datagrams answers the questions that come to a socket for datagrams.
func (s *Server) Datagrams(conn net.PacketConn) {
	s.start(conn, func() {
		b := make([]byte, maxQuestion)
		for {
			size, from, err := conn.ReadFrom(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil { // else the error of an earlier answer
				s.reply(append([]byte(nil), b[:size]...), func(answer []byte) { _, _ = conn.WriteTo(answer, from) })
			}
		}
	})
}

// Packets answers the questions that come through a pair of sockets for packets.
func (s *Server) Packets(conn net.Conn) {
	s.start(conn, func() {
		b := make([]byte, maxQuestion)
		for {
			size, err := conn.Read(b)
			if err != nil || size == 0 {
				return
			}
			s.reply(append([]byte(nil), b[:size]...), func(answer []byte) {
				// A command that does not read its answers gets no more of them.
				_ = conn.SetWriteDeadline(time.Now().Add(patience))
				_, _ = conn.Write(answer)
			})
		}
	})
}

// reply answers a question, apart if it may need a look-up.
func (s *Server) reply(question []byte, send func([]byte)) {
	answer := func() {
		if b := s.names.Answer(s.ctx, question); b != nil {
			send(b)
		}
	}
	if len(s.names.search.Domains) == 0 {
		answer()
		return
	}
	select {
	case s.waiting <- struct{}{}:
		s.work.Go(func() {
			defer func() { <-s.waiting }()
			answer()
		})
	default:
	}
}

// Listen answers the questions of connections to a listener.
func (s *Server) Listen(l net.Listener) {
	s.start(l, func() {
		for {
			conn, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil { // descriptors may be short for a moment
				select {
				case <-time.After(10 * time.Millisecond):
				case <-s.ctx.Done():
				}
				continue
			}
			s.Stream(conn)
		}
	})
}

// Stream answers the questions of one connection.
func (s *Server) Stream(conn net.Conn) {
	s.mu.Lock()
	full := s.streams == maxStreams
	if !full {
		s.streams++
	}
	s.mu.Unlock()
	if full {
		_ = conn.Close()
		return
	}
	s.start(conn, func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.streams--
		}()
		s.stream(conn)
	})
}

func (s *Server) stream(conn net.Conn) {
	b := make([]byte, maxQuestion)
	for {
		if conn.SetDeadline(time.Now().Add(patience)) != nil {
			return
		}
		if _, err := io.ReadFull(conn, b[:2]); err != nil {
			return
		}
		size := int(binary.BigEndian.Uint16(b))
		if size > maxQuestion {
			return
		}
		if _, err := io.ReadFull(conn, b[:size]); err != nil {
			return
		}
		answer := s.names.Answer(s.ctx, b[:size])
		if answer == nil {
			return
		}
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
