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

// A link is a connection to a destination, or to an upstream proxy (hop). A client uses the link
// again for its next plain request if that request goes to the same place.
type link struct {
	raw   net.Conn // the connection itself
	conn  net.Conn // raw, or a TLS connection over raw
	in    *head.Reader
	place string       // HOST:PORT of the destination
	addrs []netip.Addr // addresses of the destination that were judged
	hop   *hop         // the upstream proxy at the other end; nil if the other end is the destination
	used  bool         // an earlier request was sent on the link
	// answered: the Decider has allowed the host for the tunnel of this link.
	answered bool
}

// cut closes a link.
func (p *Proxy) cut(l *link) {
	p.drop(l.raw)
	l.in.Release()
}

// open asks the hop to make a tunnel to the place.
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

// encrypt starts TLS on the link. The server must have a certificate for host.
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

// alive reports whether the other end has neither hung up nor sent unexpected bytes.
func (l *link) alive() bool {
	s, ok := l.raw.(stream)
	if !ok || len(l.in.Buffered()) > 0 {
		return false
	}
	_, err := peek(s)
	return err == syscall.EAGAIN
}

// ended reports whether the other end of a connection has closed its direction, so that no more
// bytes will come.
func ended(s stream) bool {
	n, err := peek(s)
	return n == 0 && err != syscall.EAGAIN
}

// peek looks for the next byte without waiting. It returns 1 if there is a byte, 0 at the end of
// the stream, and EAGAIN if there is no byte yet.
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

// await waits until there is a byte to read, the end of the stream, or an error. It uses no buffer
// while it waits. The read deadline applies.
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
