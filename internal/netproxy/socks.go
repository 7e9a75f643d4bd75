package netproxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// Bytes of SOCKS5 (RFC 1928).
const (
	socksVersion = 5

	methodNone         = 0 // no authentication
	methodUnacceptable = 0xff

	commandConnect   = 1
	commandAssociate = 3

	typeIPv4 = 1
	typeName = 3
	typeIPv6 = 4

	replySucceeded  = 0
	replyFailure    = 1
	replyNotAllowed = 2
	replyRefused    = 5 // no connection could be made, for any reason
	replyCommand    = 7 // command not supported
	replyType       = 8 // address type not supported
)

var (
	errSOCKS       = errors.New("reading SOCKS5: it is not in its form")
	errMethod      = errors.New("reading SOCKS5: the method without authentication is not offered")
	errAddressType = errors.New("reading SOCKS5: an address is of a type that there is not")
)

// serveSOCKS serves one connection: a greeting, one request, and the tunnel or the association for
// the request.
func (p *Proxy) serveSOCKS(conn stream) {
	in := head.NewReader(conn)
	defer in.Release()
	if conn.SetReadDeadline(time.Now().Add(p.times.head)) != nil {
		return
	}
	if err := readGreeting(in); err != nil {
		if err == errMethod {
			p.farewell(conn, []byte{socksVersion, methodUnacceptable})
		}
		return
	}
	if _, err := conn.Write([]byte{socksVersion, methodNone}); err != nil {
		return
	}
	command, host, port, err := readSOCKS(in)
	var name string
	if err == nil {
		name, err = rules.Host(host)
	}
	switch {
	case command != 0 && command != commandConnect && command != commandAssociate:
		p.farewell(conn, reply(replyCommand, netip.AddrPort{}))
		return
	case command == commandAssociate && p.cfg.Datagrams == nil:
		p.farewell(conn, reply(replyCommand, netip.AddrPort{}))
		return
	case command == commandAssociate && err == nil:
		// Any address is accepted, also 0.0.0.0 or a name: the address that the datagrams come from is
		// not known yet.
	case errors.Is(err, errAddressType):
		p.farewell(conn, reply(replyType, netip.AddrPort{}))
		return
	case err != nil:
		if command != 0 {
			p.farewell(conn, reply(replyFailure, netip.AddrPort{}))
		}
		return
	}
	if conn.SetReadDeadline(time.Time{}) != nil {
		return
	}
	if command == commandAssociate {
		p.associate(conn, in, port)
		return
	}
	q := request{Request: rules.Request{Protocol: rules.SOCKS5TCP, Host: p.meant(name), Port: port}, client: conn.RemoteAddr().String()}
	l, refused := p.reach(p.ctx, q, nil)
	if refused != nil {
		code := byte(replyNotAllowed)
		if refused.failed {
			code = replyRefused
		}
		p.farewell(conn, reply(code, netip.AddrPort{}))
		return
	}
	defer p.cut(l)
	if _, err := conn.Write(reply(replySucceeded, addrPort(l.raw.LocalAddr()))); err != nil {
		return
	}
	p.tunnel(q, conn, in, l)
}

// farewell sends the last bytes on a connection, and waits up to times.drain for the other end to
// receive them.
func (p *Proxy) farewell(conn stream, last []byte) {
	if _, err := conn.Write(last); err != nil {
		return
	}
	_ = conn.CloseWrite()
	if conn.SetReadDeadline(time.Now().Add(p.times.drain)) == nil {
		_, _ = io.CopyN(io.Discard, conn, maxUnread)
	}
}

// readGreeting reads the authentication methods that a client offers.
func readGreeting(r io.Reader) error {
	var b [2 + 255]byte
	if _, err := io.ReadFull(r, b[:2]); err != nil {
		return err
	}
	if b[0] != socksVersion {
		return errSOCKS
	}
	methods := b[2 : 2+int(b[1])]
	if _, err := io.ReadFull(r, methods); err != nil {
		return err
	}
	if slices.Contains(methods, methodNone) {
		return nil
	}
	return errMethod
}

// readSOCKS reads a request. If the part after the command is invalid, it returns the command and
// an error.
func readSOCKS(r io.Reader) (command byte, host string, port uint16, err error) {
	var b [3]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return 0, "", 0, err
	}
	if b[0] != socksVersion || b[1] == 0 {
		return 0, "", 0, errSOCKS
	}
	if b[2] != 0 {
		return b[1], "", 0, errSOCKS
	}
	host, port, err = readAddress(r)
	return b[1], host, port, err
}

// readAddress reads an address and a port in the form of requests and datagrams.
func readAddress(r io.Reader) (host string, port uint16, err error) {
	var b [1 + maxName + 2]byte
	if _, err := io.ReadFull(r, b[:1]); err != nil {
		return "", 0, err
	}
	length, kind := 0, b[0]
	switch kind {
	case typeIPv4:
		length = net.IPv4len
	case typeIPv6:
		length = net.IPv6len
	case typeName:
		if _, err := io.ReadFull(r, b[:1]); err != nil {
			return "", 0, err
		}
		length = int(b[0])
	default:
		return "", 0, errAddressType
	}
	if _, err := io.ReadFull(r, b[:length+2]); err != nil {
		return "", 0, err
	}
	port = binary.BigEndian.Uint16(b[length:])
	if kind == typeName {
		return string(b[:length]), port, nil
	}
	addr, _ := netip.AddrFromSlice(b[:length]) // the length is always valid
	return addr.String(), port, nil
}

// reply returns an answer to a request. The address at is one of this end.
func reply(code byte, at netip.AddrPort) []byte {
	return appendAddressOf([]byte{socksVersion, code, 0}, at)
}

// appendAddressOf appends an address and a port. An invalid address is written as 0.0.0.0.
func appendAddressOf(to []byte, at netip.AddrPort) []byte {
	addr := at.Addr().Unmap()
	switch {
	case addr.Is6():
		to = append(append(to, typeIPv6), addr.AsSlice()...)
	case addr.Is4():
		to = append(append(to, typeIPv4), addr.AsSlice()...)
	default:
		to = append(to, typeIPv4, 0, 0, 0, 0)
	}
	return binary.BigEndian.AppendUint16(to, at.Port())
}

// addrPort returns the address of one end of a connection. The result is invalid if that end has no
// IP address.
func addrPort(addr net.Addr) netip.AddrPort {
	switch a := addr.(type) {
	case *net.TCPAddr:
		return a.AddrPort()
	case *net.UDPAddr:
		return a.AddrPort()
	}
	return netip.AddrPort{}
}
