package approval

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// Request is a client's request to start a process.
type Request struct {
	Argv     []string
	Env      []string // of the process
	Dir      string   // the working directory of the process
	Builtin  bool     // the command is a tool of our own, which executes nothing
	Approval *protocol.ExecApproval
}

// Host has the facts besides the request that a decision depends on.
type Host struct {
	Operator *execpolicy.Current // the policy of the operator; nil for none
	CanAsk   bool                // the client answers questions
	// CanJudge reports whether this host can judge the programs that a process executes. It is
	// called only if the client has rules about them. Nil: it cannot.
	CanJudge func() bool
}

// Plan has the policies' decisions about a process that may be started.
type Plan struct {
	// Pending says that the client must be asked first.
	Pending bool
	// Policy judges every program that the process executes; nil: none is judged.
	Policy *execpolicy.Policy

	current  *execpolicy.Current
	operator *execpolicy.Policy // that was in force; nil for none
	client   *execpolicy.Policy // nil for none; its Enforce says whether it judges programs
	argv     []string
	env      []string
	dir      string

	verdict execpolicy.Verdict
	exe     string
	timeout time.Duration
	report  string
}

// IsPending reports whether the client must be asked. It may be called on nil.
func (p *Plan) IsPending() bool { return p != nil && p.Pending }

// Pin makes a spec run the program that was decided about. Another search in the PATH could find
// another program: a file may have been added earlier in the PATH, or a sandbox may hide the found
// one. A link on the way of a path with .. could lead elsewhere by then. It may be called on nil.
func (p *Plan) Pin(spec *procs.Spec) {
	if p == nil || p.exe == "" || strings.Contains(spec.Argv[0], "/") && rule.Certain(spec.Argv[0], p.dir) {
		return
	}
	if spec.Arg0 == nil {
		spec.Arg0 = new(spec.Argv[0])
	}
	spec.Shown, spec.Argv = spec.Argv, slices.Concat([]string{p.exe}, spec.Argv[1:])
}

// defaultTimeout is how long a question waits for its answer.
const defaultTimeout = 120 * time.Second

// Decide returns a protocol error if the command of a request must not be started: if a policy
// forbids it, or requires a question that nobody can answer. The plan is nil if there is no policy.
// Decide does nothing for the process yet.
func (d *Desk) Decide(r Request, h Host) (*Plan, error) {
	client, err := clientPolicy(r.Approval)
	if err != nil {
		return nil, protocol.InvalidParams("execApproval: %v", err)
	}
	operator := h.Operator.Policy()
	if operator == nil && client == nil {
		return nil, nil
	}
	plan := &Plan{
		current: h.Operator, operator: operator, client: client, argv: r.Argv, env: r.Env, dir: r.Dir,
		timeout: defaultTimeout, report: protocol.ReportAsked,
	}
	if a := r.Approval; a != nil {
		plan.report = cmp.Or(a.Report, plan.report)
		if a.TimeoutMs != nil {
			plan.timeout = time.Duration(*a.TimeoutMs) * time.Millisecond
		}
	}
	plan.exe = plan.find(r.Argv[0])
	plan.verdict = plan.both(operator).Start(r.Argv, plan.find)
	inTree := operator != nil && operator.Enforce == execpolicy.InTree
	if client != nil && !inTree && !r.Builtin && !settle(client, r.Approval.Enforce, h.CanJudge) {
		return nil, protocol.InvalidRequest("execApproval.enforce is tree, but this host cannot judge the programs that a command executes (agent doctor says why there); enforce start judges the command alone")
	}
	if !r.Builtin {
		plan.Policy = plan.below(operator)
	}
	switch {
	case plan.verdict.Decision == rule.Allow:
		return plan, nil
	case plan.verdict.Decision == rule.Forbidden:
		return nil, d.refuse(plan.exe, plan.verdict, refused)
	case h.CanAsk:
		plan.Pending = true
		return plan, nil
	case operator == nil || !operator.AllowUnasked:
		return nil, d.refuse(plan.exe, plan.verdict, unanswered)
	case client != nil:
		// The client must answer the questions that its own policy asks.
		if own := client.Start(r.Argv, plan.find); own.Decision != rule.Allow {
			return nil, d.refuse(plan.exe, own, unanswered)
		}
	}
	d.note(Decision{Kind: protocol.ApprovalStart, Program: plan.exe, Decider: plan.verdict.Decider(), Outcome: unasked})
	return plan, nil
}

// find returns the path of a program as the process would find it, "" if there is none.
func (p *Plan) find(program string) string {
	if program == p.argv[0] && p.exe != "" {
		return p.exe // see [Plan.Pin]
	}
	found, err := procs.LookPath(program, p.dir, p.env)
	if err != nil {
		return ""
	}
	return judge.Called(found, p.dir)
}

// refuse is the error for a start that a policy does not allow, and notes it.
func (d *Desk) refuse(program string, v execpolicy.Verdict, outcome string) error {
	d.note(Decision{Kind: protocol.ApprovalStart, Program: program, Decider: v.Decider(), Outcome: outcome})
	e := protocol.InvalidRequest("%s", v.Reason())
	e.Data = append([]byte(`{"reason":"`+protocol.ReasonExecPolicy+`","matchedRules":`), judge.Matched(v.Findings)...)
	e.Data = append(e.Data, '}')
	return e
}

// both returns a policy of the operator, nil for none, with the client's policy on top.
func (p *Plan) both(operator *execpolicy.Policy) *execpolicy.Policy {
	switch {
	case operator == nil:
		return p.client
	case p.client == nil:
		return operator
	}
	return operator.With(p.client)
}

// below returns the policy about the programs that a process executes; nil: there is none.
func (p *Plan) below(operator *execpolicy.Policy) *execpolicy.Policy {
	client := p.client
	if client != nil && client.Enforce != execpolicy.InTree {
		client = nil
	}
	switch {
	case operator == nil || operator.Enforce != execpolicy.InTree:
		return client
	case client == nil:
		return operator
	}
	return operator.With(client)
}

// clientPolicy returns the policy of a request, nil for none. It judges programs if the request allows that.
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
	allow := rule.Allow.String()
	for _, d := range []struct {
		to   *rule.Decision
		name string
	}{
		{&client.Unmatched, cmp.Or(a.Unmatched, allow)}, {&client.Opaque, cmp.Or(a.Opaque, a.Unmatched, allow)}, {&client.ForcedRm, cmp.Or(a.ForcedRM, allow)},
	} {
		if *d.to, err = rule.ParseDecision(d.name); err != nil {
			return nil, err
		}
	}
	client.Enforce, err = execpolicy.ParseEnforce(cmp.Or(a.Enforce, execpolicy.InTree.String()))
	return client, err
}

// settle decides whether a client's policy judges programs, where the operator's does not: if it says something
// about them, and this host can judge them. It reports whether the client gets what it asked for.
func settle(client *execpolicy.Policy, asked string, canJudge func() bool) bool {
	says := client.Rules.Len() > 0 || client.Unmatched != rule.Allow || client.ForcedRm != rule.Allow
	if client.Enforce != execpolicy.InTree || says && canJudge != nil && canJudge() {
		return true
	}
	client.Enforce = execpolicy.AtStart
	return !says || asked == ""
}
