package agent

import (
	"context"

	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/hold"
	"github.com/execagent/execagent/internal/sandbox/refusals"
)

// tell tells the attached client, if there is one.
func (s *Session) tell(method string, params any) {
	if peer := s.peer.Load(); peer != nil {
		_ = peer.Notify(method, params) // an error means that the connection is gone
	}
}

// note records the outcome of a command in the operator's log and metrics.
func (s *Session) note(d approval.Decision) {
	s.agent.metrics.Decided(d.Kind, d.Outcome)
	if approval.Refuses(d.Outcome) {
		s.agent.metrics.RefusedBy(refusals.Program, 1)
	}
	s.audit.Decided(d.Outcome, "kind", d.Kind, "program", d.Program, "pid", d.PID, "rule", d.Decider)
}

// judge takes a judge for every program that the process executes, if the plan says so.
func (l *launch) judge(context.Context) (err error) {
	if l.plan == nil || l.plan.Policy == nil {
		return nil
	}
	bare := l.box == nil || l.box.Unconfined()
	if bare && l.hasRlimits() {
		if err := l.checkRlimits(); err != nil {
			return err
		}
	}
	if bare && !l.plan.Pending {
		// A client learns at once that a program does not exist, as without rules.
		if err := l.spec.Check(); err != nil {
			return err
		}
	}
	if l.judged, err = confine.NewJudged(l.plan.Policy); err != nil {
		return err
	}
	if err := l.checkUser(); err != nil {
		return err
	}
	l.judged.Tells = true
	watched := l.box.Watched(l.judged)
	watched.Impose(l.rlimits)
	l.spec.Stage = watched.Stage
	return nil
}

// holdBack stops the command from running before the client has allowed it, if the client must be
// asked. A process that has to limit itself first is held too, and goes on at once.
func (l *launch) holdBack(context.Context) (err error) {
	limits := l.spec.Stage == nil && l.hasRlimits()
	if !l.plan.IsPending() && !limits {
		return nil
	}
	if limits {
		if err := l.checkRlimits(); err != nil {
			return err
		}
	}
	if limits && !l.plan.IsPending() {
		if err := l.spec.Check(); err != nil { // the client learns it at once, as without limits
			return spawnError(&l.spec, err)
		}
	}
	if l.hold, err = hold.New(); err != nil {
		return err
	}
	if limits {
		l.hold.Limits = l.rlimits.List()
	}
	l.spec.Stage = l.hold.Stage(l.spec.Stage)
	if !l.plan.IsPending() {
		l.hold.Go()
	}
	return nil
}

// runner is a process as package approval knows it.
type runner struct{ *process }

func (r runner) Last() uint64 {
	_, _, _, next := r.State()
	return next - 1
}

func (r runner) Go() {
	r.hold.Go()
	r.StartClock()
}

func (r runner) Refuse(text string) { r.hold.Refuse(text) }

func (r runner) Refused(program, why string) {
	r.refused.add(refusals.Refusal{Layer: refusals.Program, Operation: refusals.Execute, Subject: program, Reason: why})
}

// End does not wait for the questions, of which the caller answers one.
func (r runner) End() { r.Terminate() }
