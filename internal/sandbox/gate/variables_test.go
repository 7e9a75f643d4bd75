package gate

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestProxies: variables that name a proxy on this host name a port of the gate then
// (network.md 9, L18).
func TestProxies(t *testing.T) {
	t.Parallel()
	environ := []string{
		"PATH=/bin", "HTTP_PROXY=http://127.0.0.1:3128", "http_proxy=http://user:p%40ss@127.0.0.1:3128/path?x#y", "FTP_PROXY=localhost:3129",
		"all_proxy=socks5h://[::1]:1080", "HTTPS_PROXY=http://proxy.example.org:3128", "NO_PROXY=127.0.0.1:3128", "WS_PROXY=", "npm_config_proxy=http://LOCALHOST",
		"ALL_PROXY=socks5://127.9.9.9", "HTTP_PROXYX=http://127.0.0.1:1",
	}
	p := rig.Value(ProxiesOf(environ))
	var addrs []string
	for _, a := range p.Addrs() {
		addrs = append(addrs, a.String())
	}
	rig.Same(t, "the addresses", []string{"127.0.0.1:3128", "127.0.0.1:3129", "[::1]:1080", "127.0.0.1:80", "127.9.9.9:1080"}, addrs)
	want := []string{
		"PATH=/bin", "HTTP_PROXY=http://127.0.0.1:1", "http_proxy=http://user:p%40ss@127.0.0.1:1/path?x#y", "FTP_PROXY=127.0.0.1:2",
		"all_proxy=socks5h://127.0.0.1:3", "HTTPS_PROXY=http://proxy.example.org:3128", "NO_PROXY=127.0.0.1:3128", "WS_PROXY=", "npm_config_proxy=http://127.0.0.1:4",
		"ALL_PROXY=socks5://127.0.0.1:5", "HTTP_PROXYX=http://127.0.0.1:1",
	}
	rig.Same(t, "rewritten", want, p.Rewrite([]uint16{1, 2, 3, 4, 5}))
	rig.Is(t, environ[1], "HTTP_PROXY=http://127.0.0.1:3128", "the environment that was passed has changed")
}

func TestProxiesRefused(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]error{
		"": errNoProxies, "http://example.org:80": errNoLoopback, "http://192.0.2.1:80": errNoLoopback, "http://127.0.0.1:70000": errNoLoopback,
		"http://127.0.0.1:0": errNoLoopback, "garbage": errNoLoopback, "http://127.0.0.1:": errNoLoopback, "http://127.1:80": errNoLoopback,
		"http://[::1%lo]:80": errNoLoopback, "http://0.0.0.0:80": errNoLoopback, "http://127.0.0.1:80@example.org": errNoLoopback, "://": errNoLoopback,
	} {
		rig.Is(t, rig.Err(ProxiesOf([]string{"HTTP_PROXY=" + value, "NO_PROXY=x"})), want, "%q", value)
	}
	var many []string
	for i := range MaxListeners + 1 {
		many = append(many, "HTTP_PROXY=127.0.0.1:"+strings.Repeat("1", 1+i/10)+string(rune('0'+i%10)))
	}
	rig.Is(t, rig.Err(ProxiesOf(many)) != nil, true, "too many proxies are refused")
}

func FuzzProxies(f *testing.F) {
	f.Add("http://user@127.0.0.1:80/x")
	f.Add("[::1]")
	f.Fuzz(func(t *testing.T, value string) {
		p, err := ProxiesOf([]string{"HTTP_PROXY=" + value})
		if err != nil {
			return
		}
		for _, at := range p.Addrs() {
			rig.Is(t, at.Addr().IsLoopback() && at.Port() != 0, true, "%q leads to %v", value, at)
		}
		again := rig.Value(ProxiesOf(p.Rewrite([]uint16{7})))
		rig.Is(t, fmt.Sprint(again.Addrs()), fmt.Sprint([]netip.AddrPort{loopback(7)}), "%q rewritten", value)
	})
}
