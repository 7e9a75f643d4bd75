package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/conns"
	"github.com/execagent/execagent/internal/unixsocket"
)

// maxHost bounds the name of a host, in bytes (RFC 1035).
const maxHost = 253

// An Address is the address to which a socket connects.
type Address struct {
	Network string // tcp or unix
	Target  string // HOST:PORT, or an absolute path
}

func (a Address) String() string { return a.Network + "://" + a.Target }

// ParseAddress parses tcp://HOST:PORT or unix:///PATH. Percent signs in the path have no special
// meaning.
func ParseAddress(text string) (Address, error) {
	network, target, _ := strings.Cut(text, "://")
	var err error
	switch network {
	case "tcp":
		err = checkHostPort(target)
	case "unix":
		err = checkPath(target)
	default:
		err = errors.New("want tcp://HOST:PORT or unix:///PATH")
	}
	if err != nil {
		return Address{}, fmt.Errorf("%.512q: %w", text, err)
	}
	return Address{network, target}, nil
}

// Dial connects to the address. If the cause is an errno, the error wraps it.
func Dial(ctx context.Context, a Address) (Conn, error) {
	conn, err := conns.Dial(ctx, a.Network, a.Target)
	if err != nil {
		return nil, err
	}
	return conn.(Conn), nil // the connections of both networks implement Conn
}

func checkHostPort(target string) error {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return errors.New("want tcp://HOST:PORT")
	}
	if host == "" || len(host) > maxHost || strings.ContainsFunc(host, notInHost) {
		return fmt.Errorf("%.260q is no host", host)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("port %.32q is not 1 to 65535", port)
	}
	return nil
}

func notInHost(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`/\@?#[]`, r) }

func checkPath(target string) error {
	switch {
	case !path.IsAbs(target):
		return errors.New("the path is not absolute")
	case len(target) > unixsocket.MaxPath:
		return fmt.Errorf("the path is %d bytes, at most %d", len(target), unixsocket.MaxPath)
	case strings.ContainsRune(target, 0):
		return errors.New("the path has a NUL byte")
	}
	return nil
}
