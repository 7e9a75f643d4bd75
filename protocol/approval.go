package protocol

import (
	"bytes"
	"encoding/json"
	"math"

	"github.com/execagent/execagent/internal/strictjson"
)

// ExecApproval is a policy of the client for one process (execpolicy.md 8.1). The stricter decision
// of this policy and of the server's own holds.
type ExecApproval struct {
	Rules []RuleFile `json:"rules,omitempty"`
	// Unmatched is the decision about commands that no rule matches: "allow", "prompt" or
	// "forbidden"; "" is "allow".
	Unmatched string `json:"unmatched,omitempty"`
	// Opaque is the decision about scripts that cannot be split; "": Unmatched. ForcedRM is the decision
	// about rm -f that no rule matches; "" is "allow". Enforce is "start", to judge only the command, or
	// "tree", to judge every program that it executes too; "": tree if the server can, else start. These
	// three need a server with ExecApprovalEnforce.
	Opaque   string `json:"opaque,omitempty"`
	ForcedRM string `json:"forcedRm,omitempty"`
	Enforce  string `json:"enforce,omitempty"`
	// TimeoutMs is how long a question waits for its answer, 1 s to 1 h; nil: 120 s.
	TimeoutMs *uint64 `json:"timeoutMs,omitempty"`
	// Report is one of ReportRefused, ReportAsked and ReportAll; "" is ReportAsked.
	Report string `json:"report,omitempty"`
}

// RuleFile is a file of rules.
type RuleFile struct {
	Name string `json:"name"` // for messages
	Text string `json:"text"`
}

// Bounds of the rules of a client. The reader of the rules bounds the texts together.
const (
	maxRuleFiles    = 256
	maxRuleFileName = 255

	minApprovalMs = 1_000
	maxApprovalMs = 3_600_000
)

// unmarshalExecApproval reads the member execApproval. Unknown members are refused, because they
// could forbid something.
func unmarshalExecApproval(o *strictjson.Object) (a *ExecApproval) {
	o.OptIn("execApproval", func(o *strictjson.Object) {
		a = &ExecApproval{}
		o.Only("rules", "unmatched", "opaque", "forcedRm", "enforce", "timeoutMs", "report")
		if o.Has("rules") {
			o.Each("rules", func(o *strictjson.Object) {
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
		decision := func(name string) string {
			if !o.Has(name) {
				return ""
			}
			return o.OneOf(name, "allow", "prompt", "forbidden")
		}
		a.Unmatched, a.Opaque, a.ForcedRM = decision("unmatched"), decision("opaque"), decision("forcedRm")
		if o.Has("enforce") {
			a.Enforce = o.OneOf("enforce", "start", "tree")
		}
		if a.TimeoutMs = o.OptUint64("timeoutMs"); a.TimeoutMs != nil && (*a.TimeoutMs < minApprovalMs || *a.TimeoutMs > maxApprovalMs) {
			o.Fail("timeoutMs", "is %d, must be %d to %d", *a.TimeoutMs, minApprovalMs, maxApprovalMs)
		}
		if o.Has("report") {
			a.Report = o.OneOf("report", ReportRefused, ReportAsked, ReportAll)
		}
	})
	return a
}

// Methods with which a server asks its client about commands and reports decisions (execpolicy.md
// 8.4). Only a client with SubcommandApprovals gets them.
const (
	MethodExecApproval       = "process/execApproval"       // request of the server
	MethodExecApprovalClosed = "process/execApprovalClosed" // notification
	MethodExecDecision       = "process/execDecision"       // notification
)

// Which decisions about a process are reported to the client.
const (
	ReportRefused = "refused"
	ReportAsked   = "asked" // refusals, and commands that were asked about
	ReportAll     = "all"
)

// ApprovalPending in the result of a start says that the client is asked first.
const ApprovalPending = "pending"

// The subjects of a question.
const (
	ApprovalStart = "start" // the command of process/start
	ApprovalExec  = "exec"  // a program that this command executes
)

// ExecApprovalParams ask a client whether a command may run.
type ExecApprovalParams struct {
	ProcessID string `json:"processId"`
	// ApprovalID belongs to this question alone. A question that is asked again, after the client
	// has come back, keeps its id.
	ApprovalID string   `json:"approvalId"`
	Kind       string   `json:"kind"`
	Argv       []string `json:"argv"`
	Truncated  bool     `json:"truncated,omitempty"` // Argv is the beginning of it
	Exe        string   `json:"exe"`                 // "" if there is no such program
	Cwd        string   `json:"cwd"`
	PID        int      `json:"pid,omitempty"` // 0 for a process that was not started yet
	PPID       int      `json:"ppid,omitempty"`
	Reason     string   `json:"reason"`
	// MatchedRules are as in the error of a refused start.
	MatchedRules json.RawMessage `json:"matchedRules"`
	// ProposedPrefix is the beginning of a command that a rule could allow.
	ProposedPrefix []string `json:"proposedPrefix,omitempty"`
	// AfterSeq is the number of the last event of the process before the question.
	AfterSeq  uint64 `json:"afterSeq"`
	TimeoutMs uint64 `json:"timeoutMs"`
}

func (p *ExecApprovalParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	p.ApprovalID = o.String("approvalId")
	p.Kind = o.String("kind")
	p.Argv = o.Strings("argv")
	p.Truncated = o.BoolDefault("truncated", false)
	p.Exe = o.String("exe")
	p.Cwd = o.String("cwd")
	p.PID, p.PPID = count(o, "pid"), count(o, "ppid")
	p.Reason = o.String("reason")
	p.MatchedRules = bytes.Clone(o.Require("matchedRules"))
	if o.Has("proposedPrefix") {
		p.ProposedPrefix = o.Strings("proposedPrefix")
	}
	p.AfterSeq = o.Uint64("afterSeq")
	p.TimeoutMs = o.Uint64("timeoutMs")
}

// ApprovalDecision is the answer of a client. Every other word declines.
type ApprovalDecision string

// The decisions.
const (
	ApprovalAccept           ApprovalDecision = "accept"
	ApprovalAcceptForProcess ApprovalDecision = "acceptForProcess" // and the same command again, of this process
	ApprovalAcceptWithRule   ApprovalDecision = "acceptWithRule"   // and all commands with a prefix
	ApprovalDecline          ApprovalDecision = "decline"
	ApprovalCancel           ApprovalDecision = "cancel" // and end the process
)

// ExecApprovalAnswer answers process/execApproval.
type ExecApprovalAnswer struct {
	Decision ApprovalDecision
	Prefix   []string // of ApprovalAcceptWithRule
}

// MarshalJSON returns the answer in the form of the wire.
func (a ExecApprovalAnswer) MarshalJSON() ([]byte, error) {
	if a.Decision != ApprovalAcceptWithRule {
		return json.Marshal(map[string]ApprovalDecision{"decision": a.Decision})
	}
	return json.Marshal(map[string]any{"decision": map[string]any{string(a.Decision): map[string]any{"prefix": a.Prefix}}})
}

func (a *ExecApprovalAnswer) UnmarshalObject(o *Object) {
	if raw := o.Require("decision"); len(raw) > 0 && raw[0] == '"' {
		a.Decision = ApprovalDecision(o.String("decision"))
		if a.Decision == ApprovalAcceptWithRule {
			o.Fail("decision", "has no prefix")
		}
		return
	}
	o.In("decision", func(o *strictjson.Object) {
		o.In(string(ApprovalAcceptWithRule), func(o *strictjson.Object) {
			a.Decision, a.Prefix = ApprovalAcceptWithRule, o.Strings("prefix")
		})
	})
}

// ExecApprovalClosed says that a question needs no answer any more.
type ExecApprovalClosed struct {
	ProcessID  string `json:"processId"`
	ApprovalID string `json:"approvalId"`
	Reason     string `json:"reason"` // timeout, terminated, exited, disconnected or policyChanged
}

func (c *ExecApprovalClosed) UnmarshalObject(o *Object) {
	c.ProcessID, c.ApprovalID, c.Reason = o.String("processId"), o.String("approvalId"), o.String("reason")
}

// ExecDecision reports the decision about a command.
type ExecDecision struct {
	ProcessID  string   `json:"processId"`
	ApprovalID string   `json:"approvalId,omitempty"`
	PID        int      `json:"pid"`
	PPID       int      `json:"ppid"`
	Exe        string   `json:"exe"`
	Argv       []string `json:"argv"`
	Decision   string   `json:"decision"` // allow or forbidden
	Source     string   `json:"source"`   // rule, heuristic, approval, memo, or why the question was closed
	// Rule is the place of the rule that forbade the command or caused the question, as
	// FILE:LINE:COLUMN without a folder, or "client" for a rule of the client; "" if there is none.
	Rule string `json:"rule,omitempty"`
	// Dropped is how many decisions before this one are not reported, because there were too many.
	Dropped int `json:"dropped,omitempty"`
}

func (d *ExecDecision) UnmarshalObject(o *Object) {
	d.ProcessID = o.String("processId")
	if o.Has("approvalId") {
		d.ApprovalID = o.String("approvalId")
	}
	d.PID, d.PPID = count(o, "pid"), count(o, "ppid")
	d.Exe = o.String("exe")
	d.Argv = o.Strings("argv")
	d.Decision, d.Source = o.String("decision"), o.String("source")
	if o.Has("rule") {
		d.Rule = o.String("rule")
	}
	d.Dropped = count(o, "dropped")
}

// count reads a number that may be absent.
func count(o *strictjson.Object, name string) int {
	if n := o.OptUint64(name); n != nil {
		return int(min(*n, math.MaxInt32))
	}
	return 0
}
