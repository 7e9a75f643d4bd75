package suite

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/gorilla/websocket"
)

const (
	// maxMessage is how long a message may be, in bytes. The protocol allows more (rpc.md 1.3), which no case needs.
	maxMessage = 16 << 20
	// maxReceived and maxMessages bound what one program sends in one case, in bytes and in messages.
	maxReceived = 32 << 20
	maxMessages = 5000
	// maxCommas bounds the values in them, which take more memory than their text.
	maxCommas = 1 << 20
)

// errFlood says that a program sends more than any case makes it send.
var errFlood = errors.New("it sends without end")

// An intake counts what was received.
type intake struct{ bytes, messages, commas int }

// take counts a message, and refuses it beyond the bounds.
func (i *intake) take(message []byte) error {
	i.bytes, i.messages, i.commas = i.bytes+len(message), i.messages+1, i.commas+bytes.Count(message, []byte(","))
	if i.bytes > maxReceived || i.messages > maxMessages || i.commas > maxCommas {
		return errFlood
	}
	return nil
}

// A link carries messages to and from an executor, as another program would: it has nothing of our transport.
type link interface {
	// read returns the next message. It answers pings.
	read() ([]byte, error)
	// write sends a message.
	write([]byte) error
	// writeBinary sends a message in a binary frame.
	writeBinary([]byte) error
	// close ends the link at once, without a word. It unblocks the others.
	close()
}

// webSocket is a link to a program that listens.
type webSocket struct{ ws *websocket.Conn }

// dialWebSocket connects to a URL of ws, wss or unix.
func dialWebSocket(ctx context.Context, address, token string, limit time.Duration) (*webSocket, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	var head *headConn
	dialer := websocket.Dialer{HandshakeTimeout: limit}
	dialer.NetDialContext = func(ctx context.Context, network, at string) (net.Conn, error) {
		if u.Scheme == "unix" {
			network, at = "unix", u.Path
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, at)
		if err != nil {
			return nil, err
		}
		head = &headConn{Conn: conn}
		head.left.Store(maxHead)
		return head, nil
	}
	if u.Scheme == "unix" {
		address = "ws://localhost/"
	}
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ws, _, err := dialer.DialContext(ctx, address, header)
	if err != nil {
		return nil, fmt.Errorf("connecting: %w", err)
	}
	head.open.Store(true)
	ws.SetReadLimit(maxMessage)
	return &webSocket{ws}, nil
}

func (w *webSocket) read() ([]byte, error) {
	_, data, err := w.ws.ReadMessage()
	return data, err
}

func (w *webSocket) write(message []byte) error {
	return w.ws.WriteMessage(websocket.TextMessage, message)
}

func (w *webSocket) writeBinary(message []byte) error {
	return w.ws.WriteMessage(websocket.BinaryMessage, message)
}

func (w *webSocket) close() { _ = w.ws.Close() }

// maxHead is how long the answer to the upgrade may be.
const maxHead = 64 << 10

// headConn is a connection that gives up an answer to the upgrade that does not end.
type headConn struct {
	net.Conn
	open atomic.Bool // behind the answer
	left atomic.Int64
}

func (h *headConn) Read(p []byte) (int, error) {
	n, err := h.Conn.Read(p)
	if !h.open.Load() && h.left.Add(int64(-n)) < 0 {
		return 0, errors.New("the answer to the upgrade has no end")
	}
	return n, err
}

// A program is a link to a program that speaks on its standard input and output.
type program struct {
	in  io.WriteCloser
	out *bufio.Reader
	end func()
}

// startProgram starts a command in its own process group.
func startProgram(command, dir string, env []string, log *os.File) (*program, error) {
	cmd := shell(command)
	cmd.Dir, cmd.Env = dir, env
	if log != nil {
		cmd.Stderr = log
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", command, err)
	}
	return &program{in: in, out: bufio.NewReader(out), end: ending(cmd)}, nil
}

// read returns the next line.
func (p *program) read() ([]byte, error) {
	var line []byte
	for {
		part, err := p.out.ReadSlice('\n')
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxMessage:
			return nil, errors.New("a line has more than 16 MiB")
		}
	}
}

func (p *program) write(message []byte) error {
	_, err := p.in.Write(append(slices.Clip(message), '\n'))
	return err
}

func (p *program) writeBinary([]byte) error { return errors.New("lines have no binary frames") }

// close closes the standard input, which ends an executor, and kills a program that does not end by itself.
func (p *program) close() {
	_ = p.in.Close()
	p.end()
}
