package auth

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
)

// IsLoopback reports whether a host, without port and brackets, is certainly this
// machine: localhost, or a numeric loopback address. Other names are not looked
// up, because their addresses may change.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}

// checkURL reads the URL of a service that gets credentials, with blanks around
// it trimmed. It must be absolute, https or http to loopback, without userinfo
// and fragment. Errors never quote it.
func checkURL(raw string) (*url.URL, error) {
	u, err := url.Parse(strings.TrimSpace(raw))
	switch {
	case err != nil:
		return nil, errors.New("is not a URL") // the parser's own text quotes it
	case u.Scheme != "http" && u.Scheme != "https", u.Opaque != "", u.Hostname() == "":
		return nil, errors.New("is not an absolute http or https URL")
	case u.User != nil:
		return nil, errors.New("must not contain a user name or password")
	case u.Fragment != "" || strings.Contains(raw, "#"):
		return nil, errors.New("must not contain a fragment")
	case u.Scheme == "http" && !IsLoopback(u.Hostname()):
		return nil, errors.New("is plain http to another host; only https is allowed there")
	}
	return u, nil
}

// CheckBase reads the base URL of a service, and trims blanks around it and slashes
// at its end. It must be absolute, https or http to loopback, without userinfo,
// query and fragment. For a ChatGPT token from stdin, loopback must be https too
// (remote.md 12.4). Errors never quote the URL.
func CheckBase(raw string, tokens TokenSource) (*url.URL, error) {
	u, err := checkURL(raw)
	if err != nil {
		return nil, err
	}
	if u.RawQuery != "" || u.ForceQuery {
		return nil, errors.New("must not contain a query")
	}
	if b, ok := tokens.(*bearer); ok && b.httpsOnly && u.Scheme != "https" {
		return nil, errors.New("is not https, which this credential needs")
	}
	u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	return u, nil
}

// besideLoopback returns a function that calls proxy, except for loopback hosts,
// which get no proxy. proxy itself may not know every spelling of a loopback host,
// and a proxy would see the credentials in plain http. For nil it returns nil.
func besideLoopback(proxy func(*http.Request) (*url.URL, error)) func(*http.Request) (*url.URL, error) {
	if proxy == nil {
		return nil
	}
	return func(r *http.Request) (*url.URL, error) {
		if IsLoopback(r.URL.Hostname()) {
			return nil, nil
		}
		return proxy(r)
	}
}
