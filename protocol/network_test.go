package protocol

import (
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

func TestPolicyDecisionStamp(t *testing.T) {
	t.Parallel()
	var d PolicyDecision
	d.Stamp(time.Date(2026, 11, 22, 18, 8, 48, 893_999_999, time.FixedZone("", 3600)))
	rig.Is(t, d.Timestamp, "2026-11-22T17:08:48.893Z", "")
}
