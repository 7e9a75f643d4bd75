package netproxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/netip"
	"syscall"

	"github.com/execagent/execagent/internal/netproxy/head"
)

// A link is a connection to a destination, or to a hop before it. A client keeps one from one
// plain request to the next, if the next one goes to the same place.
type link struct {
	raw   net.Conn // the connection itself
	conn  net.Conn // raw, or TLS on it
	in    *head.Reader
	place string       // where it leads
	addrs []netip.Addr // of the destination, as they were judged
	hop   *hop         // that it leads to, if it leads not to the destination itself
	used  bool         // by an earlier request
}

// cut ends a link.
func (p *Proxy) cut(l *link) {
	p.drop(l.raw)
	l.in.Release()
}

// open has the hop make a tunnel to the place.
func (l *link) open(place string) error {
	if _, err := io.WriteString(l.conn, "CONNECT "+place+" HTTP/1.1\r\nHost: "+place+"\r\n"+l.hop.credentials()+"\r\n"); err != nil {
		return err
	}
	a, err := l.in.Response("CONNECT")
	if err != nil {
		return err
	}
	if a.Status < 200 || a.Status > 299 {
		return errRefusedByHop
	}
	return nil
}

var errRefusedByHop = errors.New("connecting: the upstream proxy makes no tunnel")

// encrypt speaks TLS on the link, to a host of this name.
func (l *link) encrypt(ctx context.Context, host string, roots *x509.CertPool) error {
	if len(l.in.Buffered()) > 0 {
		return errTooEarly
	}
	conn := tls.Client(l.raw, &tls.Config{ServerName: host, RootCAs: roots, NextProtos: []string{"http/1.1"}})
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	l.conn = conn
	l.in.Reset(conn)
	return nil
}

var errTooEarly = errors.New("connecting: the other end speaks before TLS has begun")

// alive reports whether the other end has neither hung up nor said anything out of turn.
func (l *link) alive() bool {
	s, ok := l.raw.(stream)
	if !ok || len(l.in.Buffered()) > 0 {
		return false
	}
	_, err := peek(s)
	return err == syscall.EAGAIN
}

// ended reports whether the other end of a connection will send nothing more.
func ended(s stream) bool {
	n, err := peek(s)
	return n == 0 && err != syscall.EAGAIN
}

// peek looks without waiting for the next byte: it returns 1, or 0 at the end, or EAGAIN if
// there is nothing yet.
func peek(s stream) (int, error) {
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, err
	}
	var n int
	var found error
	if err := raw.Control(func(fd uintptr) { n, found = peekAt(fd) }); err != nil {
		return 0, err
	}
	return n, found
}

func peekAt(fd uintptr) (int, error) {
	var b [1]byte
	for {
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}

// await returns when there is a byte to be read, the end, or an error, and uses no memory
// until then. The read deadline holds.
func await(s interface {
	net.Conn
	syscall.Conn
}) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var found error
	err = raw.Read(func(fd uintptr) bool {
		_, found = peekAt(fd)
		return found != syscall.EAGAIN
	})
	if err != nil {
		return err
	}
	return found
}
