package httpclient

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// parseURL parses an absolute http or https URL as leniently as the WHATWG URL standard, which was
// made for URLs that people paste. Blanks around the URL are dropped, and tabs and line ends
// anywhere in it. `\` separates like `/`. Any number of slashes may follow the scheme. Bytes that
// are not allowed in a URL are encoded. Dot segments are resolved. The result has a path and no
// fragment.
func parseURL(text string) (*url.URL, error) {
	text = clean(text)
	scheme, rest, ok := strings.Cut(text, ":")
	if !ok || !isScheme(scheme) {
		return nil, errors.New("relative url without a base")
	}
	scheme = strings.ToLower(scheme)
	if scheme != "http" && scheme != "https" {
		return nil, fmt.Errorf("scheme %s is not supported, want http or https", scheme)
	}
	u, err := url.Parse(scheme + "://" + strings.TrimLeft(rest, "/"))
	if err != nil {
		return nil, plainURLError(err)
	}
	return finish(u)
}

// resolveURL parses the target of a redirect like parseURL, but the target may be relative to base.
func resolveURL(base *url.URL, text string) (*url.URL, error) {
	text = clean(text)
	if scheme, _, ok := strings.Cut(text, ":"); ok && isScheme(scheme) {
		return parseURL(text)
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, plainURLError(err)
	}
	return finish(base.ResolveReference(u))
}

func finish(u *url.URL) (*url.URL, error) {
	if u.Hostname() == "" {
		return nil, errors.New("empty host")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n > 65535 {
			return nil, fmt.Errorf("port %s is over 65535", bounded(port))
		}
	}
	u.Host = strings.ToLower(u.Host)
	u.Fragment, u.RawFragment = "", ""
	u.Path = cmp.Or(u.Path, "/")
	return u.ResolveReference(u), nil // ResolveReference removes the dot segments
}

// clean prepares the text of a URL for net/url. net/url refuses or keeps some bytes that the WHATWG
// standard encodes or removes.
func clean(text string) string {
	text = strings.TrimFunc(text, func(r rune) bool { return r <= ' ' })
	text, _, _ = strings.Cut(text, "#")
	var out strings.Builder
	out.Grow(len(text))
	query := false
	for i := range len(text) {
		switch c := text[i]; {
		case c == '\t' || c == '\n' || c == '\r':
		case c == '?':
			query = true
			out.WriteByte(c)
		case c == '\\' && !query:
			out.WriteByte('/')
		case c == '%' && !isEscape(text[i:]), c <= ' ', c == '"', c == '<', c == '>', c == 0x7f:
			fmt.Fprintf(&out, "%%%02X", c)
		case c >= 0x80 && query:
			// net/url encodes the rest of the URL itself, and leaves a query as
			// it is.
			fmt.Fprintf(&out, "%%%02X", c)
		default:
			out.WriteByte(c)
		}
	}
	return out.String()
}

func isEscape(s string) bool {
	if len(s) < 3 {
		return false
	}
	_, err := strconv.ParseUint(s[1:3], 16, 8)
	return err == nil
}

// isHostPort reports whether s is a valid Host header: a name, an IPv4 address or an IPv6 address
// in brackets, and optionally a port (RFC 9110, section 7.2; RFC 3986, section 3.2.2).
func isHostPort(s string) bool {
	host := s
	if i := strings.LastIndexByte(s, ':'); i > strings.LastIndexByte(s, ']') {
		host = s[:i]
		if _, err := strconv.ParseUint(s[i+1:], 10, 16); err != nil {
			return false
		}
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		ip, err := netip.ParseAddr(inner)
		return ok && err == nil && ip.Is6() && ip.Zone() == ""
	}
	for i := range len(host) {
		switch c := host[i]; {
		case c >= '0' && c <= '9', c|0x20 >= 'a' && c|0x20 <= 'z':
		case strings.IndexByte("-._~!$&'()*+,;=", c) >= 0:
		case c == '%' && isEscape(host[i:]):
		default:
			return false
		}
	}
	return host != ""
}

// isScheme reports whether s is a scheme of RFC 3986, section 3.1.
func isScheme(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c|0x20 >= 'a' && c|0x20 <= 'z':
		case i > 0 && (c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return s != ""
}

// plainURLError removes the URL from an error, because a URL may hold a password, and the caller
// knows which URL it sent.
func plainURLError(err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		return e.Err
	}
	return err
}
