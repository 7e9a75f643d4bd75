package egress

import (
	"fmt"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/test/rig"
)

// TestResolvConf has the file of a pod in Kubernetes, and others.
func TestResolvConf(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, servers, search string }{
		"a pod":    {"search shop.svc.cluster.local svc.cluster.local cluster.local\nnameserver 10.96.0.10\noptions ndots:5\n", "[10.96.0.10]", "[shop.svc.cluster.local svc.cluster.local cluster.local]"},
		"a stub":   {"# made by systemd-resolved\nnameserver 127.0.0.53\noptions edns0 trust-ad\nsearch .\n", "[127.0.0.53]", "[]"},
		"the last": {"domain a.example\nsearch B.example. c.example\nnameserver ::1\nnameserver fe80::1%eth0\n;search d.example\n", "[::1 fe80::1]", "[b.example c.example]"},
		"domain":   {"search a.example b.example\ndomain c.example d.example\n", "[]", "[c.example]"},
		"nothing":  {"", "[]", "[]"},
		"nonsense": {"nameserver\nnameserver x\nsearch a_b *.x\n#\n;\n", "[]", "[a_b]"},
		"too much": {"search" + strings.Repeat(" a.example", 40) + "\n", "[]", "[" + strings.TrimPrefix(strings.Repeat(" a.example", maxSearch), " ") + "]"},
	} {
		lines := resolvConf(strings.NewReader(tt.text))
		rig.Is(t, fmt.Sprint(nameServers(lines)), tt.servers, "%s: servers", name)
		rig.Is(t, fmt.Sprint(searchList(lines)), tt.search, "%s: search list", name)
	}
}

// TestTCPUpstreamOf: the policy and the flag may name the proxy for TCP, and have to agree.
func TestTCPUpstreamOf(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		policy, flag string
		private      bool
		want         *netproxy.TCPUpstream
		err          string
	}{
		{"", "", false, nil, ""},
		{"proxy.example:3128", "", false, &netproxy.TCPUpstream{Address: "proxy.example:3128"}, ""},
		{"", "[2600::1]:3128", true, &netproxy.TCPUpstream{Address: "[2600::1]:3128", Private: true}, ""},
		{"a:1", "a:1", false, &netproxy.TCPUpstream{Address: "a:1"}, ""},
		{"a:1", "b:1", false, nil, "tcp_upstream and --tcp-upstream-proxy name different proxies"},
		{"a", "", false, nil, "the proxy for TCP is not HOST:PORT"},
		{"a:0", "", false, nil, "the proxy for TCP is not HOST:PORT"},
		{"a:65536", "", false, nil, "the proxy for TCP is not HOST:PORT"},
		{"http://a:1", "", false, nil, "the proxy for TCP is not HOST:PORT"},
		{":1", "", false, nil, "the proxy for TCP is not HOST:PORT"},
	} {
		got, err := TCPUpstream(tt.policy, []string{TCPVariable + "=" + tt.flag, netproxy.PrivateVariable + "=" + fmt.Sprint(tt.private)})
		rig.Same(t, tt.policy+" "+tt.flag, tt.want, got)
		text := ""
		if err != nil {
			text = err.Error()
		}
		rig.Is(t, text, tt.err, "%q and %q", tt.policy, tt.flag)
	}
}

func FuzzResolvConf(f *testing.F) {
	f.Add("search a.example b.example\nnameserver 10.96.0.10\noptions ndots:5\n")
	f.Fuzz(func(t *testing.T, text string) {
		lines := resolvConf(strings.NewReader(text))
		rig.Is(t, len(searchList(lines)) <= maxSearch, true, "domains")
		for _, addr := range nameServers(lines) {
			rig.Is(t, addr.IsValid() && addr.Zone() == "", true, "a server")
		}
	})
}
