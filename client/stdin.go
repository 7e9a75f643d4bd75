package client

import (
	"context"
	"io"
)

// stdinChunk is how much of the standard input goes into one request, in
// bytes.
const stdinChunk = 256 << 10

// Stdin is the standard input of the process as a writer. Its calls end with
// the process or the client, they have no context of their own. Close is
// [Process.CloseStdin].
func (p *Process) Stdin() io.WriteCloser { return stdin{p} }

type stdin struct{ *Process }

func (s stdin) Write(data []byte) (n int, err error) {
	for len(data) > 0 {
		chunk := data[:min(len(data), stdinChunk)]
		if err := s.Process.Write(context.Background(), chunk); err != nil {
			return n, err
		}
		n += len(chunk)
		data = data[len(chunk):]
	}
	return n, nil
}

func (s stdin) Close() error { return s.CloseStdin(context.Background()) }
