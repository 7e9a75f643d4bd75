package egress

import (
	"cmp"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestOf has the errors of network.md 2.4 that are not about the form.
func TestOf(t *testing.T) {
	t.Parallel()
	const config = "invalid network proxy config: "
	for _, tt := range []struct {
		name, id string
		change   func(*protocol.NetworkProxy)
		want     string // "": none
	}{
		{"as it is", "p", func(*protocol.NetworkProxy) {}, ""},
		{"disabled", "p", func(n *protocol.NetworkProxy) { n.Proxy.Enabled = false },
			config + "executor-local network proxy launch requires an enabled proxy"},
		{"deny everything", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"*": "deny"} },
			config + "invalid value for network.denied_domains: * (allowed exact hosts or scoped wildcards like *.example.com or **.example.com)"},
		{"allow everything", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"*": "allow", "x.org": "none"} }, ""},
		{"empty pattern", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"": "allow"} }, config + "domain pattern is empty"},
		{"empty pattern for review", "p", func(n *protocol.NetworkProxy) { n.Proxy.ReviewDomains = []string{"*."} }, config + "domain pattern is empty"},
		{"**", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"**": "allow"} }, config + "unsupported repeated wildcard: **"},
		{"[", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"[": "allow"} },
			config + "brackets are only supported for IPv6 literals or [*]: ["},
		{"URL", "p", func(n *protocol.NetworkProxy) { n.Proxy.Domains = map[string]string{"http://a": "allow"} },
			config + "unsupported domain pattern syntax: http://a"},
		{"relative socket", "p", func(n *protocol.NetworkProxy) {
			n.Proxy.UnixSockets = map[string]string{"/a": "allow", "rel": "deny", "b": "allow"}
		}, config + `invalid network.allow_unix_sockets[1]: expected a NUL-free absolute path for Linux, got "b"`},
		{"socket with NUL", "p", func(n *protocol.NetworkProxy) { n.Proxy.UnixSockets = map[string]string{"/a\x00": "allow"} },
			config + `invalid network.allow_unix_sockets[0]: expected a NUL-free absolute path for Linux, got "/a\x00"`},
		{"no timeout", "p", func(n *protocol.NetworkProxy) { n.PolicyDecisionTimeoutMs = new(uint64(0)) },
			"network policy decision callback timeout must be nonzero"},
		{"long id", strings.Repeat("p", 257), func(n *protocol.NetworkProxy) { n.PolicyDecisionTimeoutMs = new(uint64(1)) },
			"callback-enabled process ID must be non-empty and at most 256 bytes"},
		{"no id", "", func(n *protocol.NetworkProxy) { n.PolicyDecisionTimeoutMs = new(uint64(1)) },
			"callback-enabled process ID must be non-empty and at most 256 bytes"},
		{"long id that nobody is asked about", strings.Repeat("p", 257), func(*protocol.NetworkProxy) {}, ""},
		{"long enough", strings.Repeat("p", 256), func(n *protocol.NetworkProxy) { n.PolicyDecisionTimeoutMs = new(^uint64(0)) }, ""},
	} {
		asked := &protocol.NetworkProxy{Proxy: protocol.ProxyParams{Enabled: true, Mode: protocol.ProxyFull}}
		tt.change(asked)
		plan, err := Of(asked, tt.id)
		rig.Is(t, fmt.Sprint(err), cmp.Or(tt.want, "<nil>"), "%s", tt.name)
		rig.Is(t, err != nil || plan.timeout >= 0 && plan.timeout <= longestWait+grace, true, "%s: waits not too long", tt.name)
	}
	plan, err := Of(&protocol.NetworkProxy{Proxy: protocol.ProxyParams{Enabled: true}, PolicyDecisionTimeoutMs: new(uint64(200))}, "p")
	rig.Must(t, err)
	rig.Is(t, plan.timeout, 5200*time.Millisecond, "waits")
}
