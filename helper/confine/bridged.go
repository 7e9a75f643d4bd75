package confine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/execagent/execagent/helper/gate"
	"github.com/execagent/execagent/sandbox"
)

// A client may ask for a managed network and have a proxy of its own, on a loopback
// address of this host, which the variables of the command name. Each of these
// addresses gets a listener, which passes connections on there, and the variables name
// the listeners then (network.md 9).

// What keeps a command with such variables from being run. The texts are the contract's.
var (
	errNoProxies  = errors.New("managed proxy mode requires proxy environment variables")
	errNoLoopback = errors.New("managed proxy mode requires parseable loopback proxy endpoints")
)

// EnterBridged is EnterManaged for a command whose own variables name its proxies, on
// loopback addresses of this host. It returns the environment with which the command has
// to be started. A listener of the agent cannot be such a proxy.
func (d *Door) EnterBridged(profile sandbox.Profile, environ []string) (h *Held, rewritten []string, err error) {
	proxies, err := proxiesOf(environ)
	if err == nil {
		err = d.refuseOwn(proxies)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("failed to prepare host proxy routing bridge: %w", err)
	}
	var to []netip.AddrPort
	for _, p := range proxies {
		if !slices.Contains(to, p.at) {
			to = append(to, p.at)
		}
	}
	if h, err = d.enterGate(profile, false, len(to)); err != nil {
		return nil, nil, err
	}
	h.gate.Bridge(to)
	rewritten = slices.Clone(environ)
	for _, p := range proxies {
		port := h.gate.Ports()[slices.Index(to, p.at)]
		rewritten[p.index] = p.before + gate.At(port).String() + p.after
	}
	return h, rewritten, nil
}

// refuseOwn refuses the ports of the agent: whoever connects there may run anything.
func (d *Door) refuseOwn(proxies []proxy) error {
	for _, p := range proxies {
		if slices.Contains(d.AgentPorts, p.at.Port()) {
			return fmt.Errorf("%v is a listener of this agent", p.at)
		}
	}
	return nil
}

// proxy is a variable that names a proxy on this host.
type proxy struct {
	index         int // in the environment
	at            netip.AddrPort
	before, after string // the rest of the variable
}

// proxiesOf returns the proxies that an environment names. A variable that names another
// host, or nothing that can be understood, stays as it is, unless all do.
func proxiesOf(environ []string) (proxies []proxy, err error) {
	err = errNoProxies
	for i, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		if value == "" || !namesProxy(name) {
			continue
		}
		if p, ok := parseProxy(value); ok {
			p.index, p.before = i, name+"="+p.before
			proxies = append(proxies, p)
		} else {
			err = errNoLoopback
		}
	}
	switch {
	case len(proxies) > gate.MaxListeners:
		return nil, fmt.Errorf("there are more than %d proxies", gate.MaxListeners)
	case len(proxies) > 0:
		return proxies, nil
	}
	return nil, err
}

// proxyVariables are those that name a proxy, in capitals (network.md 6).
var proxyVariables = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "WS_PROXY", "WSS_PROXY", "ALL_PROXY", "FTP_PROXY",
	"YARN_HTTP_PROXY", "YARN_HTTPS_PROXY", "BUNDLE_HTTP_PROXY", "BUNDLE_HTTPS_PROXY", "DOCKER_HTTP_PROXY", "DOCKER_HTTPS_PROXY",
	"PIP_PROXY", "NPM_CONFIG_PROXY", "NPM_CONFIG_HTTP_PROXY", "NPM_CONFIG_HTTPS_PROXY",
}

// namesProxy tells whether a variable of that name names a proxy.
func namesProxy(name string) bool { return slices.Contains(proxyVariables, strings.ToUpper(name)) }

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
