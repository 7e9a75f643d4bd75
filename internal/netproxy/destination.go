package netproxy

import (
	"cmp"
	"github.com/execagent/execagent/internal/netproxy/head"
	"github.com/execagent/execagent/internal/netproxy/rules"
)

// A destination is where a request of HTTP is to go.
type destination struct {
	host    string // as package rules judges it
	port    uint16
	encrypt bool   // to be reached with TLS, by the proxy
	path    []byte // for the destination
	named   bool   // the request has a Host field
}

// A misdirected error is why a request has no destination, as the command is told.
type misdirected string

func (m misdirected) Error() string { return string(m) }

// Texts of a contract: programs may look for them.
const (
	missingHost   misdirected = "missing host"
	multipleHosts misdirected = "multiple Host headers"
	invalidHost   misdirected = "invalid Host header"
	otherHost     misdirected = "Host header does not match request target"
	nothingToSay  misdirected = ""
)

// destinationOf finds out where a request goes: to its target, if that has an authority, else
// to its Host. Both have to agree, since servers differ in which of the two they heed.
func destinationOf(q *head.Request) (destination, error) { return destinationAt(q, 80) }

// destinationAt is destinationOf where requests without a port go to the given one.
func destinationAt(q *head.Request, port uint16) (destination, error) {
	named, field, err := hostField(q.Fields)
	if err != nil {
		return destination{}, err
	}
	d := destination{named: named, port: port}
	authority := field
	if q.Method == "CONNECT" {
		authority = string(q.Target)
		d.port = 0 // a tunnel to a port that nobody has named is none
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
			usual = d.port // a Host without a port names the same one
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

// hostField returns the value of the only Host field.
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

// parseAuthority returns the host as it is judged, and the port, or the usual one.
func parseAuthority(authority string, usual uint16) (host string, port uint16, err error) {
	host, port, err = head.SplitAuthority(authority)
	if err != nil {
		return "", 0, err
	}
	port = cmp.Or(port, usual)
	host, err = rules.Host(host)
	return host, port, err
}
