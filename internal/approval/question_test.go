package approval

import (
	"fmt"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/test/rig"
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
		d := q.decision(tt.by)
		rig.Is(t, fmt.Sprint(d.Source, " ", d.Rule, " ", d.Exe, d.Argv), tt.source+" "+tt.rule+" /bin/rm[rm -f]", "%s by %s", tt.decider, tt.by)
	}
	q := question{Question: judge.Question{Argv: []string{"touch", "x\xff"}, Proposed: []string{"touch", "x\xff"}}}
	params := q.params()
	rig.Is(t, params.Truncated && params.ProposedPrefix == nil, true, "a command that cannot be shown exactly: %+v", params)
}
