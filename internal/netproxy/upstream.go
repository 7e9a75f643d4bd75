package netproxy

import (
	"cmp"
	"encoding/base64"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	"github.com/execagent/execagent/internal/netproxy/rules"
)

// An Upstream has the proxies through which this host has to connect to other hosts.
type Upstream struct {
	plain, tunnel *hop // nil: connect directly
	private       bool // they lead to private addresses too
}

// PrivateVariable is the variable that says whether upstream proxies lead to private addresses.
const PrivateVariable = "CODEX_EXEC_SERVER_PROXY_PRIVATE_IPS_VIA_UPSTREAM"

// A hop is one proxy of an Upstream. The protocol with it is HTTP.
type hop struct {
	address string // HOST:PORT
	basic   string // value of Proxy-Authorization after "Basic ", or empty
}

// UpstreamOf returns the upstream proxies that an environment names: HTTP_PROXY for plain requests,
// HTTPS_PROXY for tunnels, ALL_PROXY if the specific variable is missing. Names in lower case count
// too. It returns nil if there is none. Proxies of other protocols than HTTP are ignored, and so is
// NO_PROXY.
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
	u.private = Private(getenv)
	if u.plain == nil && u.tunnel == nil {
		return nil
	}
	return u
}

// Private reports whether an environment says that upstream proxies lead to private addresses.
func Private(getenv func(string) string) bool {
	private, _ := strconv.ParseBool(getenv(PrivateVariable))
	return private
}

// parseHop returns the proxy of a URL or of HOST:PORT. It returns nil if the text names no HTTP
// proxy.
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

// hop returns the proxy for a request. It returns nil for SOCKS5. It returns nil if the host is a
// private address, unless the operator says that the proxy leads there, and always if it is an
// address of this host, or localhost.
func (u *Upstream) hop(q request) *hop {
	if u == nil || q.Protocol != rules.HTTP && q.Protocol != rules.Connect {
		return nil
	}
	if addr, err := netip.ParseAddr(q.Host); err == nil {
		addr = reached(addr)
		if addr.IsLoopback() || !u.private && rules.IsLocal(addr) {
			return nil
		}
	} else if q.Host == "localhost" {
		return nil
	}
	if q.encrypt || q.Protocol == rules.Connect {
		return u.tunnel
	}
	return u.plain
}

// credentials returns the header field that authenticates requests at the proxy, or an empty
// string.
func (h *hop) credentials() string {
	if h.basic == "" {
		return ""
	}
	return "Proxy-Authorization: Basic " + h.basic + "\r\n"
}
