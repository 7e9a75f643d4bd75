package agent

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestOperatorPolicy: what the rules of the operator forbid is not started, whatever the client's
// own say; and what is refused leaves nothing behind.
func TestOperatorPolicy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := `prefix_rule(pattern=["touch"], decision="forbidden", justification="no")
prefix_rule(pattern=["ls"], decision="prompt")
prefix_rule(pattern=["/usr/bin/env"], decision="forbidden")
`
	rig.Must(t, os.WriteFile(filepath.Join(dir, "a.rules"), []byte(text), 0o600))
	rules, err := execpolicy.Load(dir)
	rig.Must(t, err)
	allow := object{"execApproval": object{"rules": []object{{"name": "mine", "text": `prefix_rule(pattern=["touch"])`}}}}
	for _, tt := range []struct {
		name    string
		policy  execpolicy.Policy
		argv    []string
		change  object
		refused string // "" if it starts
	}{
		{"unmatched", execpolicy.Policy{}, []string{"true"}, nil, ""},
		{"forbidden", execpolicy.Policy{}, []string{"touch", dir + "/new"}, nil, "rejected: no"},
		{"allowed by the client", execpolicy.Policy{}, []string{"touch", dir + "/new"}, allow, "rejected: no"},
		{"by its path", execpolicy.Policy{}, []string{"/usr/bin/touch", dir + "/new"}, nil, "rejected: no"},
		{"path of a name", execpolicy.Policy{}, []string{"env"}, nil, "rejected: policy forbids commands starting with `/usr/bin/env`"},
		{"in a script", execpolicy.Policy{}, []string{"sh", "-c", "true && touch " + dir + "/new"}, nil, "rejected: no"},
		{"prompt", execpolicy.Policy{}, []string{"ls"}, nil, "`ls` requires approval by policy"},
		{"prompt, nobody asked", execpolicy.Policy{AllowUnasked: true}, []string{"ls"}, nil, ""},
		{"client prompts", execpolicy.Policy{AllowUnasked: true}, []string{"ls"}, object{"execApproval": object{"unmatched": "prompt"}}, "requires approval"},
		{"unmatched forbidden", execpolicy.Policy{Unmatched: rule.Forbidden}, []string{"true"}, nil, "rejected: no rule allows it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			policy := tt.policy
			policy.Rules = rules
			c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(&policy, nil))}).attach("")
			params := sh("p", "")
			params["argv"] = tt.argv
			maps.Copy(params, tt.change)
			err := c.call("process/start", params, nil)
			refused, ok := errors.AsType[*protocol.Error](err)
			switch {
			case tt.refused == "":
				rig.Check(t, err)
				return
			case !ok || refused.Code != protocol.CodeInvalidRequest || !strings.Contains(refused.Message, tt.refused):
				t.Fatalf("got %v, want %s", err, tt.refused)
			case !strings.HasPrefix(string(refused.Data), `{"reason":"execPolicy","matchedRules":[{`):
				t.Errorf("the data is %s", refused.Data)
			}
			rig.Is(t, rig.Err(os.Lstat(dir+"/new")), fs.ErrNotExist, "what the command would have made")
			params["argv"] = []string{"cat"}
			if err := c.call("process/start", params, nil); tt.policy.Unmatched == rule.Allow && tt.change == nil && err != nil {
				t.Errorf("the id is not free: %v", err)
			}
		})
	}
}

// TestRefusalIsBounded: a refusal does not repeat a long command.
func TestRefusalIsBounded(t *testing.T) {
	t.Parallel()
	c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(&execpolicy.Policy{Unmatched: rule.Forbidden}, nil))}).attach("")
	params := sh("p", "")
	params["argv"] = []string{"true", strings.Repeat("x", 100_000)}
	err := c.call("process/start", params, nil)
	refused, ok := errors.AsType[*protocol.Error](err)
	if !ok || len(refused.Message) > 1_000 || string(refused.Data) != `{"reason":"execPolicy","matchedRules":[]}` {
		t.Errorf("got %.2000v", err)
	}
}

// TestHiddenProgram: a sandbox that hides the program that was allowed does not have another one of
// that name run.
func TestHiddenProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, at := range []string{"first", "second"} {
		rig.Must(t, errors.Join(os.Mkdir(dir+"/"+at, 0o755), rig.WriteProgram(dir+"/"+at+"/tool", []byte("#!/bin/sh\necho "+at+"\n"))))
	}
	policy := policyOf(t, `prefix_rule(["`+dir+`/first/tool"])`, func(p *execpolicy.Policy) { p.Unmatched = rule.Forbidden })
	c := newHarness(t, Config{ExecPolicy: inForce(execpolicy.NewCurrent(policy, nil))}).attach("")
	for name, sandbox := range map[string]object{
		"shown":  managed("restricted", special("minimal", "read"), at(dir, "read")),
		"hidden": managed("restricted", special("minimal", "read"), at(dir+"/second", "read")),
	} {
		params := sh(name, "")
		params["argv"], params["env"], params["sandbox"] = []string{"tool"}, object{"PATH": dir + "/first:" + dir + "/second:/usr/bin:/bin"}, sandbox
		if got := output(c, params); (got == "first\n") != (name == "shown") || strings.HasPrefix(got, "second") {
			t.Errorf("%s: output %q", name, got)
		}
	}
	var listed protocol.ListResult
	c.must("process/list", object{}, &listed)
	rig.Is(t, len(listed.Processes) == 2 && listed.Processes[0].Argv[0] == "tool", true, "listed as %+v", listed)
}
