package client

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/client/internal/duplex"
	"github.com/execagent/execagent/protocol"
)

const (
	// socketChunk is the most bytes in one socket/write.
	socketChunk = 256 << 10
	// socketWrites is how many writes of a socket are under way at once, so that
	// all sockets of a session have fewer than maxCalls.
	socketWrites = 3
	// abortTimeout is how long a server has to answer a request to close its end of an abandoned
	// socket.
	abortTimeout = 2 * time.Second
)

// Socket is a connection that the server made for this client: a [net.Conn] to an
// address on the server's side. It outlives connections to the server, with no
// byte lost or repeated. Reading and writing wait while there is no connection;
// after the client has failed, they return its [DisconnectedError].
type Socket struct {
	stream  *duplex.Stream
	client  *Client
	id      string
	address socketAddr

	resuming sync.Mutex     // held while the server is asked, until bytes are carried again
	carriers sync.WaitGroup // goroutines that carry bytes on one connection
	turn     int            // theirs
	pace     pace
}

var _ net.Conn = (*Socket)(nil)

// DialSocket connects to an address on the server's side, tcp://HOST:PORT or
// unix:///PATH; with a sandbox, only if a process under the sandbox could. The
// caller closes the socket. It needs the server's socketForward; a session has up
// to 256 sockets. If the connection fails, the error is a [ServerError] with the
// words of the operating system.
func (c *Client) DialSocket(ctx context.Context, address string, sandbox *protocol.Sandbox) (*Socket, error) {
	err := c.require(ctx, "forwarding sockets", func(c *protocol.Capabilities) bool { return c.SocketForward })
	if err != nil {
		return nil, err
	}
	s := &Socket{
		stream: duplex.New(protocol.MaxSocketWindow, socketChunk), client: c, id: rand.Text(), address: socketAddr(address),
		pace: pace{usual: socketChunk},
	}
	params := protocol.SocketOpenParams{SocketID: s.id, Address: address, Sandbox: sandbox}
	for sent := false; ; {
		l, err := c.connected(ctx)
		if err != nil {
			return nil, s.giveUp(err, sent)
		}
		// Data of the socket may come before the answer.
		if !c.addSocket(s, l) {
			continue
		}
		received := protocol.SocketReceived{}
		if sent {
			// The answer was lost, and perhaps the request too.
			resume := protocol.SocketReceivedParams{SocketID: s.id, Received: s.stream.Received()}
			err = l.called(ctx, protocol.MethodSocketResume, &resume, &received)
		}
		if _, unknown := errors.AsType[*ServerError](err); !sent || unknown {
			err = l.called(ctx, protocol.MethodSocketOpen, &params, nil)
		}
		if isLoss(err) {
			sent = sent || !unsent(err)
			continue
		}
		if err != nil {
			return nil, s.giveUp(err, ctx.Err() != nil)
		}
		begun, err := s.begin(l, received.Received)
		if err != nil {
			return nil, s.giveUp(err, true)
		}
		if begun {
			return s, nil
		}
		sent = true
	}
}

// addSocket routes data from the connection l to s. It returns false if the
// client has already left l.
func (c *Client) addSocket(s *Socket, l *connection) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != Connected || c.current != l {
		return false
	}
	c.opening[s.id] = s
	return true
}

// giveUp ends a socket that could not be connected; the server may still have it.
func (s *Socket) giveUp(err error, opened bool) error {
	s.end(err)
	if opened {
		_ = s.hangUpSoon() // the caller has an error
	}
	return err
}

// begin carries bytes on l, and makes the client move s from l to the next
// connection. It returns false if the client has already left l.
func (s *Socket) begin(l *connection, received uint64) (here bool, err error) {
	s.resuming.Lock()
	defer s.resuming.Unlock()
	c := s.client
	c.mu.Lock()
	here = c.state == Connected && c.current == l
	if here {
		delete(c.opening, s.id)
		c.sockets[s.id] = s
	}
	c.mu.Unlock()
	if !here {
		return false, nil
	}
	return true, s.carry(l, received)
}

// resume asks the server for missed bytes on a new connection, and continues there.
func (s *Socket) resume(l *connection) {
	s.resuming.Lock()
	defer s.resuming.Unlock()
	s.resumeLocked(l)
}

// resumeLocked is resume for a caller that holds resuming. It does nothing on a connection that the
// client has left.
func (s *Socket) resumeLocked(l *connection) {
	c := s.client
	c.mu.Lock()
	here := c.current == l
	c.mu.Unlock()
	if !here {
		return
	}
	s.stream.Halt(s.turn)
	s.carriers.Wait()
	for s.stream.Err() == nil {
		var r protocol.SocketReceived
		params := protocol.SocketReceivedParams{SocketID: s.id, Received: s.stream.Received()}
		err := l.called(c.ctx, protocol.MethodSocketResume, &params, &r)
		switch {
		case errors.Is(err, ErrTooManyCalls):
			if sleep(c.ctx, pause) != nil {
				return
			}
			continue
		case isLoss(err) || c.ctx.Err() != nil: // the next connection resumes it, if there is one
			return
		case err == nil:
			err = s.carry(l, r.Received)
		}
		if err != nil {
			s.end(err)
		}
		return
	}
}

// carry carries bytes on l from now on, in a turn of its own. received is how many bytes the server
// has.
func (s *Socket) carry(l *connection, received uint64) error {
	turn, err := s.stream.Resume(received)
	if err != nil {
		return protocolErrorf("%v", err)
	}
	s.turn = turn
	for _, carry := range []func(*connection, int){s.send, s.acknowledge} {
		s.carriers.Add(1)
		if !s.client.begin(func() { defer s.carriers.Done(); carry(l, turn) }) {
			s.carriers.Done()
		}
	}
	return nil
}

// sending is a write that is under way.
type sending struct {
	out  duplex.Out
	wait func(context.Context, any) error
}

// send sends the written bytes, several pieces at once and in order.
func (s *Socket) send(l *connection, turn int) {
	under := make(chan sending, socketWrites-1)
	var answers sync.WaitGroup
	answers.Go(func() { s.settle(l, turn, under) })
	var err error
	for err == nil {
		out, ok := s.stream.Next(turn, s.pace.piece())
		if !ok {
			break
		}
		params := protocol.SocketWriteParams{SocketID: s.id, Offset: out.Offset, Chunk: out.Bytes, EOF: out.EOF}
		var wait func(context.Context, any) error
		wait, err = l.begin(protocol.MethodSocketWrite, &params)
		s.stream.Sent()
		if err == nil {
			under <- sending{out, wait}
		}
	}
	close(under)
	answers.Wait()
	if err != nil && !isLoss(err) {
		s.retry(l, turn)
	}
}

// settle takes the answers to writes. After the first failed write, nothing more
// is sent in this turn.
func (s *Socket) settle(l *connection, turn int, under <-chan sending) {
	again := false
	for w := range under {
		var r protocol.SocketReceived
		err := w.wait(s.client.ctx, &r)
		if err == nil {
			l.useful.Store(true)
			s.pace.taken()
			err = s.stream.Confirm(r.Received, w.out)
			if err != nil {
				err = protocolErrorf("%v", err)
			}
		}
		refused, ok := errors.AsType[*ServerError](err)
		switch {
		case err == nil:
		case isLoss(err), s.stream.Err() != nil:
			s.stream.Halt(turn)
		case ok && (refused.Err.Code == protocol.CodeInvalidRequest || refused.Err.Code == protocol.CodeInvalidParams):
			// The server had no memory for one more waiting request, and so not for the later ones.
			s.stream.Halt(turn)
			again = true
			if isBusy(err) {
				s.pace.refused()
			}
		case ok:
			s.stream.Refuse(err)
		default:
			s.end(err)
		}
	}
	if again {
		s.retry(l, turn)
	}
}

// retry ends a turn, and starts another one after a while on the same connection.
func (s *Socket) retry(l *connection, turn int) {
	s.stream.Halt(turn)
	s.client.begin(func() {
		if sleep(s.client.ctx, pause) != nil {
			return
		}
		s.resuming.Lock()
		defer s.resuming.Unlock()
		if s.turn == turn {
			s.resumeLocked(l)
		}
	})
}

// acknowledge tells the server how many bytes were read.
func (s *Socket) acknowledge(l *connection, turn int) {
	for {
		received, ok := s.stream.AckDue(turn)
		if !ok {
			return
		}
		params := protocol.SocketReceivedParams{SocketID: s.id, Received: received}
		err := l.called(s.client.ctx, protocol.MethodSocketAck, &params, nil)
		for errors.Is(err, ErrTooManyCalls) && sleep(s.client.ctx, pause) == nil {
			err = l.called(s.client.ctx, protocol.MethodSocketAck, &params, nil)
		}
		switch {
		case err == nil:
		case isLoss(err), s.stream.Err() != nil, s.client.ctx.Err() != nil:
			return
		default:
			s.end(err)
			return
		}
	}
}

// received takes a notification. It never waits.
func (l *connection) received(n *protocol.SocketData) {
	c := l.client
	c.mu.Lock()
	s := c.sockets[n.SocketID]
	if s == nil {
		s = c.opening[n.SocketID]
	}
	c.mu.Unlock()
	if s == nil {
		return // closed
	}
	l.useful.Store(true)
	var end error
	switch {
	case n.Error != "":
		end = &SocketError{Text: n.Error}
	case n.EOF:
		end = io.EOF
	}
	if err := s.stream.Accept(n.Offset, n.Chunk, end); err != nil {
		s.end(protocolErrorf("socket %s: %v", s.id, err))
		c.begin(s.hangUpLater)
	}
}

// end fails the socket, once, and the client forgets it.
func (s *Socket) end(err error) bool {
	c := s.client
	c.mu.Lock()
	delete(c.sockets, s.id)
	delete(c.opening, s.id)
	c.mu.Unlock()
	return s.stream.Fail(err)
}

// Close ends the connection in both directions. It waits up to 10 s until the
// server has all written bytes, and up to 10 s until the server has closed its
// end. Closing a socket again is no error.
func (s *Socket) Close() error {
	_ = s.stream.CloseWrite() // the stream may have failed
	s.stream.Flush(cleanupTimeout)
	if !s.end(net.ErrClosed) {
		return nil
	}
	return s.hangUp(s.client.ctx)
}

// Abort is Close for a caller that does not need the written bytes to arrive: it waits only for the
// answer of the server, up to 2 s. Without an earlier CloseWrite, the other end sees a reset.
func (s *Socket) Abort() error {
	if !s.end(net.ErrClosed) {
		return nil
	}
	return s.hangUpSoon()
}

// hangUp closes the socket at the server.
func (s *Socket) hangUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	err := s.client.replay(ctx, protocol.MethodSocketClose, &protocol.SocketParams{SocketID: s.id}, nil)
	if isLoss(err) {
		return nil // the session ends, and its sockets with it
	}
	return err
}

// hangUpSoon is hangUp for a caller that waits only briefly. A server that does not answer in time
// is told later.
func (s *Socket) hangUpSoon() error {
	ctx, cancel := context.WithTimeout(FailFast(s.client.ctx), abortTimeout)
	defer cancel()
	err := s.hangUp(ctx)
	if errors.Is(err, ErrRecovering) || ctx.Err() != nil {
		s.client.begin(s.hangUpLater)
		return nil
	}
	return err
}

// hangUpLater is hangUp without its error.
func (s *Socket) hangUpLater() { _ = s.hangUp(s.client.ctx) }

// Read waits for bytes from the other end. It ends with io.EOF, or a [SocketError].
func (s *Socket) Read(p []byte) (int, error) { return s.stream.Read(p) }

// WriteTo copies all data of the socket to w, until the end.
func (s *Socket) WriteTo(w io.Writer) (int64, error) { return s.stream.WriteTo(w) }

// Write queues bytes for the other end. While the other end does not read, Write
// waits once 1 MiB is on its way.
func (s *Socket) Write(p []byte) (int, error) { return s.stream.Write(p) }

// CloseWrite tells the other end that no data follows the written bytes.
func (s *Socket) CloseWrite() error { return s.stream.CloseWrite() }

// SetDeadline sets the times at which Read and Write fail with
// [os.ErrDeadlineExceeded]; the zero time is never.
func (s *Socket) SetDeadline(t time.Time) error { return s.stream.SetDeadline(t) }

// SetReadDeadline sets the deadline of Read.
func (s *Socket) SetReadDeadline(t time.Time) error { return s.stream.SetReadDeadline(t) }

// SetWriteDeadline sets the deadline of Write.
func (s *Socket) SetWriteDeadline(t time.Time) error { return s.stream.SetWriteDeadline(t) }

// ID is the id of the socket in its session.
func (s *Socket) ID() string { return s.id }

// RemoteAddr is the address that was dialled.
func (s *Socket) RemoteAddr() net.Addr { return s.address }

// LocalAddr is an empty address, because the server has the socket.
func (s *Socket) LocalAddr() net.Addr { return socketAddr("") }

// socketAddr is an address in the form of DialSocket.
type socketAddr string

// Network is the part before the colon, tcp or unix.
func (a socketAddr) Network() string {
	network, _, _ := strings.Cut(string(a), ":")
	return network
}

func (a socketAddr) String() string {
	_, target, _ := strings.Cut(string(a), "://")
	return target
}

// SocketError is the reason why a server can read no more from a [Socket], in the
// words of its operating system.
type SocketError struct{ Text string }

func (e *SocketError) Error() string { return "reading at the server's end: " + e.Text }
