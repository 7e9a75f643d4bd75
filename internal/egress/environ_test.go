package egress

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestEnviron has all of network.md 6: 34 names, each with its value, whatever was there.
func TestEnviron(t *testing.T) {
	t.Parallel()
	http, socks := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 2}
	const h, s = "http://127.0.0.1:1", "socks5h://127.0.0.1:2"
	for _, tt := range []struct {
		name             string
		socks            net.Addr
		local            bool
		all, no, local01 string
	}{
		{"usual", socks, false, s, "", "0"},
		{"without SOCKS", nil, false, h, "", "0"},
		{"with local addresses", socks, true, s, "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16", "1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			want := map[string]string{
				"HTTP_PROXY": h, "HTTPS_PROXY": h, "WS_PROXY": h, "WSS_PROXY": h, "http_proxy": h, "https_proxy": h, "ws_proxy": h, "wss_proxy": h,
				"YARN_HTTP_PROXY": h, "YARN_HTTPS_PROXY": h, "BUNDLE_HTTP_PROXY": h, "BUNDLE_HTTPS_PROXY": h, "DOCKER_HTTP_PROXY": h,
				"DOCKER_HTTPS_PROXY": h, "PIP_PROXY": h, "NPM_CONFIG_PROXY": h, "NPM_CONFIG_HTTP_PROXY": h, "NPM_CONFIG_HTTPS_PROXY": h,
				"npm_config_proxy": h, "npm_config_http_proxy": h, "npm_config_https_proxy": h,
				"ALL_PROXY": tt.all, "FTP_PROXY": tt.all, "all_proxy": tt.all, "ftp_proxy": tt.all,
				"NO_PROXY": tt.no, "no_proxy": tt.no, "NPM_CONFIG_NOPROXY": tt.no, "npm_config_noproxy": tt.no, "BUNDLE_NO_PROXY": tt.no,
				"NODE_USE_ENV_PROXY": "1", "ELECTRON_GET_USE_PROXY": "true", "CODEX_NETWORK_PROXY_ACTIVE": "1",
				"CODEX_NETWORK_ALLOW_LOCAL_BINDING": tt.local01,
			}
			rig.Is(t, len(want), 34, "names")
			before := []string{"PATH=/bin", "HTTP_PROXY=x", "NO_PROXY=*", "http_proxy", "MY_PROXY=k", "HTTP_PROXY=y"}
			kept := slices.Clone(before)
			var direct []string
			if tt.local {
				direct = localHosts
			}
			got := environ(before, http, tt.socks, direct, tt.local)
			rig.Same(t, "the environment itself", kept, before)
			rig.Same(t, "the first variables", []string{"PATH=/bin", "MY_PROXY=k"}, got[:2])
			rig.Is(t, len(got), 36, "variables")
			have := map[string]string{}
			for _, entry := range got[2:] {
				name, value, _ := strings.Cut(entry, "=")
				have[name] = value
			}
			rig.Same(t, "the other variables", want, have)
		})
	}
}

// TestDirect: without the proxy a process reaches no more than is there. What an entry allows by its
// address is reached through the proxy, with local addresses as without.
func TestDirect(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		allow                        string
		local, own, enforced, onHost bool
		want                         string
	}{
		{"a.org", true, false, false, true, "localhost,127.0.0.1,::1,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"},
		{"a.org", false, false, false, true, ""},
		{"10.0.0.1", true, false, true, false, "localhost,127.0.0.1,::1"},
		{"10.0.0.1", false, false, true, false, ""},
		{"10.0.0.1", false, true, true, false, "localhost,127.0.0.1,::1"},
		{"*", true, true, true, false, "localhost,127.0.0.1,::1"},
		{"127.0.0.1:80", true, true, true, false, "localhost,::1"},
		{"[::1]", true, false, true, false, "localhost,127.0.0.1"},
		{"Localhost", false, true, true, false, "127.0.0.1,::1"},
		{"10.0.0.1", true, true, true, true, ""}, // supervised: it has no servers
	} {
		plan := rig.Value(Of(&protocol.NetworkProxy{Proxy: protocol.ProxyParams{
			Enabled: true, Mode: protocol.ProxyFull, AllowLocalBinding: tt.local, Domains: map[string]string{tt.allow: protocol.DomainAllow},
		}}, "p"))
		plan.OwnServers = tt.own
		w := &Network{plan: plan, onHost: tt.onHost, enforced: tt.enforced}
		rig.Is(t, strings.Join(w.direct(), ","), tt.want, "%+v", tt)
	}
}
