package mask

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A Destination is the destination of one request of the command.
type Destination struct {
	TLS  bool
	Host string // in the form that rules.Host returns
	Port uint16
	Path string // as written in the request, without the query
}

// A destination is a set of URLs that may receive a credential.
type destination struct {
	tls      bool
	host     string
	wildcard bool // only names below host
	port     uint16
	path     string // without a trailing slash; "": every path
}

var errDestination = errors.New("a destination is not https://HOST[:PORT][/PATH], or http:// for loopback")

// parsePlace parses a destination of a provider. Without a scheme the destination uses TLS, unless
// it is a loopback address.
func parsePlace(text string) (destination, error) {
	var p destination
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		scheme, rest = "", text
	}
	if rest == "" || strings.ContainsAny(rest, "@?#\\ \t\r\n\x00") {
		return p, errDestination
	}
	authority, path, hasPath := strings.Cut(rest, "/")
	if hasPath {
		p.path = strings.TrimRight("/"+path, "/")
	}
	if p.path != "" && !rules.PlainPath(p.path) {
		return p, errDestination
	}
	host, port := authority, ""
	if i := strings.LastIndexByte(authority, ':'); i >= 0 && !strings.HasSuffix(authority, "]") {
		host, port = authority[:i], authority[i+1:]
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return p, errDestination
		}
		p.port = uint16(n)
	}
	host, p.wildcard = strings.CutPrefix(host, "*.")
	var err error
	if p.host, err = rules.Host(host); err != nil {
		return p, errDestination
	}
	switch strings.ToLower(scheme) {
	case "https":
		p.tls = true
	case "http":
	case "":
		p.tls = !p.loopback()
	default:
		return p, errDestination
	}
	if !p.tls && !p.loopback() {
		return p, errDestination // without TLS, the credential would be readable on the network
	}
	if p.port == 0 {
		p.port = 80
		if p.tls {
			p.port = 443
		}
	}
	return p, nil
}

func (p *destination) loopback() bool {
	addr, err := netip.ParseAddr(p.host)
	return !p.wildcard && (p.host == "localhost" || err == nil && addr.IsLoopback())
}

// at reports whether the destination includes a host and port.
func (p *destination) at(tls bool, host string, port uint16) bool {
	if p.tls != tls || p.port != port {
		return false
	}
	if p.wildcard {
		return strings.HasSuffix(host, "."+p.host)
	}
	return host == p.host
}

func (p *destination) contains(d Destination) bool {
	if !p.at(d.TLS, d.Host, d.Port) {
		return false
	}
	if p.path == "" {
		return true
	}
	rest, ok := strings.CutPrefix(d.Path, p.path)
	return ok && (rest == "" || rest[0] == '/') && rules.PlainPath(d.Path)
}
