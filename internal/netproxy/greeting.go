package netproxy

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/netproxy/head"
)

// recordHandshake is the first byte of a TLS connection. The second byte is the major version,
// which is 3 in all versions of TLS.
const recordHandshake = 22

var (
	errUnderstood = errors.New("reading a greeting: it is understood")
	errOtherName  = errors.New("reading a greeting: it names another host")
)

// A greeter reads the first bytes that a client sends in a tunnel, and keeps them so that they can
// be forwarded. Package tls uses a greeter as a connection; bytes that package tls writes are
// discarded.
type greeter struct {
	net.Conn // nil, because package tls calls only the methods below
	from     *head.Reader
	said     []byte
	read     int   // number of bytes of said that package tls has read
	lost     error // the error that ended reading from the connection
}

func newGreeter(from *head.Reader) *greeter { return &greeter{from: from, said: buffer.Get(1 << 10)} }

func (g *greeter) release() { buffer.Recycle(g.said) }

// name reads the whole TLS greeting (ClientHello), or the first bytes of another protocol. It
// returns the server name in the greeting, or an empty string if there is none. A greeting that
// cannot be parsed is an error, because the destination might find a name in it.
func (g *greeter) name() (string, error) {
	for i, want := range []byte{recordHandshake, 3} {
		if len(g.said) == i {
			if err := g.more(); err == io.EOF {
				return "", nil // not an error here: the end of the stream is forwarded
			} else if err != nil {
				return "", err
			}
		}
		if g.said[i] != want {
			return "", nil
		}
	}
	understood, name := false, ""
	err := tls.Server(g, &tls.Config{
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			understood, name = true, hello.ServerName
			return nil, errUnderstood
		},
	}).Handshake()
	if understood {
		err = nil
	}
	return name, err
}

// encrypted reports whether the bytes that were read begin a TLS greeting.
func (g *greeter) encrypted() bool {
	return len(g.said) > 1 && g.said[0] == recordHandshake && g.said[1] == 3
}

// more reads the bytes that are available. It keeps at most maxGreeting bytes in total.
func (g *greeter) more() error {
	if len(g.said) == maxGreeting {
		return head.ErrTooLarge
	}
	if len(g.said) == cap(g.said) {
		larger := append(buffer.Get(2*len(g.said)), g.said...)
		buffer.Recycle(g.said)
		g.said = larger
	}
	n, err := g.from.Read(g.said[len(g.said):min(cap(g.said), maxGreeting)])
	g.said = g.said[:len(g.said)+n]
	if n > 0 {
		return nil
	}
	g.lost = err
	return err
}

func (g *greeter) Read(p []byte) (int, error) {
	if g.read == len(g.said) {
		if err := g.more(); err != nil {
			return 0, err
		}
	}
	n := copy(p, g.said[g.read:])
	g.read += n
	return n, nil
}

func (g *greeter) Write(p []byte) (int, error)      { return len(p), nil }
func (g *greeter) Close() error                     { return nil }
func (g *greeter) SetDeadline(time.Time) error      { return nil }
func (g *greeter) SetReadDeadline(time.Time) error  { return nil }
func (g *greeter) SetWriteDeadline(time.Time) error { return nil }
