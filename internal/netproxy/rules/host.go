package rules

import (
	"errors"
	"net/netip"
	"strings"
)

// Limits of the DNS for hosts and patterns, in bytes.
const (
	maxHost  = 253
	maxLabel = 63
)

// Errors of [Host]. They do not quote the host, because it may be any text.
var (
	ErrHostLength = errors.New("host is empty or longer than 253 bytes")
	ErrHostSyntax = errors.New("host is neither an ASCII name nor an IP address")
)

// Host returns the form of a host in which it is judged, asked about, and reported: without
// surrounding white space, in lower case, and without trailing dots. An address has the form of
// package netip, without brackets; an IPv4 address that is mapped into IPv6 becomes the IPv4
// address. Host refuses user information, a port, a zone, letters outside ASCII, and an empty
// label.
func Host(text string) (string, error) {
	host := strings.TrimRight(strings.Trim(text, " \t"), ".")
	if host == "" || len(host) > maxHost+2 { // an address may have brackets
		return "", ErrHostLength
	}
	if strings.HasPrefix(host, "[") || strings.Contains(host, ":") {
		inner, bracketed := strings.CutPrefix(host, "[")
		if bracketed {
			var closed bool
			if inner, closed = strings.CutSuffix(inner, "]"); !closed {
				return "", ErrHostSyntax
			}
		}
		addr, err := netip.ParseAddr(inner)
		if err != nil || !addr.Is6() || addr.Zone() != "" {
			return "", ErrHostSyntax
		}
		return addr.Unmap().String(), nil
	}
	if len(host) > maxHost {
		return "", ErrHostLength
	}
	host = lower(host)
	if !isName(host, "") {
		return "", ErrHostSyntax
	}
	return host, nil
}

// lower is strings.ToLower for ASCII only. Unicode has letters outside ASCII whose lower case is in
// ASCII, such as the Kelvin sign, and no host may be changed into another host.
func lower(s string) string {
	for i := range len(s) {
		if 'A' <= s[i] && s[i] <= 'Z' {
			b := []byte(s)
			for j, c := range b {
				if 'A' <= c && c <= 'Z' {
					b[j] = c + 'a' - 'A'
				}
			}
			return string(b)
		}
	}
	return s
}

// isName reports whether a text consists of labels of letters, digits, hyphens, underscores, and
// the characters of extra.
func isName(s, extra string) bool {
	label := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			if label == 0 {
				return false
			}
			label = 0
			continue
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_', strings.IndexByte(extra, c) >= 0:
		default:
			return false
		}
		if label++; label > maxLabel {
			return false
		}
	}
	return label > 0
}

// literal returns the address if the host is an IP address.
func literal(host string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(host)
	return addr, err == nil
}

// EndsInNumber reports whether a name ends in a number, such as 127.1, 0x7f000001 and 0177.0.0.1.
// No name of the DNS ends in a number, but old resolvers, and proxies behind us, read such a name
// as an IPv4 address.
func EndsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	if hex, ok := strings.CutPrefix(last, "0x"); ok {
		return strings.Trim(hex, "0123456789abcdef") == ""
	}
	return strings.Trim(last, "0123456789") == ""
}
