// Package transport carries whole messages over WebSockets and over lines on
// standard input and output. Everything in it is a [rpc.Conn], so that nobody
// above can tell one from the other; it knows nothing of what a message says.
//
//	listener, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:0"})
//	conn, err := transport.Dial(ctx, listener.URL(), transport.DialConfig{})
//	conn := transport.Stdio(os.Stdin, os.Stdout)
//	conn, err := transport.StartCommand(transport.CommandConfig{Argv: argv})
//
// A connection starts no goroutine for itself but a Command's two: it works in
// the goroutine that reads and in those that write, and in timers.
package transport

import (
	"errors"
	"io"

	"github.com/execagent/execagent/rpc"
)

// MaxMessage is the size of the largest message that Read accepts, in bytes:
// one frame, all fragments of a message, or a line without its ending
// (rpc.md 7; decision D7.9).
const MaxMessage = 64 << 20

// ErrTooLarge is the error of Read for a message above [MaxMessage].
var ErrTooLarge = errors.New("message exceeds 67108864 bytes")

// firstBuffer holds nearly every request without growing.
const firstBuffer = 4 << 10

// readAll returns all that r holds in a pooled buffer, which has room for size
// bytes at first. It only grows with what has arrived, never with what a peer
// announced.
func readAll(r io.Reader, size int) ([]byte, error) {
	b := rpc.Buffer(max(size, firstBuffer))
	for {
		if len(b) == cap(b) {
			b = grow(b, 1)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			rpc.Recycle(b)
			return nil, err
		}
	}
}

// grow returns b in a pooled buffer with room for n more bytes. It quadruples,
// so that a large message is copied by a third of its size, not wholly.
func grow(b []byte, n int) []byte {
	need := len(b) + n
	larger := append(rpc.Buffer(max(need, min(4*cap(b), MaxMessage+1))), b...)
	rpc.Recycle(b)
	return larger
}
