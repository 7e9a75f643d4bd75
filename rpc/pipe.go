package rpc

import (
	"io"
	"net"
	"sync"

	"github.com/execagent/execagent/internal/buffer"
)

// pipe is one end of [Pipe]. It blocks on channels only, so that
// testing/synctest can see when both ends are idle.
type pipe struct {
	in    <-chan []byte
	out   chan<- []byte
	ended <-chan struct{} // closed when the other end is closed

	closed chan struct{}
	close  sync.Once
}

// Pipe returns the two ends of a connection in memory. It is synchronous: a
// Write returns once the other end has taken the message with Read, so no
// message is ever under way when an end is closed. Read and Write fail with
// [net.ErrClosed] after Close of their own end; after Close of the other one
// Read returns [io.EOF] and Write [io.ErrClosedPipe].
func Pipe() (a, b Conn) {
	ab, ba := make(chan []byte), make(chan []byte)
	aClosed, bClosed := make(chan struct{}), make(chan struct{})
	return &pipe{in: ba, out: ab, ended: bClosed, closed: aClosed},
		&pipe{in: ab, out: ba, ended: aClosed, closed: bClosed}
}

func (p *pipe) Read() ([]byte, error) {
	// A writer that blocks on an end while that end is closed could still win
	// the select below, after an earlier Read has already failed.
	if err := p.over(io.EOF); err != nil {
		return nil, err
	}
	select {
	case message := <-p.in:
		return message, nil
	case <-p.closed:
		return nil, net.ErrClosed
	case <-p.ended:
		return nil, io.EOF
	}
}

func (p *pipe) Write(message []byte) error {
	if err := p.over(io.ErrClosedPipe); err != nil {
		return err
	}
	taken := append(buffer.Get(len(message)), message...)
	select {
	case p.out <- taken:
		return nil
	case <-p.closed:
		buffer.Recycle(taken)
		return net.ErrClosed
	case <-p.ended:
		buffer.Recycle(taken)
		return io.ErrClosedPipe
	}
}

func (p *pipe) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

// String is the label of the connection in logs and error texts.
func (p *pipe) String() string { return "pipe" }

// over returns net.ErrClosed if this end is closed, ended if only the other end
// is closed, and nil if both are open.
func (p *pipe) over(ended error) error {
	select {
	case <-p.closed:
		return net.ErrClosed
	default:
	}
	select {
	case <-p.ended:
		return ended
	default:
		return nil
	}
}
