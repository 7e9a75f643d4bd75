// Package transport carries whole messages over WebSockets, by TCP and UNIX sockets, and
// over lines on standard input and output. Every connection is an [rpc.Conn], so its
// user cannot tell one kind from another. The package does not look into messages.
//
//	listener, err := transport.Listen(transport.Config{URL: "ws://127.0.0.1:0", Auth: auth})
//	err = agent.Serve(ctx, listener)
//
//	conn, err := transport.Dial(ctx, "wss://host:7000", transport.DialConfig{})
//	conn := transport.Stdio(os.Stdin, os.Stdout, nil)
//	conn, err := transport.StartCommand(transport.CommandConfig{Argv: argv})
//
// [Listen] makes a [Listener]; its [Config] says where, and who may connect.
// [AuthOptions] makes an [Authenticator], which checks bearer tokens. Without one,
// Listen takes only loopback addresses, unless Config says otherwise. [Dial] opens a
// [WebSocket] as a client. [Stdio] is a connection on the standard input and output of
// this program, [StartCommand] one on those of a program that it starts.
//
// A message has at most 64 MiB ([ErrTooLarge]). A Write blocks while the other side does
// not read; a WebSocket whose peer is silent for 90 s, or takes no message, is closed
// (Config.PeerTimeout).
//
// A Command has two goroutines of its own. Every other connection starts none: it
// works in the goroutines that read and write, and in timers. Command is for Linux
// only, whose waitid(2) it needs.
package transport

import (
	"errors"
	"io"
	"iter"
	"net"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/rpc"
)

// maxMessage is the size of the largest message that Read accepts, in bytes:
// one frame, all fragments of a message, or a line without its ending
// (rpc.md 1.3, 1.4).
const maxMessage = 64 << 20

// ErrTooLarge is the error of Read for a message above [maxMessage].
var ErrTooLarge = errors.New("message exceeds 67108864 bytes")

// firstBuffer holds nearly every request without growing.
const firstBuffer = 4 << 10

// readAll reads a message: all of r, into memory of in. It begins with room for
// size bytes, and at least for firstBuffer.
func readAll(in *rpc.Intake, r io.Reader, size int) ([]byte, error) {
	for want := max(size, firstBuffer); ; want = 1 {
		space, err := in.Space(want, maxMessage)
		for err == nil && len(space) > 0 {
			var n int
			n, err = r.Read(space)
			in.Filled(n)
			space = space[n:]
		}
		var more [1]byte
		if err == nil { // full: usually this is the end, for which it need not grow
			_, err = io.ReadFull(r, more[:])
		}
		if err == io.EOF {
			return in.Message(), nil
		}
		if err == nil {
			space, err = in.Space(1, maxMessage)
		}
		if err != nil {
			in.Drop()
			return nil, err
		}
		space[0] = more[0]
		in.Filled(1)
	}
}

// writeParts writes a message of size bytes behind head.
func writeParts(w io.Writer, head []byte, size int, parts iter.Seq[[]byte]) error {
	for part := range parts {
		if size -= len(part); size < 0 {
			return rpc.ErrParts
		}
		buffers := net.Buffers{part}
		if head != nil {
			buffers = net.Buffers{head, part}
			head = nil
		}
		if _, err := buffers.WriteTo(w); err != nil {
			return err
		}
	}
	if size > 0 {
		return rpc.ErrParts
	}
	return nil
}

// whole is what parts yields, in a pooled buffer.
func whole(size int, parts iter.Seq[[]byte]) []byte {
	message := buffer.Get(size)
	for part := range parts {
		message = append(message, part...)
	}
	return message
}
