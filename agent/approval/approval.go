// Package approval asks the policies about commands before a process is started: that of the
// operator, and that of the client in the request.
package approval

import (
	"bytes"
	"encoding/json"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// Check returns an error of the wire if the command of a request must not be started: if a policy
// forbids it, or wants somebody to be asked, which nobody can be. Operator is nil for none, env and
// dir are those of the process. Nothing has been done for the process so far.
func Check(operator *execpolicy.Policy, p *protocol.StartParams, env []string, dir string) error {
	client, err := clientPolicy(p.ExecApproval)
	if err != nil {
		return protocol.InvalidParams("execApproval: %v", err)
	}
	find := func(program string) string {
		found, err := procs.LookPath(program, dir, env)
		if err != nil {
			return ""
		}
		return rule.Absolute(found, dir, "")
	}
	if operator != nil {
		v := operator.Start(p.Argv, find)
		if v.Decision == rule.Forbidden || v.Decision == rule.Prompt && !operator.AllowUnasked {
			return refusal(v)
		}
	}
	if client != nil {
		if v := client.Start(p.Argv, find); v.Decision != rule.Allow {
			return refusal(v)
		}
	}
	return nil
}

// clientPolicy returns the policy of a request, nil for none.
func clientPolicy(a *protocol.ExecApproval) (*execpolicy.Policy, error) {
	if a == nil {
		return nil, nil
	}
	files := make([]execpolicy.ClientFile, len(a.Rules))
	for i, f := range a.Rules {
		files[i] = execpolicy.ClientFile{Name: f.Name, Text: f.Text}
	}
	rules, err := execpolicy.ParseClient(files)
	if err != nil {
		return nil, err
	}
	client := &execpolicy.Policy{Rules: rules}
	if a.Unmatched != "" {
		if client.Unmatched, err = rule.ParseDecision(a.Unmatched); err != nil {
			return nil, err
		}
	}
	client.Opaque = client.Unmatched
	return client, nil
}

// maxData is how much more a refusal tells than its text, in bytes. It tells nothing rather than a
// part: a command can be as long as a message.
const maxData = 16 << 10

// refusal is the error for a start that a policy does not allow.
func refusal(v execpolicy.Verdict) error {
	e := protocol.InvalidRequest("%s", v.Reason())
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	err := enc.Encode(struct {
		Reason  string               `json:"reason"`
		Matched []execpolicy.Finding `json:"matchedRules"`
	}{protocol.ReasonExecPolicy, v.Findings})
	if err == nil && data.Len() <= maxData {
		e.Data = bytes.TrimSpace(data.Bytes())
	} else {
		e.Data = []byte(`{"reason":"` + protocol.ReasonExecPolicy + `","matchedRules":[]}`)
	}
	return e
}
