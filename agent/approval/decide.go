package approval

import (
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
)

// outcome is what becomes of a question.
type outcome struct {
	allowed bool
	by      string   // what has decided, or why the question was closed
	noted   string   // what the operator is told, one of [Outcomes]; "": nothing
	id      string   // of the question at the client; "" if it was not asked
	again   bool     // the same command needs not be asked about again
	prefix  []string // nor do commands with this beginning; nil: none
	end     bool     // the client wants the process to end
	text    string   // why the command is refused, if it is about a start
}

// What decides, as the client is told.
const (
	byRule     = "rule"
	byMemo     = "memo" // an answer before
	byApproval = "approval"
)

// decide asks the client, and changes nothing: [Process.conclude] does. If the operator's policy is
// replaced meanwhile, the question is closed, and an earlier answer or the new policy decides, or the
// client is asked again. The question that decide returns is q as the policy sees it that was in
// force at the end.
func (p *Process) decide(ctx context.Context, q question) (question, outcome) {
	for {
		answer, id, err := p.ask(ctx, &q)
		var o outcome
		switch {
		case err == nil:
			o = q.read(answer)
		case errors.Is(err, errReplaced):
			q, o = p.review(q)
		default:
			o = q.unanswered(err)
		}
		if o.by != "" {
			o.id = id
			return q, o
		}
	}
}

// ask asks the client once, and returns the id of that question, "" if the client was not asked. A
// client that was asked and has not answered is told why its answer is not needed any more.
func (p *Process) ask(ctx context.Context, q *question) (answer protocol.ExecApprovalAnswer, id string, err error) {
	params := q.params()
	params.ProcessID, params.TimeoutMs = p.id, uint64(p.plan.timeout.Milliseconds())
	answer, err = p.turns(ctx, q.operator, &params)
	if able, _ := p.desk.now(); err != nil && able && params.ApprovalID != "" {
		p.desk.Tell(protocol.MethodExecApprovalClosed, &protocol.ExecApprovalClosed{ProcessID: p.id, ApprovalID: params.ApprovalID, Reason: err.Error()})
	}
	return answer, params.ApprovalID, err
}

// turns asks when it is the question's turn. The time of the question begins then.
func (p *Process) turns(ctx context.Context, operator *execpolicy.Policy, q *protocol.ExecApprovalParams) (protocol.ExecApprovalAnswer, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer p.plan.current.Replaced(operator, func() { cancel(errReplaced) })()
	for _, turn := range []chan struct{}{p.turn, p.desk.turn} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-ctx.Done():
			return protocol.ExecApprovalAnswer{}, context.Cause(ctx)
		}
	}
	if ctx.Err() != nil {
		return protocol.ExecApprovalAnswer{}, context.Cause(ctx)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return protocol.ExecApprovalAnswer{}, err
	}
	q.ApprovalID, q.AfterSeq = id.String(), p.runner.Last()
	ctx, stop := context.WithTimeoutCause(ctx, p.plan.timeout, errTimeout)
	defer stop()
	return p.desk.ask(ctx, q)
}

// rejected is the reason of a no, in the words of the reference.
const rejected = "rejected by user"

// read takes an answer.
func (q *question) read(a protocol.ExecApprovalAnswer) outcome {
	yes := outcome{allowed: true, by: byApproval, noted: accepted}
	switch a.Decision {
	case protocol.ApprovalAccept:
		return yes
	case protocol.ApprovalAcceptForProcess:
		yes.again = true
		return yes
	case protocol.ApprovalAcceptWithRule:
		// Where a rule asks nothing is proposed: no other rule lifts it.
		if n := len(a.Prefix); n > 0 && n <= len(q.Proposed) && slices.Equal(q.Proposed[:n], a.Prefix) && !execpolicy.TooWide(a.Prefix) {
			yes.prefix = a.Prefix
		}
		return yes
	}
	return outcome{by: byApproval, noted: declined, end: a.Decision == protocol.ApprovalCancel, text: q.Reason + ": " + rejected}
}

// unanswered is the outcome of a question that was closed for a reason.
func (q *question) unanswered(why error) outcome {
	o := outcome{by: why.Error(), noted: withdrawn, text: q.Reason + ": nobody has approved it"}
	switch {
	case errors.Is(why, errUnable) && q.Unasked:
		o.allowed, o.noted = true, unasked
	case errors.Is(why, errUnable):
		o.noted = unanswered
	case errors.Is(why, errTimeout):
		o.noted, o.text = unanswered, q.Reason+": the question was not answered in time"
	}
	return o
}

// review decides about a question again, by the policy that the operator has now. If outcome.by is
// "" the client has to be asked again. What runs keeps the rules of its start: if these ask about
// a program that it executes, new ones can only forbid that.
func (p *Process) review(q question) (question, outcome) {
	q.operator = p.plan.current.Policy()
	var v execpolicy.Verdict
	switch policy := p.plan.below(q.operator); {
	case q.kind == protocol.ApprovalStart:
		v = p.plan.both(q.operator).Start(p.plan.argv, p.plan.find)
		q.about(&v)
		if v.Decision == rule.Allow {
			return q, outcome{allowed: true, by: byRule, noted: withdrawn}
		}
	case p.remembers(&q):
		return q, outcome{allowed: true, by: byMemo, noted: withdrawn}
	case policy != nil:
		v = policy.Exec(program(slices.Concat([]string{q.Exe}, q.Argv[min(1, len(q.Argv)):])))
	}
	if v.Decision == rule.Forbidden {
		q.Decider = v.Decider()
		return q, outcome{by: byRule, noted: refused, text: v.Reason()}
	}
	return q, outcome{}
}
