package confined

import (
	"context"
	"errors"

	"github.com/execagent/execagent/agent/approval"
	"github.com/execagent/execagent/cmd/agent/asking"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// exitRefused is the exit code of a command that the rules, or the user, do not let run.
const exitRefused = 126

// refusal is why it does not run.
type refusal string

func (r refusal) Error() string { return string(r) }

// patience is how long a question waits for its answer, in milliseconds: the longest that may be
// asked for.
const patience = 60 * 60 * 1000

// guard has the rules about one command. Nil has none.
type guard struct {
	desk    approval.Desk
	plan    *approval.Plan
	process *approval.Process
	judged  *confine.Judged // nil: what the command executes is not judged
	allowed chan error      // gets the answer about the command itself
}

// guard decides whether the command may run, and asks the user if the rules say so. The error is
// why not.
func (c *Command) guard() (*guard, error) {
	if c.Rules == nil {
		return nil, nil
	}
	g := &guard{allowed: make(chan error, 1)}
	plan, err := g.desk.Decide(
		approval.Request{Argv: c.Argv, Env: c.Sys.Environ, Dir: c.Dir, Approval: &protocol.ExecApproval{TimeoutMs: new(uint64(patience))}},
		approval.Host{Operator: c.Rules.Current(), CanAsk: c.terminal != nil})
	if refused, ok := errors.AsType[*protocol.Error](err); ok {
		return nil, refusal(refused.Message)
	}
	if err != nil {
		return nil, err
	}
	g.plan = plan
	answer := asking.Commands(c.terminal.Ask)
	g.desk.Ask = func(ctx context.Context, _ string, params, result any) error {
		*result.(*protocol.ExecApprovalAnswer) = answer(ctx, *params.(*protocol.ExecApprovalParams))
		return nil
	}
	g.desk.Tell = func(string, any) {}
	g.desk.Attach(c.terminal != nil)
	if plan.Policy != nil {
		if g.judged, err = confine.NewJudged(plan.Policy); err != nil {
			return nil, err
		}
	}
	g.process = g.desk.Open(plan, "command", g, g.judged.Questions())
	g.process.Begin()
	if plan.Pending {
		if err := <-g.allowed; err != nil {
			g.close()
			return nil, err
		}
	}
	return g, nil
}

// program returns the command as what was decided about, see [approval.Plan.Pin].
func (g *guard) program(argv []string) procs.Program {
	spec := procs.Spec{Argv: argv}
	if g != nil {
		g.plan.Pin(&spec)
	}
	return procs.Program{Argv: spec.Argv, Arg0: spec.Arg0}
}

// watch returns held with what has the programs of the command judged.
func (g *guard) watch(held *confine.Held) *confine.Held {
	switch {
	case g == nil || g.judged == nil:
	case held.Unconfined():
		return confine.WatchOnly(g.judged)
	default:
		held.Judge(g.judged)
	}
	return held
}

// close ends all questions. It may be called on nil.
func (g *guard) close() {
	if g == nil {
		return
	}
	g.process.Exited()
	g.judged.Close()
}

// Last, Go, Refuse and End make it an [approval.Runner].
func (g *guard) Last() uint64 { return 0 }

// Go lets the command run.
func (g *guard) Go() { g.allowed <- nil }

// Refuse says why it does not run.
func (g *guard) Refuse(text string) { g.allowed <- refusal(text) }

// End keeps a command from running that does not yet. One that runs is the user's to end.
func (g *guard) End() {
	select {
	case g.allowed <- refusal("rejected by user"):
	default:
	}
}
