package approval

import (
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/judge"
)

// TestDecision: the client hears which rule has decided, and nothing of the folder that it is in.
func TestDecision(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ decider, by, source, rule string }{
		{"/etc/agent/rules/my.rules:1:12", byRule, "rule", "my.rules:1:12"},
		{"/etc/agent/rules/my.rules:2:12", byApproval, "approval", "my.rules:2:12"},
		{"client", byRule, "rule", "client"},
		{execpolicy.Unmatched, byRule, "heuristic", ""},
		{execpolicy.ForcedRm, byRule, "heuristic", ""},
		{execpolicy.ForcedRm, byMemo, "memo", ""},
	} {
		q := question{Question: judge.Question{Decider: tt.decider, Argv: []string{"rm", "-f"}, Exe: "/bin/rm"}}
		if d := q.decision(tt.by); d.Source != tt.source || d.Rule != tt.rule || d.Exe != q.Exe || len(d.Argv) != 2 {
			t.Errorf("%s by %s: %+v", tt.decider, tt.by, d)
		}
	}
}
