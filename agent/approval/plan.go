package approval

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// Plan is what the policies say about a process that may be started.
type Plan struct {
	// Pending says that the client has to be asked before.
	Pending bool
	// Policy is asked about every program that the process executes; nil: about none.
	Policy *execpolicy.Policy

	current  *execpolicy.Current
	operator *execpolicy.Policy // that was in force; nil for none
	client   *execpolicy.Policy // nil for none
	argv     []string
	find     func(program string) string

	verdict execpolicy.Verdict
	exe     string
	cwd     string
	timeout time.Duration
	report  string
}

// IsPending tells whether the client has to be asked. It may be called on nil.
func (p *Plan) IsPending() bool { return p != nil && p.Pending }

// Pin makes a spec run the program that was decided about. Looked for again in the PATH it could be
// another one: what comes before it may be there by then, or what was found be hidden by a sandbox.
// It may be called on nil.
func (p *Plan) Pin(spec *procs.Spec) {
	if p == nil || p.exe == "" || strings.Contains(spec.Argv[0], "/") {
		return
	}
	if spec.Arg0 == nil {
		spec.Arg0 = new(spec.Argv[0])
	}
	spec.Shown, spec.Argv = spec.Argv, slices.Concat([]string{p.exe}, spec.Argv[1:])
}

// defaultTimeout is how long a question waits for its answer.
const defaultTimeout = 120 * time.Second

// Decide returns an error of the wire if the command of a request must not be started: if a policy
// forbids it, or wants somebody to be asked where nobody can be. The plan is nil where there is no
// policy. Env and dir are those of the process, asks tells whether the client can be asked, and
// judges whether what a process executes can be judged on this host. Nothing has been done for the
// process so far.
func (d *Desk) Decide(current *execpolicy.Current, p *protocol.StartParams, env []string, dir string, asks bool, judges func() bool) (*Plan, error) {
	client, err := clientPolicy(p.ExecApproval)
	if err != nil {
		return nil, protocol.InvalidParams("execApproval: %v", err)
	}
	operator := current.Policy()
	if operator == nil && client == nil {
		return nil, nil
	}
	plan := &Plan{
		current: current, operator: operator, client: client, argv: p.Argv, cwd: dir, timeout: defaultTimeout, report: protocol.ReportAsked,
	}
	plan.find = func(program string) string {
		if program == p.Argv[0] && plan.exe != "" {
			return plan.exe // see [Plan.Pin]
		}
		found, err := procs.LookPath(program, dir, env)
		if err != nil {
			return ""
		}
		return rule.Absolute(found, dir, "")
	}
	plan.exe = plan.find(p.Argv[0])
	plan.verdict = plan.both(operator).Start(p.Argv, plan.find)
	if a := p.ExecApproval; a != nil {
		plan.report = cmp.Or(a.Report, plan.report)
		if a.TimeoutMs != nil {
			plan.timeout = time.Duration(*a.TimeoutMs) * time.Millisecond
		}
	}
	switch {
	case p.Builtin: // it executes nothing
	case operator != nil && operator.Enforce == execpolicy.InTree, client != nil && (client.Rules.Len() > 0 || client.Unmatched != rule.Allow) && judges():
		plan.Policy = plan.below(operator)
	}
	switch plan.verdict.Decision {
	case rule.Forbidden:
		return nil, d.refuse(plan.exe, plan.verdict, refused)
	case rule.Prompt:
		switch {
		case asks:
			plan.Pending = true
			return plan, nil
		case operator == nil || !operator.AllowUnasked:
			return nil, d.refuse(plan.exe, plan.verdict, unanswered)
		case client != nil:
			// What the client itself wants to be asked about it has to answer.
			if own := client.Start(p.Argv, plan.find); own.Decision != rule.Allow {
				return nil, d.refuse(plan.exe, own, unanswered)
			}
		}
		d.note(protocol.ApprovalStart, plan.exe, 0, plan.verdict.Decider(), unasked)
	}
	return plan, nil
}

// refuse is the error for a start that a policy does not allow, and notes it.
func (d *Desk) refuse(program string, v execpolicy.Verdict, outcome string) error {
	d.note(protocol.ApprovalStart, program, 0, v.Decider(), outcome)
	return refusal(v)
}

// both is a policy of the operator, nil for none, with that of the client on top.
func (p *Plan) both(operator *execpolicy.Policy) *execpolicy.Policy {
	switch {
	case operator == nil:
		return p.client
	case p.client == nil:
		return operator
	}
	return operator.With(p.client)
}

// below is what is asked about what a process executes; nil: nothing is.
func (p *Plan) below(operator *execpolicy.Policy) *execpolicy.Policy {
	if operator != nil && operator.Enforce == execpolicy.InTree {
		return p.both(operator)
	}
	return p.client
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

// maxData is how many bytes of findings are told. All or none are: a command can be as long as a
// message.
const maxData = 16 << 10

// matched renders the findings of a verdict as an array.
func matched(findings []execpolicy.Finding) []byte {
	var data bytes.Buffer
	enc := json.NewEncoder(&data)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(findings); err != nil || data.Len() > maxData || len(findings) == 0 {
		return []byte("[]")
	}
	return bytes.TrimSpace(data.Bytes())
}

// refusal is the error for a start that a policy does not allow.
func refusal(v execpolicy.Verdict) error {
	e := protocol.InvalidRequest("%s", v.Reason())
	e.Data = append([]byte(`{"reason":"`+protocol.ReasonExecPolicy+`","matchedRules":`), matched(v.Findings)...)
	e.Data = append(e.Data, '}')
	return e
}
