package protocol

import (
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

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
		rig.Is(t, UnmarshalParams([]byte(tt.answer), new(PolicyAnswer)) == nil, tt.ok, "%.60s", tt.answer)
	}
}

func TestPolicyDecisionStamp(t *testing.T) {
	t.Parallel()
	var d PolicyDecision
	d.Stamp(time.Date(2026, 11, 22, 18, 8, 48, 893_999_999, time.FixedZone("", 3600)))
	rig.Is(t, d.Timestamp, "2026-11-22T17:08:48.893Z", "")
}
