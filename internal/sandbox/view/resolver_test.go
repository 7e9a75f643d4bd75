package view

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestLoopbackHosts: only loopback addresses stay, and localhost and the own host have one.
func TestLoopbackHosts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ text, want string }{
		"none":         {"", "127.0.0.1 localhost\n::1 localhost\n127.0.0.1 box\n"},
		"of a host":    {"127.0.0.1\tlocalhost\n127.0.1.1\tBOX box.example # its own\n\n::1 localhost ip6-localhost\n", "127.0.0.1 localhost\n127.0.1.1 BOX box.example\n::1 localhost ip6-localhost\n"},
		"of a pod":     {"# Kubernetes-managed\n127.0.0.1 localhost\nfe00::0 ip6-mcastprefix\n10.1.2.3 box\n", "127.0.0.1 localhost\n127.0.0.1 box\n"},
		"no newline":   {"::ffff:127.0.0.1 localhost box", "::ffff:127.0.0.1 localhost box\n"},
		"nonsense":     {"127.0.0.1\nfoo bar\n127.0.0.1 localhost\n300.0.0.1 x\n", "127.0.0.1 localhost\n127.0.0.1 box\n"},
		"too much":     {"127.0.0.1 localhost box\n127.0.0.1 " + strings.Repeat("a", 40<<10) + "\n127.0.0.1 last\n", "127.0.0.1 localhost box\n127.0.0.1 last\n"},
		"real servers": {"11.22.33.44 github.com\n127.0.0.1 localhost box github.com\n", "127.0.0.1 localhost box github.com\n"},
	} {
		rig.Is(t, string(loopbackHosts([]byte(tt.text), "box")), tt.want, "%s", name)
	}
}

func FuzzLoopbackHosts(f *testing.F) {
	f.Add([]byte("127.0.0.1 localhost\n11.22.33.44 a.example # b\n::1\tlocalhost"), "box")
	f.Fuzz(func(t *testing.T, text []byte, host string) {
		for line := range strings.Lines(string(loopbackHosts(text, host))) {
			addr, err := netip.ParseAddr(strings.Fields(line)[0])
			rig.Is(t, err == nil && addr.Unmap().IsLoopback(), true, "%q has a loopback address", line)
		}
	})
}
