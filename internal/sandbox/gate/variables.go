package gate

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// A client may have a proxy of its own, on a loopback address of this host, which the
// variables of the command name. The command gets a listener instead, and the
// variables name the listener (network.md 9).

// Reasons why a command with such variables is not run. The texts are the contract's.
var (
	errNoProxies  = errors.New("managed proxy mode requires proxy environment variables")
	errNoLoopback = errors.New("managed proxy mode requires parseable loopback proxy endpoints")
)

// Proxies are the proxies that an environment names. The zero value has none.
type Proxies struct {
	environ []string
	named   []proxy
	addrs   []netip.AddrPort
}

// proxy is a variable that names one.
type proxy struct {
	index         int // in the environment
	at            netip.AddrPort
	before, after string // the rest of the variable
}

// ProxiesOf returns the proxies that an environment names. A variable that names another
// host, or has an unknown form, stays unchanged, unless all do.
func ProxiesOf(environ []string) (Proxies, error) {
	p := Proxies{environ: environ}
	err := errNoProxies
	for i, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !namesProxy(name) {
			continue
		}
		named, ok := parseProxy(value)
		if !ok {
			err = errNoLoopback
			continue
		}
		named.index, named.before = i, name+"="+named.before
		p.named = append(p.named, named)
		if !slices.Contains(p.addrs, named.at) {
			p.addrs = append(p.addrs, named.at)
		}
	}
	switch {
	case len(p.addrs) > MaxListeners:
		return Proxies{}, fmt.Errorf("there are more than %d proxies", MaxListeners)
	case len(p.addrs) == 0:
		return Proxies{}, err
	}
	return p, nil
}

// Addrs returns the addresses of the proxies, each once.
func (p Proxies) Addrs() []netip.AddrPort { return p.addrs }

// Rewrite returns the environment with a port of the gate in place of each of Addrs.
func (p Proxies) Rewrite(ports []uint16) []string {
	environ := slices.Clone(p.environ)
	for _, named := range p.named {
		at := loopback(ports[slices.Index(p.addrs, named.at)])
		environ[named.index] = named.before + at.String() + named.after
	}
	return environ
}

// The variables that name a proxy (network.md 6). Programs agree neither on a name nor on its
// capitals.
var (
	// HTTPVariables have the URL of an HTTP proxy.
	HTTPVariables = [...]string{
		"HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY", "http_proxy", "https_proxy", "ws_proxy", "wss_proxy",
		"YARN_HTTP_PROXY", "YARN_HTTPS_PROXY", "BUNDLE_HTTP_PROXY", "BUNDLE_HTTPS_PROXY", "DOCKER_HTTP_PROXY", "DOCKER_HTTPS_PROXY",
		"PIP_PROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTP_PROXY", "NPM_CONFIG_HTTPS_PROXY",
		"npm_config_proxy", "npm_config_http_proxy", "npm_config_https_proxy",
	}
	// AllVariables have the URL of a SOCKS5 proxy, or of an HTTP proxy if there is none.
	AllVariables = [...]string{"ALL_PROXY", "FTP_PROXY", "all_proxy", "ftp_proxy"}
)

// namesProxy reports whether a variable with that name, in upper or lower case, names a proxy.
func namesProxy(name string) bool {
	name = strings.ToUpper(name)
	return slices.Contains(HTTPVariables[:], name) || slices.Contains(AllVariables[:], name)
}

// parseProxy finds the address in a URL, or in HOST:PORT; ok is false if it is not a
// loopback one. before and after are the text around it.
func parseProxy(value string) (p proxy, ok bool) {
	scheme, authority, found := strings.Cut(value, "://")
	if found {
		p.before = scheme + "://"
	} else {
		scheme, authority = "http", value
	}
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, p.after = authority[:i], authority[i:]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		p.before, authority = p.before+authority[:i+1], authority[i+1:]
	}
	host, service, err := net.SplitHostPort(authority)
	if err != nil { // there is no port
		host, service = strings.Trim(authority, "[]"), usualPort(scheme)
	}
	n, err := strconv.ParseUint(service, 10, 16)
	if err != nil || n == 0 {
		return proxy{}, false
	}
	if strings.EqualFold(host, "localhost") {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Unmap().IsLoopback() || addr.Zone() != "" {
		return proxy{}, false
	}
	p.at = netip.AddrPortFrom(addr.Unmap(), uint16(n))
	return p, true
}

// usualPort is the port of a URL that has none.
func usualPort(scheme string) string {
	switch scheme = strings.ToLower(scheme); {
	case scheme == "https":
		return "443"
	case strings.HasPrefix(scheme, "socks"):
		return "1080"
	}
	return "80"
}
