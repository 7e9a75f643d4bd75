package agent

import (
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// policyOf returns a policy with rules in a file of this text.
func policyOf(t *testing.T, text string, change func(*execpolicy.Policy)) *execpolicy.Policy {
	t.Helper()
	rules, err := execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "t", Text: text}})
	rig.Must(t, err)
	p := &execpolicy.Policy{Rules: rules}
	if change != nil {
		change(p)
	}
	return p
}

// inTree has every program judged.
func inTree(p *execpolicy.Policy) { p.Enforce = execpolicy.InTree }

// TestQuestionReplaced: when the operator's rules are replaced, open questions are closed, and the
// new rules say what becomes of the commands.
func TestQuestionReplaced(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, before, after string
		change              func(*execpolicy.Policy)
		command             string
		again               bool // it is asked once more, and accepted then
		code                int
		output              string
	}{
		{"prompts", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"], "prompt", justification="new")`, nil, "echo y''es", true, 0, "yes\n"},
		{"allows", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"])`, nil, "echo y''es", false, 0, "yes\n"},
		{"forbids", `prefix_rule(["sh"], "prompt")`, `prefix_rule(["sh"], "forbidden", justification="no longer")`, nil, "echo y''es", false, 126, "rejected: no longer\n"},
		{"prompts below", `prefix_rule(["id"], "prompt")`, `prefix_rule(["id"], "prompt")`, inTree, "i=id; $i >/dev/null; echo $?", true, 0, "0\n"},
		{"allows below", `prefix_rule(["id"], "prompt")`, ``, inTree, "i=id; $i >/dev/null; echo $?", true, 0, "0\n"},
		{"forbids below", `prefix_rule(["id"], "prompt")`, `prefix_rule(["id"], "forbidden")`, inTree, "i=id; $i >/dev/null 2>&1; echo $?", false, 0, "126\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			current := execpolicy.NewCurrent(policyOf(t, tt.before, tt.change), nil)
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(current)}).asking(t, "")
			c.call("s", "process/start", sh("p", tt.command))
			first, _ := c.until(protocol.MethodExecApproval)
			current.Set(policyOf(t, tt.after, tt.change))
			closed, _ := c.until(protocol.MethodExecApprovalClosed)
			rig.Is(t, closed.Params.ApprovalID, first.Params.ApprovalID, "closed is")
			rig.Is(t, closed.Params.Reason, "policyChanged", "closed because")
			if tt.again {
				second := c.hears()
				if second.Method != protocol.MethodExecApproval || second.Params.ApprovalID == first.Params.ApprovalID {
					t.Fatalf("then the client hears %+v", second)
				}
				c.replies(first, `"decline"`) // too late
				c.replies(second, `"accept"`)
			}
			if code, output, more := c.ends(); code != tt.code || !strings.HasSuffix(output, tt.output) || more != nil {
				t.Errorf("code %d, output %q, closed %q; want %d and %q", code, output, more, tt.code, tt.output)
			}
		})
	}
}

// TestQuestionKilled: a question about a program is closed as soon as nobody waits for it.
func TestQuestionKilled(t *testing.T) {
	t.Parallel()
	for name, sandbox := range map[string]object{"bare": nil, "sandbox": readOnly} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _, _ := newHarness(t, treeRules(t)).asking(t, "")
			params := sh("p", "i=id; $i & read x; kill -9 $!; read y; echo end")
			params["pipeStdin"] = true
			params["sandbox"] = sandbox
			c.call("s", "process/start", params)
			q, _ := c.until(protocol.MethodExecApproval)
			c.call("x", "process/write", object{"processId": "p", "writeId": "1", "chunk": []byte("x\n")})
			closed, before := c.until(protocol.MethodExecApprovalClosed)
			if closed.Params.ApprovalID != q.Params.ApprovalID || closed.Params.Reason != "exited" || slices.Contains(before, protocol.MethodProcessExited) {
				t.Errorf("closed %+v after %q", closed.Params, before)
			}
			c.replies(q, `"accept"`) // too late
			c.call("y", "process/write", object{"processId": "p", "writeId": "2", "chunk": []byte("y\n")})
			code, output, more := c.ends()
			rig.Is(t, code == 0 && output == "end\n" && more == nil, true, "code %d, output %q, closed %q", code, output, more)
		})
	}
}

// TestQuestionAmends: a rule with which a client accepts a command is added to those of the
// operator, unless the answer is no more than a yes.
func TestQuestionAmends(t *testing.T) {
	t.Parallel()
	unmatched := func(p *execpolicy.Policy) { p.Unmatched, p.Opaque = rule.Prompt, rule.Prompt }
	for _, tt := range []struct {
		name, rules string
		change      func(*execpolicy.Policy)
		argv        []string
		more        object
		prefix      string
		added       string // "" for none
	}{
		{"a beginning", "", unmatched, []string{"echo", "a", "b"}, nil, `["echo","a"]`, "echo a"},
		{"the whole", "", unmatched, []string{"echo", "a"}, nil, `["echo","a"]`, "echo a"},
		{"of a script", `prefix_rule(["true"])`, unmatched, []string{"sh", "-c", "true && echo a"}, nil, `["echo"]`, "echo"},
		{"no beginning", "", unmatched, []string{"echo", "a"}, nil, `["echo","b"]`, ""},
		{"longer", "", unmatched, []string{"echo", "a"}, nil, `["echo","a","b"]`, ""},
		{"nothing", "", unmatched, []string{"echo", "a"}, nil, `[]`, ""},
		{"too wide", "", unmatched, []string{"sh", "-c", "echo $HOME"}, nil, `["sh","-c"]`, ""},
		{"a rule asks", `prefix_rule(["echo"], "prompt")`, unmatched, []string{"echo", "a"}, nil, `["echo","a"]`, ""},
		{"a rule would be hidden", `prefix_rule(["echo", "b"], "forbidden")`, unmatched, []string{"/bin/echo", "a"}, nil, `["/bin/echo"]`, ""},
		{"no rule would be hidden", `prefix_rule(["cat"], "forbidden")`, unmatched, []string{"/bin/echo", "a"}, nil, `["/bin/echo"]`, "/bin/echo"},
		{"only the client asks", "", nil, []string{"echo", "a"}, object{"unmatched": "prompt"}, `["echo","a"]`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var added []string
			policy := policyOf(t, tt.rules, tt.change)
			current := execpolicy.NewCurrent(policy, func(prefix []string) { added = append(added, strings.Join(prefix, " ")) })
			c, _, _ := newHarness(t, Config{ExecPolicy: inForce(current)}).asking(t, "")
			params := sh("p", "")
			params["argv"] = tt.argv
			if tt.more != nil {
				params["execApproval"] = tt.more
			}
			q := c.asks(params)
			c.replies(q, `{"acceptWithRule":{"prefix":`+tt.prefix+`}}`)
			code, output, _ := c.ends()
			rig.Is(t, code, 0, "the code, with output %q", output)
			rig.Is(t, strings.Join(added, ";"), tt.added, "added")
		})
	}
	t.Run("below", func(t *testing.T) {
		t.Parallel()
		var added []string
		policy := policyOf(t, `prefix_rule(["sh"])`, func(p *execpolicy.Policy) { p.Unmatched, p.Enforce = rule.Prompt, execpolicy.InTree })
		current := execpolicy.NewCurrent(policy, func(prefix []string) { added = append(added, strings.Join(prefix, " ")) })
		c, _, _ := newHarness(t, Config{ExecPolicy: inForce(current)}).asking(t, "")
		c.call("s", "process/start", prompts("p", "i=/usr/bin/id; $i -u >/dev/null; $i -u", object{"execApproval": nil}))
		q, _ := c.until(protocol.MethodExecApproval)
		if q.Params.Kind == protocol.ApprovalStart {
			c.replies(q, `"accept"`)
			q, _ = c.until(protocol.MethodExecApproval)
		}
		c.replies(q, `{"acceptWithRule":{"prefix":["/usr/bin/id","-u"]}}`)
		if code, output, _ := c.ends(); code != 0 || strings.Join(added, ";") != "/usr/bin/id -u" {
			t.Errorf("code %d, output %q, added %q", code, output, added)
		}
	})
}
