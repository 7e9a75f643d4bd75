package netproxy

import (
	"cmp"
	"encoding/base64"
	"net"
	"net/netip"
	"net/url"
	"strings"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// An Upstream is the proxies that this host has to go through to reach others.
type Upstream struct {
	plain, tunnel *hop // nil: directly
}

// A hop is one such proxy, which is spoken to in HTTP.
type hop struct {
	address string // HOST:PORT
	basic   string // what Proxy-Authorization has behind "Basic ", or empty
}

// UpstreamOf returns the upstream proxies that an environment names, and nil if it names
// none: HTTP_PROXY for plain requests, HTTPS_PROXY for tunnels, ALL_PROXY for whichever of
// these is missing, also in lower case. Proxies that speak anything but HTTP do not count, and
// NO_PROXY is not looked at.
func UpstreamOf(getenv func(string) string) *Upstream {
	first := func(names ...string) *hop {
		for _, name := range names {
			if h := parseHop(getenv(name)); h != nil {
				return h
			}
			if h := parseHop(getenv(strings.ToLower(name))); h != nil {
				return h
			}
		}
		return nil
	}
	u := &Upstream{plain: first("HTTP_PROXY", "ALL_PROXY"), tunnel: first("HTTPS_PROXY", "ALL_PROXY")}
	if u.plain == nil && u.tunnel == nil {
		return nil
	}
	return u
}

// parseHop returns the proxy of a URL, or of HOST:PORT, and nil if that is none of HTTP.
func parseHop(text string) *hop {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" {
		return nil
	}
	port := u.Port()
	port = cmp.Or(port, "80")
	h := &hop{address: net.JoinHostPort(u.Hostname(), port)}
	if u.User != nil {
		password, _ := u.User.Password()
		h.basic = base64.StdEncoding.EncodeToString([]byte(u.User.Username() + ":" + password))
	}
	return h
}

// hop returns the proxy that a request goes through: none if its host is an address or localhost,
// which are not on the other side of the proxy, and none for SOCKS5.
func (u *Upstream) hop(q request) *hop {
	if u == nil || q.Protocol != rules.HTTP && q.Protocol != rules.Connect {
		return nil
	}
	if _, err := netip.ParseAddr(q.Host); err == nil || q.Host == "localhost" {
		return nil
	}
	if q.encrypt || q.Protocol == rules.Connect {
		return u.tunnel
	}
	return u.plain
}

// credentials returns the field with which a request to the proxy signs in.
func (h *hop) credentials() string {
	if h.basic == "" {
		return ""
	}
	return "Proxy-Authorization: Basic " + h.basic + "\r\n"
}
