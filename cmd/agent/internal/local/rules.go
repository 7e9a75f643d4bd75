package local

import (
	"context"
	"errors"

	"github.com/execagent/execagent/cmd/agent/internal/console"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
)

// exitRefused is the exit code of a command that the rules or the user refuse.
const exitRefused = 126

// refusal is the error of a command that the rules or the user refuse.
type refusal struct{ why string }

func (r refusal) Error() string { return r.why }

// rulesPatience is the timeout of a question about a command, in milliseconds. It is the longest
// timeout that the protocol allows.
const rulesPatience = 60 * 60 * 1000

// ruled applies rules to a command. Without rules, only the field allowed is set.
type ruled struct {
	desk    approval.Desk
	plan    *approval.Plan
	process *approval.ProcessQuestions
	judged  *confine.Judged // nil: the programs that the command executes are not judged
	allowed chan error      // gets the decision about the command itself
}

// decide decides whether the command may run, and asks the user if the rules require it. The error
// says why the command may not run.
func (r *ruled) decide(c *Command) (err error) {
	if c.Rules == nil {
		return nil
	}
	answer := console.AskCommands(c.questions.Ask)
	r.desk.Ask = func(ctx context.Context, _ string, params, result any) error {
		*result.(*protocol.ExecApprovalAnswer) = answer(ctx, *params.(*protocol.ExecApprovalParams))
		return nil
	}
	r.desk.Tell = func(string, any) {}
	r.desk.Attach(c.questions != nil)
	r.plan, err = r.desk.Decide(
		approval.Request{Argv: c.Argv, Env: c.Sys.Environ, Dir: c.Dir, Approval: &protocol.ExecApproval{TimeoutMs: new(uint64(rulesPatience))}},
		approval.Host{Operator: c.Rules.Current(), CanAsk: c.questions != nil})
	if refused, ok := errors.AsType[*protocol.Error](err); ok {
		return refusal{refused.Message}
	}
	if err == nil && r.plan.Policy != nil {
		if r.judged, err = confine.NewJudged(r.plan.Policy); err == nil {
			r.judged.Tells = true
		}
	}
	if err != nil {
		return err
	}
	r.process = r.desk.Open(r.plan, "command", r, r.judged.Questions())
	r.process.Begin()
	if r.plan.Pending {
		return <-r.allowed
	}
	return nil
}

// program returns the program that was judged, see [approval.Plan.Pin].
func (r *ruled) program(argv []string) procs.Program {
	spec := procs.Spec{Argv: argv}
	r.plan.Pin(&spec)
	return procs.Program{Argv: spec.Argv, Arg0: spec.Arg0}
}

// close ends all questions.
func (r *ruled) close() {
	r.process.Exited()
	r.judged.Close()
}

// Refused does nothing: the process that judges has told the command's user already.
func (r *ruled) Refused(string, string) {}

// Last, Go, Refuse, End and Refused make ruled an [approval.Runner].
func (r *ruled) Last() uint64 { return 0 }

// Go lets the command run.
func (r *ruled) Go() { r.allowed <- nil }

// Refuse keeps the command from running.
func (r *ruled) Refuse(why string) { r.allowed <- refusal{why} }

// End keeps the command from running if it has not started yet. Later only the user can end it.
func (r *ruled) End() {
	select {
	case r.allowed <- refusal{"rejected by user"}:
	default:
	}
}
