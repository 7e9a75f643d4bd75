package execpolicy

import (
	"testing"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

// policies are a policy with that of a client on top, and one without rules.
func policies(t testing.TB) []*Policy {
	t.Helper()
	parse := func(text string) *rule.Set {
		rules, err := ParseClient([]ClientFile{{Name: "t", Text: text}})
		rig.Must(t, err)
		return rules
	}
	operator := &Policy{
		Rules: parse(`prefix_rule(pattern=["git", ["push", "fetch"]], decision="prompt", justification="away")
prefix_rule(pattern=["LS"], decision="forbidden", canonical_matching=True)
host_executable(name="git", paths=["/usr/bin/git"])`), Opaque: rule.Prompt, ForcedRm: rule.Forbidden}
	client := &Policy{Rules: parse(`prefix_rule(pattern=["true"])`), Unmatched: rule.Prompt}
	return []*Policy{operator.With(client), operator, {}}
}

// TestPacked: a policy that was packed decides as the one that it was made of.
func TestPacked(t *testing.T) {
	t.Parallel()
	for _, p := range policies(t) {
		got, err := ReadPacked(AppendPacked(nil, p))
		rig.Must(t, err)
		for _, argv := range [][]string{{"git", "push"}, {"git", "status"}, {"/usr/bin/git", "fetch"}, {"/bin/git", "fetch"}, {"ls"}, {"true"}, {"rm", "-f", "x"}} {
			a, b := p.Exec(Command{Argv: argv}), got.Exec(Command{Argv: argv})
			rig.Is(t, b.Decision, a.Decision, "%q, packed", argv)
			rig.Is(t, b.Reason()+" by "+b.Decider(), a.Reason()+" by "+a.Decider(), "%q, packed", argv)
		}
	}
	rig.Is(t, rig.Err(ReadPacked([]byte{0})) != nil, true, "what is no policy is refused")
}

// FuzzPolicy: whatever is read is packed as it was.
func FuzzPolicy(f *testing.F) {
	for _, p := range policies(f) {
		f.Add(AppendPacked(nil, p))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ReadPacked(b)
		if err != nil {
			return
		}
		packed := AppendPacked(nil, p)
		rig.Is(t, string(AppendPacked(nil, rig.Value(ReadPacked(packed)))), string(packed), "packed again")
	})
}
