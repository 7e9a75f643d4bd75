package protocol

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestNetworkBounds: what a client asks of a proxy is refused one beyond each bound, and
// taken at it.
func TestNetworkBounds(t *testing.T) {
	t.Parallel()
	list := func(n int, text string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(text+",", n), ",") + "]"
	}
	members := func(n int, value string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `,"k%d":%s`, i, value)
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	long := func(n int) string { return `"` + strings.Repeat("a", n) + `"` }
	key := func(n int, value string) string { return `{` + long(n) + `:` + value + `}` }
	for _, tt := range []struct {
		path  string // in networkProxy, or managedNetwork
		value func(beyond int) string
	}{
		{"networkProxy.proxy.domains", func(n int) string { return members(maxNetworkPatterns+n, `"allow"`) }},
		{"networkProxy.proxy.domains", func(n int) string { return key(maxNetworkPattern+n, `"allow"`) }},
		{"networkProxy.proxy.unixSockets", func(n int) string { return members(maxNetworkSockets+n, `"deny"`) }},
		{"networkProxy.proxy.unixSockets", func(n int) string { return key(maxNetworkPath+n, `"allow"`) }},
		{"networkProxy.proxy.reviewDomains", func(n int) string { return list(maxNetworkPatterns+n, `"a"`) }},
		{"networkProxy.proxy.reviewDomains", func(n int) string { return list(1, long(maxNetworkPattern+n)) }},
		{"networkProxy.proxy.credentialProviders", func(n int) string { return members(maxProviders+n, `{}`) }},
		{"networkProxy.proxy.credentialProviders", func(n int) string { return key(maxProviderName+n, `{}`) }},
		{"networkProxy.proxy.credentialProviders.A.env", func(n int) string { return list(maxProviderTexts+n, `"a"`) }},
		{"networkProxy.proxy.credentialProviders.A.env", func(n int) string { return list(1, long(maxProviderName+n)) }},
		{"networkProxy.proxy.credentialProviders.A.patterns", func(n int) string { return list(1, long(maxProviderText+n)) }},
		{"networkProxy.proxy.credentialProviders.A.url_prefixes", func(n int) string { return list(maxProviderTexts+n, `"a"`) }},
		{"networkProxy.proxy.credentialProviders.A.auth", func(n int) string { return list(len(providerAuth)+n, `"basic"`) }},
		{"networkProxy.proxy.credentialProviders.A.prefix", func(n int) string { return long(maxProviderText + n) }},
		{"networkProxy.auditMetadata.model", func(n int) string { return long(maxNetworkAudit + n) }},
		{"networkProxy.environmentId", func(n int) string { return long(maxNetworkAudit + n) }},
		{"managedNetwork.loopbackPorts", func(n int) string { return list(maxLoopbackPorts+n, `7`) }},
		{"managedNetwork.loopbackPorts", func(n int) string { return fmt.Sprintf("[%d]", 65535+n) }},
		{"managedNetwork.allowUnixSockets", func(n int) string { return list(maxNetworkSockets+n, `"/a"`) }},
	} {
		for beyond := range 2 {
			doc := example(t, recordOf(t, "process/start").full)
			change(t, doc, tt.path, set(json.RawMessage(tt.value(beyond))))
			err := unmarshal(t, new(StartParams), doc)
			rig.Is(t, err != nil, beyond > 0, "%s, %d beyond its bound (%.40s): %v: an error", tt.path, beyond, tt.value(beyond), err)
		}
	}
}

// TestPolicyAnswer: which answers to network/policyRequest are well-formed (network.md 4.1).
func TestPolicyAnswer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		answer string
		ok     bool
	}{
		{`{"decision":{"type":"allow"}}`, true},
		{`{"decision":{"type":"allow","reason":5,"x":{}}}`, true},
		{`{"decision":{"type":"deny","reason":""}}`, true},
		{`{"decision":{"type":"ask","reason":"` + strings.Repeat("r", maxPolicyReason) + `"}}`, true},
		{`{"decision":{"type":"deny","reason":"` + strings.Repeat("r", maxPolicyReason+1) + `"}}`, false},
		{`{"decision":{"type":"deny"}}`, false},
		{`{"decision":{"type":"ask","reason":null}}`, false},
		{`{"decision":{"type":"Allow"}}`, false},
		{`{"decision":"allow"}`, false},
		{`{"decision":null}`, false},
		{`{}`, false},
		{`null`, false},
	} {
		rig.Is(t, unmarshal(t, new(PolicyAnswer), json.RawMessage(tt.answer)) == nil, tt.ok, "%.60s", tt.answer)
	}
}

func TestPolicyDecisionStamp(t *testing.T) {
	t.Parallel()
	var d PolicyDecision
	d.Stamp(time.Date(2026, 11, 22, 18, 8, 48, 893_999_999, time.FixedZone("", 3600)))
	rig.Is(t, d.Timestamp, "2026-11-22T17:08:48.893Z", "")
}
