package head

import (
	"bytes"
	"strings"
)

// A Target is the parsed target of a request. Missing parts are empty.
type Target struct {
	Scheme    string // in lower case; empty in origin form
	Authority string // without user information
	Path      []byte // with the query; "/" where an absolute target has no path
}

// ParseTarget parses a target in origin form ("/path") or in absolute form
// ("scheme://authority/path").
func ParseTarget(target []byte) (Target, error) {
	if target[0] == '/' {
		return Target{Path: target}, nil
	}
	before, rest, ok := bytes.Cut(target, []byte("://"))
	if !ok || !isScheme(before) {
		return Target{}, MalformedError("the target is neither a path nor a URL")
	}
	end := bytes.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	t := Target{Scheme: strings.ToLower(string(before)), Path: rest[end:]}
	authority := rest[:end]
	if i := bytes.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	if len(authority) == 0 {
		return Target{}, MalformedError("the target has no authority")
	}
	for _, c := range authority {
		if c >= 0x80 {
			return Target{}, MalformedError("the target has a host that is not ASCII")
		}
	}
	t.Authority = string(authority)
	switch {
	case len(t.Path) == 0:
		t.Path = []byte("/")
	case t.Path[0] == '?':
		t.Path = append([]byte("/"), t.Path...)
	}
	return t, nil
}

func isScheme(text []byte) bool {
	for i, c := range text {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
		case i > 0 && (isDigit(c) || c == '+' || c == '-' || c == '.'):
		default:
			return false
		}
	}
	return len(text) > 0
}

// SplitAuthority returns host and port of an authority without user information, such as the value
// of a Host field. An IPv6 address keeps its brackets. If there is no port, the port is 0.
func SplitAuthority(authority string) (host string, port uint16, err error) {
	malformed := MalformedError("an authority is not HOST or HOST:PORT")
	host = authority
	after := ""
	colon := false
	if strings.HasPrefix(authority, "[") {
		end := strings.IndexByte(authority, ']')
		if end < 0 {
			return "", 0, malformed
		}
		host, after = authority[:end+1], authority[end+1:]
		if after, colon = strings.CutPrefix(after, ":"); !colon && after != "" {
			return "", 0, malformed
		}
	} else {
		host, after, colon = strings.Cut(authority, ":")
	}
	if host == "" || strings.ContainsAny(host, "@/?# \t") {
		return "", 0, malformed
	}
	if !colon {
		return host, 0, nil
	}
	n, ok := number([]byte(after))
	if !ok || len(after) > 5 || n == 0 || n > 65535 {
		return "", 0, malformed
	}
	return host, uint16(n), nil
}
