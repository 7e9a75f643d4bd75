package netproxy

import (
	"bytes"
	"cmp"

	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A destination is the host, port and path that an HTTP request is for.
type destination struct {
	host    string // in the form that package rules judges
	port    uint16
	encrypt bool   // the proxy itself must speak TLS with the destination
	path    []byte // path and query, as the destination gets them
	named   bool   // the request has a Host field
}

// withoutQuery returns the path without the query, as request rules and credentials compare it. In HTTP/2 the
// same is URL.EscapedPath.
func (d *destination) withoutQuery() string {
	path, _, _ := bytes.Cut(d.path, []byte("?"))
	return string(path)
}

// A misdirected error says why a request has no valid destination. The command reads its text.
type misdirected string

func (m misdirected) Error() string { return string(m) }

// These texts are part of an interface: programs may compare them.
const (
	missingHost   misdirected = "missing host"
	multipleHosts misdirected = "multiple Host headers"
	invalidHost   misdirected = "invalid Host header"
	otherHost     misdirected = "Host header does not match request target"
	nothingToSay  misdirected = ""
)

// destinationOf returns the destination of a request: the authority of its target, if the target
// has an authority, else its Host field. If the request has both, they must agree, because some
// servers obey the target and others obey Host.
func destinationOf(q *head.Request) (destination, error) { return destinationAt(q, 80) }

// destinationAt is like destinationOf, but uses the given port for requests that name no port.
func destinationAt(q *head.Request, port uint16) (destination, error) {
	named, field, err := hostField(q.Fields)
	if err != nil {
		return destination{}, err
	}
	d := destination{named: named, port: port}
	authority := field
	if q.Method == "CONNECT" {
		authority = string(q.Target)
		d.port = 0 // a CONNECT without a port is invalid
	} else {
		target, err := head.ParseTarget(q.Target)
		if err != nil {
			return d, nothingToSay
		}
		d.path = target.Path
		if target.Scheme != "" {
			authority = target.Authority
		} else if !named {
			return d, missingHost
		}
		if target.Scheme == "https" {
			d.encrypt, d.port = true, 443
		}
	}
	usual := d.port
	if d.host, d.port, err = parseAuthority(authority, usual); err != nil || d.port == 0 {
		return d, missingHost
	}
	if named {
		if q.Method == "CONNECT" {
			usual = d.port // a Host without a port means the port of the target
		}
		host, port, err := parseAuthority(field, usual)
		if err != nil {
			return d, invalidHost
		}
		if host != d.host || port != d.port {
			return d, otherHost
		}
	}
	return d, nil
}

// hostField returns the value of the Host field. More than one Host field is an error.
func hostField(fields []head.Field) (named bool, value string, err error) {
	for _, f := range fields {
		if !f.Is("host") {
			continue
		}
		if named {
			return false, "", multipleHosts
		}
		named, value = true, string(f.Value)
		for _, c := range f.Value {
			if c >= 0x80 {
				return false, "", nothingToSay
			}
		}
		if value == "" {
			return false, "", nothingToSay
		}
	}
	return named, value, nil
}

// parseAuthority returns the host in the form that package rules judges, and the port. If authority
// has no port, the port is usual.
func parseAuthority(authority string, usual uint16) (host string, port uint16, err error) {
	host, port, err = head.SplitAuthority(authority)
	if err != nil {
		return "", 0, err
	}
	port = cmp.Or(port, usual)
	host, err = rules.Host(host)
	return host, port, err
}
