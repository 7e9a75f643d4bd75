package approval

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/execagent/execagent/execpolicy"
	"github.com/execagent/execagent/execpolicy/rule"
	"github.com/execagent/execagent/protocol"
)

// Runner is the process that is asked about.
type Runner interface {
	// Last is the number of its last event.
	Last() uint64
	// Go lets the command run, and Refuse ends it with a text instead. One of them is called,
	// once, if the plan was pending.
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

	ctx    context.Context // of all questions; its cause says why they end
	cancel context.CancelCauseFunc
	turn   chan struct{} // has an element for each question

	mu      sync.Mutex // guards what follows
	pending bool
	closed  bool
	asking  sync.WaitGroup
	tally   tally
}

// Why a question is closed, in the words of the wire.
var (
	errTimeout    = errors.New("timeout")
	errTerminated = errors.New("terminated")
	errExited     = errors.New("exited")
)

// Open returns what asks about a process that was started. Nothing is asked before [Process.Begin].
func (d *Desk) Open(plan *Plan, id string, runner Runner) *Process {
	if plan == nil {
		return nil
	}
	d.init()
	p := &Process{desk: d, plan: plan, id: id, runner: runner, turn: make(chan struct{}, maxAskedOfProcess), pending: plan.Pending}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Begin asks about the start, if that is pending: the client knows the process now.
func (p *Process) Begin() {
	if p == nil || !p.plan.Pending {
		return
	}
	p.goAsking(p.askStart)
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

// Terminated does that for a process that is about to be ended.
func (p *Process) Terminated() { p.close(errTerminated) }

func (p *Process) close(why error) {
	if p == nil {
		return
	}
	p.cancel(why)
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.asking.Wait()
}

// askStart asks about the command of the process itself.
func (p *Process) askStart() {
	outcome := p.ask(question{kind: protocol.ApprovalStart, verdict: p.plan.verdict, exe: p.plan.exe, cwd: p.plan.cwd})
	p.mu.Lock()
	p.pending = false
	p.mu.Unlock()
	switch {
	case outcome.allowed:
		p.runner.Go()
		return
	case p.ctx.Err() != nil:
		return // the process has ended, or who closes the questions ends it
	}
	p.runner.Refuse(p.plan.verdict.Reason() + ": " + outcome.text)
	if outcome.end {
		p.runner.End()
	}
}

// question is one about a command.
type question struct {
	kind      string
	verdict   execpolicy.Verdict
	exe, cwd  string
	pid, ppid int
}

// outcome is what became of a question.
type outcome struct {
	allowed bool
	again   bool     // the same command needs not be asked about again
	prefix  []string // nor commands with this beginning; nil: none
	end     bool     // the client wants the process to end
	text    string   // why it is refused
}

// ask asks the client, tells it what has become of the question, and returns that.
func (p *Process) ask(q question) (o outcome) {
	params := q.params()
	params.ProcessID, params.TimeoutMs = p.id, uint64(p.plan.timeout.Milliseconds())
	answer, err := p.turns(&params)
	source := "approval"
	switch {
	case err != nil:
		switch source, o.text = err.Error(), "nobody has approved it"; {
		case errors.Is(err, errTimeout):
			o.text = "the question was not answered in time"
		case errors.Is(err, errUnable):
			source = "disconnected"
		}
		if params.ApprovalID != "" { // it was asked
			p.desk.Tell(protocol.MethodExecApprovalClosed, &protocol.ExecApprovalClosed{ProcessID: p.id, ApprovalID: params.ApprovalID, Reason: source})
		}
	default:
		o = q.read(answer)
	}
	decision := protocol.ExecDecision{
		ApprovalID: params.ApprovalID, PID: q.pid, PPID: q.ppid, Exe: params.Exe, Argv: params.Argv, Source: source,
	}
	p.tell(decision, o.allowed, true)
	return o
}

// turns asks when it is the question's turn. The time of the question begins then.
func (p *Process) turns(q *protocol.ExecApprovalParams) (protocol.ExecApprovalAnswer, error) {
	for _, turn := range []chan struct{}{p.turn, p.desk.turn} {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-p.ctx.Done():
			return protocol.ExecApprovalAnswer{}, context.Cause(p.ctx)
		}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return protocol.ExecApprovalAnswer{}, err
	}
	q.ApprovalID, q.AfterSeq = id.String(), p.runner.Last()
	ctx, cancel := context.WithTimeoutCause(p.ctx, p.plan.timeout, errTimeout)
	defer cancel()
	return p.desk.ask(ctx, q)
}

// read takes an answer.
func (q *question) read(a protocol.ExecApprovalAnswer) outcome {
	switch a.Decision {
	case protocol.ApprovalAccept:
		return outcome{allowed: true}
	case protocol.ApprovalAcceptForProcess:
		return outcome{allowed: true, again: true}
	case protocol.ApprovalAcceptWithRule:
		o := outcome{allowed: true}
		argv := q.verdict.Argv
		if p := q.verdict.Proposed(); p != nil {
			argv = p
		} else {
			return o // a rule asks, which no other rule lifts
		}
		if n := len(a.Prefix); n > 0 && n <= len(argv) && slices.Equal(argv[:n], a.Prefix) && !execpolicy.TooWide(a.Prefix) {
			o.prefix = a.Prefix
		}
		return o
	case protocol.ApprovalCancel:
		return outcome{end: true, text: rejected}
	case protocol.ApprovalDecline:
	}
	return outcome{text: rejected}
}

// rejected is the reason of a no, in the words of the reference.
const rejected = "rejected by user"

const (
	maxArgv   = 16 << 10 // bytes of a command that the client is shown
	maxReason = 1 << 10  // bytes of a reason
)

// params returns what the client is asked.
func (q *question) params() protocol.ExecApprovalParams {
	argv, truncated := clip(q.verdict.Argv)
	params := protocol.ExecApprovalParams{
		Kind: q.kind, Argv: argv, Truncated: truncated, Exe: text(q.exe, maxArgv), Cwd: text(q.cwd, maxArgv), PID: q.pid, PPID: q.ppid,
		Reason: text(q.verdict.Reason(), maxReason), MatchedRules: matched(q.verdict.Findings),
	}
	if proposed := q.verdict.Proposed(); proposed != nil && !execpolicy.TooWide(proposed) {
		if short, cut := clip(proposed); !cut {
			params.ProposedPrefix = short
		}
	}
	return params
}

// clip returns the words of a command that can be shown.
func clip(argv []string) (shown []string, truncated bool) {
	shown = []string{}
	left := maxArgv
	for _, word := range argv {
		if left -= len(word) + len(`"",`); left < 0 {
			return shown, true
		}
		shown = append(shown, text(word, maxArgv))
	}
	return shown, false
}

// text returns s as JSON can hold it, at most n bytes of it.
func text(s string, n int) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// tell tells the client of a decision, if it wants to hear of it.
func (p *Process) tell(d protocol.ExecDecision, allowed, asked bool) {
	able, _ := p.desk.now()
	if !able || allowed && p.plan.report != protocol.ReportAll && (!asked || p.plan.report == protocol.ReportRefused) {
		return
	}
	d.ProcessID, d.Decision = p.id, rule.Forbidden.String()
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
