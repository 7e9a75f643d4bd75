// Package forwarding passes connections on this machine on to addresses on an agent's side.
//
// [ParseSpec] reads a [Spec], and a [Forwarder] listens at it and forwards. [Standard] forwards
// standard input and output.
package forwarding

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/unixsocket"
)

// Spec is an address to listen at on this machine, and an address to connect to on the agent's
// side.
type Spec struct {
	Network, Local string // tcp and HOST:PORT, or unix and a path
	Remote         string // tcp://HOST:PORT or unix:///PATH
}

// ParseSpec reads one of these forms:
//
//	PORT
//	LOCAL:PORT
//	LOCAL:HOST:PORT
//	LOCAL:/PATH
//
// LOCAL is a port of this machine, 0 or empty for a free port, or an absolute path. host is the
// address at which a port listens.
func ParseSpec(text, host string) (Spec, error) {
	local, remote, two := strings.Cut(text, ":")
	if strings.HasPrefix(text, "[") { // HOST:PORT there, with an address of IPv6
		local, remote, two = "", text, true
	}
	if _, err := netip.ParseAddr(local); err == nil && strings.Contains(local, ".") {
		return Spec{}, fmt.Errorf("%q begins with an address of this machine: write --address %s and %s", text, local, remote)
	}
	if !two {
		remote = local
	}
	var s Spec
	var err error
	if !two && path.IsAbs(text) {
		err = errors.New("write the port or the path of this machine before the path")
	} else if s.Remote, err = Remote(remote); err == nil {
		s.Network, s.Local, err = listening(local, host)
	}
	if err != nil {
		return s, fmt.Errorf("%q is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: %w", text, err)
	}
	return s, nil
}

// listening reads LOCAL.
func listening(local, host string) (network, address string, err error) {
	if path.IsAbs(local) {
		if len(local) > unixsocket.MaxPath {
			err = fmt.Errorf("the path of a socket can have at most %d bytes, and this one has %d", unixsocket.MaxPath, len(local))
		}
		return "unix", local, err
	}
	if local == "" {
		local = "0"
	}
	if _, err := strconv.ParseUint(local, 10, 16); err != nil {
		return "", "", fmt.Errorf("%q is not a port", local)
	}
	return "tcp", net.JoinHostPort(host, local), nil
}

// Remote reads PORT, HOST:PORT or /PATH.
func Remote(text string) (address string, err error) {
	if path.IsAbs(text) {
		return "unix://" + text, nil
	}
	host, port := "localhost", text
	if strings.Contains(text, ":") {
		if host, port, err = net.SplitHostPort(text); err != nil || host == "" {
			return "", errors.New("the host or the port is missing")
		}
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("%q is not a port", port)
	}
	return "tcp://" + net.JoinHostPort(host, port), nil
}
