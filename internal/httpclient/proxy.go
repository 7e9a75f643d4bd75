package httpclient

import (
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// A Proxy selects the proxy of each request. Unlike net/http it makes no exception for loopback
// targets; only NO_PROXY makes exceptions (rpc.md 6). The zero value uses no proxy.
type Proxy struct {
	http, https *url.URL
	bypass      []bypass
}

// bypass is one entry of NO_PROXY.
type bypass struct {
	all    bool
	prefix netip.Prefix // for addresses, if valid
	domain string       // matches itself and its subdomains; lower case, without a leading dot
	port   string       // empty is every port
}

// ProxyFromEnv reads HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY through env. The name in lower
// case is used if the name in upper case is unset or empty. A value counts only if it is a URL or a
// host. The scheme must be http, https, socks5 or socks5h; without a scheme it is http. Under CGI,
// which sets REQUEST_METHOD, HTTP_PROXY is ignored, because it may hold the Proxy header of a
// request.
func ProxyFromEnv(env func(name string) (string, bool)) Proxy {
	get := func(name string) string {
		if v, _ := env(name); v != "" {
			return v
		}
		v, _ := env(strings.ToLower(name))
		return v
	}
	all := parseProxy(get("ALL_PROXY"))
	p := Proxy{http: parseProxy(get("HTTP_PROXY")), https: parseProxy(get("HTTPS_PROXY"))}
	if _, cgi := env("REQUEST_METHOD"); cgi {
		p.http = nil
	}
	if p.http == nil {
		p.http = all
	}
	if p.https == nil {
		p.https = all
	}
	for entry := range strings.SplitSeq(get("NO_PROXY"), ",") {
		if entry = strings.TrimSpace(entry); entry != "" {
			p.bypass = append(p.bypass, parseBypass(entry))
		}
	}
	return p
}

func parseProxy(text string) *url.URL {
	if text == "" {
		return nil
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" {
		return nil
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return u
	}
	return nil
}

func parseBypass(entry string) bypass {
	if entry == "*" {
		return bypass{all: true}
	}
	host, port, err := net.SplitHostPort(entry)
	if err != nil {
		host, port = entry, ""
	}
	host = strings.Trim(host, "[]")
	if prefix, err := netip.ParsePrefix(host); err == nil {
		return bypass{prefix: prefix, port: port}
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.Unmap()
		return bypass{prefix: netip.PrefixFrom(addr, addr.BitLen()), port: port}
	}
	host = strings.TrimPrefix(host, "*")
	return bypass{domain: strings.ToLower(strings.TrimPrefix(host, ".")), port: port}
}

// forURL returns the proxy for a target, or nil if there is none.
func (p Proxy) forURL(target *url.URL) *url.URL {
	proxy := p.http
	if target.Scheme == "https" {
		proxy = p.https
	}
	if proxy == nil {
		return nil
	}
	host := strings.ToLower(target.Hostname())
	addr, err := netip.ParseAddr(host)
	isAddr := err == nil
	for _, b := range p.bypass {
		switch {
		case b.port != "" && b.port != port(target):
		case b.all, isAddr && b.prefix.IsValid() && b.prefix.Contains(addr.Unmap()):
			return nil
		case !isAddr && b.domain != "" && (host == b.domain || strings.HasSuffix(host, "."+b.domain)):
			return nil
		}
	}
	return proxy
}
