package transport

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/execagent/execagent/internal/conns"
)

// overTLS is a net.Conn with the Read and Write of a wire over TLS. Package net/http treats it as a
// plain connection, so the first Read does the handshake of a server: within the deadline of the
// whole HTTP part, and with its seat in the lobby.
type overTLS struct {
	*tls.Conn
	*wire
	shake func() error // the pending handshake; nil: none
}

func (o *overTLS) Read(p []byte) (int, error) {
	if shake := o.shake; shake != nil {
		o.shake = nil
		if err := shake(); err != nil {
			return 0, io.EOF // net/http cannot answer this client
		}
	}
	return o.wire.Read(p)
}

func (o *overTLS) Write(p []byte) (int, error) { return o.wire.Write(p) }

// Close ends the connection without waiting.
func (o *overTLS) Close() error {
	o.wire.part(nil)
	return o.wire.conn.Close()
}

// below is the connection below TLS.
type below struct {
	stream
	// hasty: the current write is the last, and is sent as far as possible without waiting.
	hasty atomic.Bool
}

func (b *below) Write(p []byte) (int, error) {
	if !b.hasty.Load() {
		return b.stream.Write(p)
	}
	sendNow(b.stream, p)
	return len(p), nil
}

// sendNow sends as much of p as it can without waiting.
func sendNow(conn syscall.Conn, p []byte) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return // it is closed
	}
	_ = raw.Control(func(fd uintptr) {
		_, _ = syscall.SendmsgN(int(fd), p, nil, nil, syscall.MSG_DONTWAIT)
	})
}

// part sends the last words on a connection with TLS, and closes its sending side, without waiting.
func (w *wire) part(words []byte) {
	w.below.hasty.Store(true)
	// The reader may be stuck in a write that the protocol requires, and hold the lock of the
	// sending side.
	_ = w.conn.SetWriteDeadline(time.Now())
	if len(words) > 0 {
		_, _ = w.secure.Write(words)
	}
	_ = w.secure.CloseWrite() // fails before the handshake, when there is nothing to end
}

// newSecureWire is newWire with TLS over conn. The caller does the handshake.
func newSecureWire(conn stream, config *tls.Config, role func(net.Conn, *tls.Config) *tls.Conn) (*wire, *overTLS) {
	w := &wire{conn: conn, below: &below{stream: conn}}
	w.secure = role(w.below, config)
	return w, &overTLS{Conn: w.secure, wire: w}
}

// errPlain says that a client does not use TLS.
var errPlain = errors.New("it speaks no TLS")

// plainAnswer is for such a client, if it speaks HTTP.
const plainAnswer = "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: 38\r\n\r\n" +
	"this listener speaks TLS, use wss://\r\n"

// shakeHands does the handshake of a server.
func (w *wire) shakeHands() error {
	// net/http has already set the deadline of reading.
	_ = w.conn.SetWriteDeadline(time.Now().Add(handshakeTimeout)) // fails with the writes
	err := w.secure.Handshake()
	if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && header.Conn != nil {
		sendNow(w.conn, []byte(plainAnswer))
		conns.Linger(w.conn)
		return errPlain
	}
	return err
}

// nameOf names the subject of a certificate as a principal: its first URI, as in SPIFFE; or its
// whole distinguished name (RFC 2253), if that has a common name; or its first other name; or an
// identifier of the certificate itself. These forms cannot be confused: a distinguished name begins
// with a type of attribute and =.
func nameOf(c *x509.Certificate) string {
	if len(c.URIs) > 0 {
		return "URI:" + c.URIs[0].String()
	}
	// Certificate.Subject has only one common name, but there may be several.
	var subject pkix.RDNSequence
	if rest, err := asn1.Unmarshal(c.RawSubject, &subject); err == nil && len(rest) == 0 && c.Subject.CommonName != "" {
		return subject.String()
	}
	switch {
	case len(c.DNSNames) > 0:
		return "DNS:" + c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return "email:" + c.EmailAddresses[0]
	}
	sum := sha256.Sum256(c.Raw)
	return "SHA256:" + hex.EncodeToString(sum[:])
}
