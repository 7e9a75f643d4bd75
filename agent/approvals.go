package agent

import (
	"context"
	"errors"

	"github.com/execagent/execagent/agent/approval"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/hold"
	"github.com/execagent/execagent/helper/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/rpc"
)

// askAbout is [Session.ask] for [approval.Desk].
func (s *Session) askAbout(ctx context.Context, method string, params, result any) error {
	err := s.ask(ctx, method, params, result)
	if errors.Is(err, errNobody) || errors.Is(err, rpc.ErrClosed) || errors.Is(err, rpc.ErrUnanswered) || err != nil && s.peer.Load() == nil {
		return approval.ErrDetached
	}
	return err
}

// tell tells the attached client, if there is one.
func (s *Session) tell(method string, params any) {
	if peer := s.peer.Load(); peer != nil {
		_ = peer.Notify(method, params) // an error means that the connection is gone
	}
}

// note tells who operates the agent what became of a command.
func (s *Session) note(d approval.Decision) {
	s.agent.metrics.Decided(d.Kind, d.Outcome)
	s.audit.Decided(d.Outcome, "kind", d.Kind, "program", d.Program, "pid", d.PID, "rule", d.Decider)
}

// tryJudged finds out whether what commands execute can be judged on this host.
func tryJudged(reaper *procs.Reaper) error {
	argv, code, err := hold.Probe()
	if err != nil {
		return err
	}
	return confine.TryJudged(argv, code, reaper)
}

// judging returns in and, if every program that the process executes is to be judged, what has
// that done.
func judging(plan *approval.Plan, in enter) enter {
	if plan == nil || plan.Policy == nil {
		return in
	}
	return func(p *process, spec *procs.Spec) error {
		err := in(p, spec)
		bare := p.box == nil || p.box.Unconfined()
		if err == nil && bare && !plan.Pending {
			err = spec.Check() // a client hears at once of what is not there, as without rules
		}
		if err == nil {
			p.judged, err = confine.NewJudged(plan.Policy)
		}
		if err != nil {
			return err
		}
		if bare {
			spec.Stage = confine.WatchOnly(p.judged).Stage
		} else {
			p.box.Judge(p.judged)
		}
		return nil
	}
}

// questions has those about what the process executes.
func (p *process) questions() *judge.Questions { return p.judged.Questions() }

// holding returns in and, if the client is to be asked, what keeps the command from running
// before.
func holding(plan *approval.Plan, in enter) enter {
	if !plan.IsPending() {
		return in
	}
	return func(p *process, spec *procs.Spec) error {
		err := in(p, spec)
		if err == nil {
			p.hold, err = hold.New()
		}
		if err == nil {
			spec.Stage = p.hold.Stage(spec.Stage)
		}
		return err
	}
}

// runner is a process as package approval knows it.
type runner struct{ *process }

func (r runner) Last() uint64 {
	_, _, _, next := r.State()
	return next - 1
}

func (r runner) Go() { r.hold.Go() }

func (r runner) Refuse(text string) { r.hold.Refuse(text) }

// End does not wait for the questions, of which the caller answers one.
func (r runner) End() { r.Terminate() }
