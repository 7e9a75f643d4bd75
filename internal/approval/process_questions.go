package approval

import (
	"context"
	"errors"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/protocol"
)

// Runner is the process of the questions.
type Runner interface {
	// Last is the number of its last event.
	Last() uint64
	// Go lets the command run, and Refuse ends it with a text instead. If the plan was pending, one
	// of them is called, once, or End is.
	Go()
	Refuse(text string)
	// End ends the process.
	End()
	// Refused notes that a program that the process executes was refused. It may be called after the end.
	Refused(program, why string)
}

// ProcessQuestions asks about one process. Its methods may be called at once, also on nil.
type ProcessQuestions struct {
	desk   *Desk
	plan   *Plan
	id     string
	runner Runner
	below  *judge.Questions // has the questions about programs that the process executes; nil: none

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
	again   map[string]int // how often commands still run without a question, by their key; or always
	// prefixes are the beginnings of commands that were accepted.
	prefixes []beginning
}

// The reasons why a question is closed, in the words of the wire.
var (
	errTimeout    = errors.New("timeout")
	errTerminated = errors.New("terminated")
	errExited     = errors.New("exited")
	errReplaced   = errors.New("policyChanged")
	errUnable     = errors.New("disconnected") // the client answers no questions
)

// Open returns the questions of a started process. They are not asked before
// [ProcessQuestions.Begin].
func (d *Desk) Open(plan *Plan, id string, runner Runner, below *judge.Questions) *ProcessQuestions {
	if plan == nil {
		return nil
	}
	d.init()
	p := &ProcessQuestions{desk: d, plan: plan, id: id, runner: runner, below: below, turn: make(chan struct{}, maxAskedOfProcess), pending: plan.Pending,
		open: map[uint32]context.CancelCauseFunc{}}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// Begin asks about the start, if it is pending, because the client now knows the process.
func (p *ProcessQuestions) Begin() {
	if p == nil {
		return
	}
	if p.plan.Pending {
		p.goAsking(p.askStart)
	}
	if p.below != nil {
		p.goAsking(p.serve)
	}
}

// serve takes the events of the judge. When the judge is gone, no program waits for an answer.
func (p *ProcessQuestions) serve() {
	p.below.Serve(p.take)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cancel := range p.open {
		cancel(p.whyLocked(errExited))
	}
}

// take handles an event of the judge.
func (p *ProcessQuestions) take(e judge.Event) {
	q := question{Question: e.Question, kind: protocol.ApprovalExec, operator: p.plan.operator}
	switch {
	case e.Kind == judge.Withdrawn:
		p.mu.Lock()
		if cancel := p.open[e.ID]; cancel != nil {
			cancel(p.whyLocked(errExited))
		}
		p.mu.Unlock()
	case e.Kind == judge.Refused:
		p.conclude(&q, outcome{by: byRule, noted: refused})
	case p.remembers(&q):
		p.below.Answer(e.ID, true) // the program does not wait until the client has read the decision
		p.conclude(&q, outcome{allowed: true, by: byMemo})
	default:
		ctx, cancel := context.WithCancelCause(p.ctx)
		p.mu.Lock()
		p.open[e.ID] = cancel
		p.mu.Unlock()
		p.goAsking(func() { p.askExec(ctx, cancel, q) })
	}
}

// goAsking runs ask, unless all questions are closed.
func (p *ProcessQuestions) goAsking(ask func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.asking.Go(ask)
	}
}

// Pending reports whether the command waits for its first answer.
func (p *ProcessQuestions) Pending() bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pending
}

// Exited closes all questions of a process that has exited. It returns when the client was told.
func (p *ProcessQuestions) Exited() { p.close(errExited) }

// Ending notes that the process is about to be ended, which will be the reason for closing its
// questions. They stay open until then, because a refused command could continue for a moment.
func (p *ProcessQuestions) Ending() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
}

// Terminated is Exited for a process that was ended.
func (p *ProcessQuestions) Terminated() { p.close(errTerminated) }

// whyLocked returns the reason why questions are closed. The end of a process is noticed in several
// ways, each of which may come first.
func (p *ProcessQuestions) whyLocked(why error) error {
	if p.ending {
		return errTerminated
	}
	return why
}

func (p *ProcessQuestions) close(why error) {
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
func (p *ProcessQuestions) askStart() {
	q := question{kind: protocol.ApprovalStart, operator: p.plan.operator, Question: judge.Question{Exe: p.plan.exe, Dir: p.plan.dir}}
	q.about(&p.plan.verdict)
	q.keys = p.plan.keys(&p.plan.verdict)
	q, o := p.decide(p.ctx, q)
	if o.by == byApproval && o.allowed && p.plan.key(p.plan.argv, p.plan.dir) != q.keys[0] {
		o = outcome{by: byApproval, noted: withdrawn, text: q.Reason + ": the program was changed while the question was open"}
	}
	p.conclude(&q, o)
	p.mu.Lock()
	p.pending = false
	p.mu.Unlock()
	switch {
	case o.allowed:
		p.runner.Go()
	case p.ctx.Err() != nil: // the process has ended, or is ended by the closer of the questions
	case o.end:
		p.runner.End()
	default:
		p.runner.Refuse(o.text)
	}
}

// askExec asks about a program that the process executes, until ctx ends.
func (p *ProcessQuestions) askExec(ctx context.Context, cancel context.CancelCauseFunc, q question) {
	q, o := p.decide(ctx, q)
	p.conclude(&q, o)
	cancel(nil)
	p.mu.Lock()
	delete(p.open, q.ID)
	p.mu.Unlock()
	p.below.Answer(q.ID, o.allowed)
	if o.end {
		p.runner.End()
	}
}
