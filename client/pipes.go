package client

import (
	"context"
	"errors"
	"io"

	"github.com/execagent/execagent/client/internal/queue"
	"github.com/execagent/execagent/protocol"
)

// stdinChunk is the most bytes of standard input in one request.
const stdinChunk = 256 << 10

// Stdin is the standard input of the process as a writer. Its calls have no
// context; they end with the process or the client. Close is
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

// Stdout is the standard output of the process as a reader; with a terminal, all
// output. It ends with io.EOF when the process has closed it, or with the error of the
// handle.
//
// After the first call of Stdout or Stderr, the readers take all events of the process,
// so [Process.Events] and [Process.CopyOutput] get none. Each reader holds up to 1 MiB
// of unread output. Then it blocks the other reader and the connection. So read both at
// the same time, or close the one you do not need. Closing a reader drops its output;
// the process does not notice.
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

// Close drops unread output, now and later.
func (r *outputReader) Close() error {
	r.Discard(func([]byte) bool { return true })
	r.Fail(errReaderClosed)
	return nil
}
