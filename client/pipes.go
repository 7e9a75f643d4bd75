package client

import (
	"context"
	"errors"
	"io"

	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/protocol"
)

// stdinChunk is how much of the standard input goes into one request, in
// bytes.
const stdinChunk = 256 << 10

// Stdin is the standard input of the process as a writer. Its calls end with
// the process or the client, they have no context of their own. Close is
// [Process.CloseStdin].
func (p *Process) Stdin() io.WriteCloser { return stdin{p, context.Background()} }

type stdin struct {
	*Process
	ctx context.Context
}

func (s stdin) Write(data []byte) (n int, err error) {
	for len(data) > 0 {
		chunk := data[:min(len(data), stdinChunk)]
		if err := s.Process.Write(s.ctx, chunk); err != nil {
			return n, err
		}
		n += len(chunk)
		data = data[len(chunk):]
	}
	return n, nil
}

func (s stdin) Close() error { return s.CloseStdin(s.ctx) }

// Stdout is the standard output of the process as a reader; of one with a terminal, all
// output. It ends with io.EOF when the process has closed it, or with the error of
// the handle.
//
// The first call of Stdout or Stderr takes the events of the process from then on, so
// [Process.Events] and [Process.CopyOutput] have none left. Each of the two holds what
// nobody has read yet, up to 1 MiB, and then holds up the other one, and the connection.
// So a caller reads both, at the same time, or closes the one that it does not want.
// Closing a reader drops its output; the process does not notice.
func (p *Process) Stdout() io.ReadCloser { return p.readers().stdout }

// Stderr is the standard error of the process as a reader, see [Process.Stdout].
func (p *Process) Stderr() io.ReadCloser { return p.readers().stderr }

// pipes are the two readers of a process, and the goroutine that sorts events into
// them.
type pipes struct{ stdout, stderr *outputReader }

func (p *Process) readers() *pipes {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pipes == nil {
		p.pipes = &pipes{new(outputReader), new(outputReader)}
		if !p.client.begin(p.sort) {
			p.pipes.fail(ErrClosed)
		}
	}
	return p.pipes
}

// sort gives every output to its reader, until the events end.
func (p *Process) sort() {
	last := io.EOF
	for e, err := range p.Events(p.client.ctx) {
		if err != nil {
			last = err
			break
		}
		if e.Kind != Output {
			continue
		}
		r := p.pipes.stdout
		if e.Stream == protocol.StreamStderr {
			r = p.pipes.stderr
		}
		r.Put(p.client.ctx, e.Data, len(e.Data))
	}
	p.pipes.fail(last)
}

func (ps *pipes) fail(err error) {
	ps.stdout.Fail(err)
	ps.stderr.Fail(err)
}

// outputReader is the reader of one stream.
type outputReader struct{ queue.Stream }

var errReaderClosed = errors.New("read of closed output")

// Close drops what has not been read, now and later.
func (r *outputReader) Close() error {
	r.Discard(func([]byte) bool { return true })
	r.Fail(errReaderClosed)
	return nil
}
