package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/execagent/execagent/agent/internal/audit"
	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/internal/approval"
	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// snapshotKey returns what the request has in common with all that may restore the same shell
// snapshot. It is "" where the request asks for none, or is about no command of a login shell. A
// command that waits for an answer restores nothing: its startup files may not run before the
// answer either.
func snapshotKey(p *protocol.StartParams, plan *approval.Plan) (string, error) {
	asked := p.ShellSnapshot
	if asked == nil || p.Builtin || len(p.Argv) < 3 || p.Argv[0] != asked.Shell.Path || p.Argv[1] != "-lc" {
		return "", nil
	}
	if shell := snapshot.Shell(asked.Shell); !shell.Known() {
		return "", protocol.InvalidParams("shellSnapshot: shell snapshots are unsupported for shell `%.64s`", shell.Name)
	}
	if plan.IsPending() {
		return "", nil
	}
	// A process without a proxy has another state, because a proxy can mask credentials in the
	// environment.
	key, err := json.Marshal([]any{asked, p.Cwd, p.EnvPolicy, p.Sandbox, p.EnforceManagedNetwork, p.NetworkProxy != nil})
	if err != nil {
		return "", err
	}
	if plan != nil && plan.Policy != nil {
		key = execpolicy.AppendPacked(key, plan.Policy)
	}
	sum := sha256.Sum256(key)
	return string(sum[:]), nil
}

// restore makes the spec restore the shell snapshot that the request asks for. No failure of a
// capture is an error: the startup files are run then, as without a snapshot.
func (l *launch) restore(ctx context.Context) error {
	if l.snapshot == "" {
		return nil
	}
	// The capture has a launch of its own, because it may go on after this one has ended. Its
	// programs are confined and judged as those of the command are.
	aside := &capture{launch: *l}
	aside.spec.Env = slices.Clone(l.spec.Env)
	aside.launch.ask = aside.refuse
	state, err := l.session.snapshots.Get(ctx, l.snapshot, func() error { return rpc.Block(ctx) }, aside.run)
	if err != nil || state == nil {
		return err
	}
	if argv, env, ok := state.Apply(l.spec.Argv, envPolicy(l.params.EnvPolicy), l.params.Env); ok {
		l.spec.Shown, l.spec.Argv, l.spec.Env = l.spec.Argv, argv, l.session.agent.tool.Before(env)
	}
	return nil
}

// capture runs the startup files of a shell in a process of no session. Nobody is asked about what
// that executes and reaches, because the client does not know yet of the start that waits: a
// question ends the capture.
type capture struct {
	launch
	end       context.CancelCauseFunc
	audit     *audit.ProcessLog
	answering sync.WaitGroup
}

// errUnasked ends a capture.
var errUnasked = errors.New("the client would have to be asked about what the startup files do")

func (c *capture) run(ctx context.Context) (*snapshot.State, error) {
	ctx, c.end = context.WithCancelCause(ctx)
	defer c.end(nil)
	shell := snapshot.Shell(c.params.ShellSnapshot.Shell)
	state, err := snapshot.Capture(ctx, shell, c.spec, func(spec procs.Spec) (*procs.Process, []string, func(), error) {
		c.spec = spec
		p, err := c.begin(ctx)
		return p, c.spec.Env, c.over, err
	})
	if err != nil {
		c.session.agent.cfg.Logger.Debug("no shell snapshot", "session", c.session.audit.Name, "error", err)
	}
	return state, err
}

// begin starts the shell, and has its questions served.
func (c *capture) begin(ctx context.Context) (*procs.Process, error) {
	p, err := begin(ctx, &c.launch, captureSteps, procs.Start)
	if err != nil {
		return nil, err
	}
	c.audit = c.session.audit.Capturing(c.spec.Argv[0], p.PID(), c.box.Names())
	if desk := c.questions(); desk != nil {
		c.answering.Go(func() { desk.Serve(c.take) })
	}
	return p, nil
}

// take takes a question about what the shell executes, or hears of a refusal.
func (c *capture) take(e judge.Event) {
	if e.Kind == judge.Refused {
		c.session.desk.Refused(e.Question)
	} else {
		c.end(errUnasked)
	}
}

// refuse is the asker of a capture.
func (c *capture) refuse(context.Context, string, any, any) error {
	c.end(errUnasked)
	return errUnasked
}

// over is called once the shell has ended. It waits until no question is served any more, because
// release gives the descriptor of the questions back.
func (c *capture) over() {
	if desk := c.questions(); desk != nil {
		desk.Hang()
		c.answering.Wait()
	}
	c.audit.Captured()
	c.release()
}
