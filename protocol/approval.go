package protocol

import "github.com/execagent/execagent/protocol/strict"

// ExecApproval is a policy of the client for one process (execpolicy.md 8.1). The stricter decision
// of it and of the server's own holds.
type ExecApproval struct {
	Rules []RuleFile `json:"rules,omitempty"`
	// Unmatched is the decision about commands that no rule matches: "allow", "prompt" or
	// "forbidden"; "" is "allow".
	Unmatched string `json:"unmatched,omitempty"`
}

// RuleFile is a file of rules.
type RuleFile struct {
	Name string `json:"name"` // for messages
	Text string `json:"text"`
}

// Bounds of the rules of a client. The texts are bounded together, by who reads them.
const (
	maxRuleFiles    = 256
	maxRuleFileName = 255
)

// unmarshalExecApproval reads the member execApproval. It may have no members that are not known
// here: they could say what is forbidden.
func unmarshalExecApproval(o *strict.Object) (a *ExecApproval) {
	o.OptIn("execApproval", func(o *strict.Object) {
		a = &ExecApproval{}
		o.Only("rules", "unmatched")
		if o.Has("rules") {
			o.Each("rules", func(o *strict.Object) {
				f := RuleFile{Name: o.String("name"), Text: o.String("text")}
				o.Only("name", "text")
				if len(f.Name) > maxRuleFileName {
					o.Fail("name", "is %d bytes, at most %d", len(f.Name), maxRuleFileName)
				}
				if a.Rules = append(a.Rules, f); len(a.Rules) > maxRuleFiles {
					o.Fail("text", "is one of more than %d files", maxRuleFiles)
				}
			})
		}
		if o.Has("unmatched") {
			a.Unmatched = o.OneOf("unmatched", "allow", "prompt", "forbidden")
		}
	})
	return a
}
