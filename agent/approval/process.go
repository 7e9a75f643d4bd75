package approval

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/helper/judge"
	"github.com/execagent/execagent/protocol"
)

// Runner is the process that is asked about.
type Runner interface {
	// Last is the number of its last event.
	Last() uint64
	// Go lets the command run, and Refuse ends it with a text instead. If the plan was pending, one
	// of them is called, once, or End is.
	Go()
	Refuse(text string)
	// End ends the process.
	End()
}

// Process asks about one process. Its methods may be called at once, also on nil.
type Process struct {
	desk   *Desk
	plan   *Plan
	id     string
	runner Runner
	below  *judge.Desk // has the questions about what the process executes; nil: there are none

	ctx    context.Context // of all questions; its cause says why they end
	cancel context.CancelCauseFunc
	turn   chan struct{} // has an element for each question

	mu      sync.Mutex // guards what follows
	pending bool
	closed  bool
	ending  bool // Ending was called
	asking  sync.WaitGroup
	open    map[uint32]context.CancelCauseFunc // questions of below, by their id there
	tally   tally
	again   map[string]bool // commands that were accepted for the process, by their key
	// prefixes are the beginnings of commands that were accepted.
	prefixes [][]string
}

// Why a question is closed, in the words of the wire.
var (
	errTimeout    = errors.New("timeout")
	errTerminated = errors.New("terminated")
	errExited     = errors.New("exited")
	errReplaced   = errors.New("policyChanged")
)

// Open returns what asks about a process that was started. Nothing is asked before [Process.Begin].
func (d *Desk) Open(plan *Plan, id string, runner Runner, below *judge.Desk) *Process {
	if plan == nil {
		return nil
	}
	d.init()
	p := &Process{desk: d, plan: plan, id: id, runner: runner, below: below, turn: make(chan struct{}, maxAskedOfProcess), pending: plan.Pending,
		open: map[uint32]context.CancelCauseFunc{}}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Begin asks about the start, if that is pending: the client knows the process now.
func (p *Process) Begin() {
	if p == nil {
		return
	}
	if p.plan.Pending {
		p.goAsking(p.askStart)
	}
	if p.below != nil {
		p.goAsking(func() { p.below.Serve(p.take) })
	}
}

// take takes a question about what the process executes, or hears of a refusal, or that a question
// needs no answer any more.
func (p *Process) take(asked judge.Question) {
	if asked.Withdrawn {
		p.mu.Lock()
		defer p.mu.Unlock()
		if cancel := p.open[asked.ID]; cancel != nil {
			cancel(p.whyLocked(errExited))
		}
		return
	}
	q := question{
		operator: p.plan.operator, kind: protocol.ApprovalExec, argv: asked.Argv, truncated: asked.Truncated, exe: asked.Exe, cwd: asked.Dir,
		pid: asked.PID, ppid: asked.Parent, reason: asked.Reason, matched: []byte(asked.Matched), proposed: asked.Proposed,
		identity: asked.Identity, unasked: asked.Unasked, decider: asked.Decider,
	}
	if !json.Valid(q.matched) {
		q.matched = []byte("[]")
	}
	switch {
	case asked.Told:
		p.desk.Refused(asked)
		p.tell(&q, byRule, "", false, false)
	case p.remembers(&q):
		p.below.Answer(asked.ID, true)
		p.tell(&q, byMemo, "", true, false)
	default:
		ctx, cancel := context.WithCancelCause(p.ctx)
		p.mu.Lock()
		p.open[asked.ID] = cancel
		p.mu.Unlock()
		p.goAsking(func() {
			o := p.ask(ctx, &q)
			cancel(nil)
			p.mu.Lock()
			delete(p.open, asked.ID)
			p.mu.Unlock()
			p.below.Answer(asked.ID, o.allowed)
			if o.end {
				p.runner.End()
			}
		})
	}
}

// maxRemembered is how many commands, and how many beginnings of commands, are remembered.
const maxRemembered = 1024

// key is what a command is remembered by: its program, a path or a name, and its arguments. How a
// command calls itself does not count: a process may say anything there.
func key(program string, argv []string) string {
	return program + "\x00" + strings.Join(argv[min(1, len(argv)):], "\x00")
}

// remembers tells whether a command needs not be asked about again.
func (p *Process) remembers(q *question) bool {
	if q.truncated {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.again[key(q.exe+"\x00"+q.identity, q.argv)] || p.again[key(path.Base(q.exe), q.argv)] || slices.ContainsFunc(p.prefixes, func(prefix []string) bool {
		return len(prefix) <= len(q.proposed) && slices.Equal(prefix, q.proposed[:len(prefix)])
	})
}

// remember notes what was accepted for more than once.
func (p *Process) remember(o outcome, keys ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.prefix != nil && len(p.prefixes) < maxRemembered {
		p.prefixes = append(p.prefixes, o.prefix)
	}
	for _, k := range keys {
		if p.again == nil {
			p.again = map[string]bool{}
		}
		if len(p.again) < maxRemembered {
			p.again[k] = true
		}
	}
}

// goAsking runs ask, unless all questions are closed.
func (p *Process) goAsking(ask func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.asking.Go(ask)
	}
}

// Pending tells whether the command waits for its first answer.
func (p *Process) Pending() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

// Exited closes all questions of a process that has exited. It returns when the client was told.
func (p *Process) Exited() { p.close(errExited) }

// Ending notes that the process is about to be ended, which is why its questions will be closed.
// They stay open until then: refused a program, the command could go on for a moment.
func (p *Process) Ending() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
}

// Terminated does what Exited does, for a process that was ended.
func (p *Process) Terminated() { p.close(errTerminated) }

// whyLocked returns why questions are closed. A process that is being ended is noticed in several
// ways, each of which may be the first.
func (p *Process) whyLocked(why error) error {
	if p.ending {
		return errTerminated
	}
	return why
}

func (p *Process) close(why error) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.closed = true
	why = p.whyLocked(why)
	p.mu.Unlock()
	p.cancel(why)
	if p.below != nil {
		p.below.Hang()
	}
	p.asking.Wait()
}

// askStart asks about the command of the process itself.
func (p *Process) askStart() {
	q := question{operator: p.plan.operator, kind: protocol.ApprovalStart, exe: p.plan.exe, cwd: p.plan.cwd}
	q.about(p.plan.verdict)
	outcome := p.ask(p.ctx, &q)
	p.mu.Lock()
	p.pending = false
	p.mu.Unlock()
	switch {
	case outcome.allowed:
		for _, argv := range slices.Concat(q.commands, [][]string{q.argv}) { // whoever accepts a script accepts its commands
			if len(argv) > 0 {
				p.remember(outcome, key(path.Base(argv[0]), argv))
			}
		}
		p.runner.Go()
		return
	case p.ctx.Err() != nil:
		return // the process has ended, or who closes the questions ends it
	}
	if outcome.end {
		p.runner.End()
		return
	}
	p.runner.Refuse(outcome.text)
}

// ask asks the client, tells it what has become of the question, and returns that. ctx ends the
// question. If the operator's policy is replaced meanwhile, the question is closed, and the new one
// decides whether it comes up again.
func (p *Process) ask(ctx context.Context, q *question) (o outcome) {
	var params protocol.ExecApprovalParams
	source := ""
	for source == "" {
		params = q.params()
		params.ProcessID, params.TimeoutMs = p.id, uint64(p.plan.timeout.Milliseconds())
		answer, err := p.turns(ctx, q.operator, &params)
		if err == nil {
			source, o = byApproval, q.read(answer)
			p.accepted(q, o)
			p.noted(q, o, accepted, declined)
			break
		}
		reason := err.Error()
		if errors.Is(err, errUnable) {
			reason = "disconnected"
		}
		if able, _ := p.desk.now(); able && params.ApprovalID != "" { // it was asked
			p.desk.Tell(protocol.MethodExecApprovalClosed, &protocol.ExecApprovalClosed{ProcessID: p.id, ApprovalID: params.ApprovalID, Reason: reason})
		}
		switch {
		case errors.Is(err, errReplaced):
			if source, o = p.anew(q); source != "" {
				p.noted(q, o, withdrawn, refused)
			}
		case errors.Is(err, errUnable):
			source, o.allowed, o.text = reason, q.unasked, q.reason+": nobody has approved it"
			p.noted(q, o, unasked, unanswered)
		case errors.Is(err, errTimeout):
			source, o.text = reason, q.reason+": the question was not answered in time"
			p.noted(q, o, unasked, unanswered)
		default:
			source, o.text = reason, q.reason+": nobody has approved it"
			p.noted(q, o, withdrawn, withdrawn)
		}
	}
	p.tell(q, source, params.ApprovalID, o.allowed, true)
	return o
}

// noted tells the operator what became of a question: one outcome if the command may run, else the
// other.
func (p *Process) noted(q *question, o outcome, allowed, refused string) {
	if !o.allowed {
		allowed = refused
	}
	p.desk.note(q.kind, q.exe, q.pid, q.decider, allowed)
}

// accepted notes what was accepted for more than this once.
func (p *Process) accepted(q *question, o outcome) {
	if o.again && !q.truncated {
		p.remember(o, key(q.exe+"\x00"+q.identity, q.argv))
	}
	if o.prefix != nil {
		p.remember(o)
		p.plan.current.Amend(q.proposed, o.prefix, q.judge)
	}
}

// anew decides about a question again, by the policy that the operator has now. Source is "" if
// somebody has to be asked again. What runs keeps the rules of its start: if these ask about a
// program that it executes, new ones can only forbid that.
func (p *Process) anew(q *question) (source string, o outcome) {
	q.operator = p.plan.current.Policy()
	var v execpolicy.Verdict
	switch policy := p.plan.below(q.operator); {
	case q.kind == protocol.ApprovalStart:
		v = p.plan.both(q.operator).Start(p.plan.argv, p.plan.find)
		q.about(v)
		if v.Decision == rule.Allow {
			return byRule, outcome{allowed: true}
		}
	case p.remembers(q):
		return byMemo, outcome{allowed: true}
	case policy != nil:
		v = policy.Exec(program(slices.Concat([]string{q.exe}, q.argv[min(1, len(q.argv)):])))
	}
	if v.Decision == rule.Forbidden {
		q.decider = v.Decider()
		return byRule, outcome{text: v.Reason()}
	}
	return "", outcome{}
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

// What has decided, as the client is told; else it is why a question was closed.
const (
	byRule     = "rule"
	byMemo     = "memo" // an answer before
	byApproval = "approval"
)

// tell tells the client of a decision, if it wants to hear of it.
func (p *Process) tell(q *question, source, approvalID string, allowed, asked bool) {
	able, _ := p.desk.now()
	if !able || allowed && p.plan.report != protocol.ReportAll && (!asked || p.plan.report == protocol.ReportRefused) {
		return
	}
	d := q.decision(source)
	d.ProcessID, d.ApprovalID, d.Decision = p.id, approvalID, rule.Forbidden.String()
	if allowed {
		d.Decision = rule.Allow.String()
	}
	p.mu.Lock()
	ok := p.tally.add(time.Now(), &d)
	p.mu.Unlock()
	if ok {
		p.desk.Tell(protocol.MethodExecDecision, &d)
	}
}

// maxTold is how many decisions about a process are told in a second.
const maxTold = 100

// tally counts what is told. Its process guards it.
type tally struct {
	second        int64
	told, dropped int
}

// add tells whether a decision is to be told, and notes in it how many before were not.
func (t *tally) add(now time.Time, d *protocol.ExecDecision) bool {
	if s := now.Unix(); s != t.second {
		t.second, t.told = s, 0
	}
	if t.told++; t.told > maxTold {
		t.dropped++
		return false
	}
	d.Dropped, t.dropped = t.dropped, 0
	return true
}
