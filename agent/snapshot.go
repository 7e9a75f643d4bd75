package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"strings"
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

// snapshotKey returns a key that all requests with the same shell snapshot share. It is "" if the
// request asks for no snapshot, is not a command of a login shell, or is one of another user or with limits, which its
// startup files need too. A command that waits for an answer restores nothing, because its startup files must not run
// before the answer either.
func snapshotKey(p *protocol.StartParams, plan *approval.Plan) (string, error) {
	asked := p.ShellSnapshot
	if asked == nil || p.Builtin || p.RunAs != nil || p.Limits != nil || len(p.Argv) < 3 || p.Argv[0] != asked.Shell.Path || p.Argv[1] != "-lc" {
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
	key, err := json.Marshal([]any{asked, p.Cwd, p.EnvPolicy, p.Sandbox, p.EnforceManagedNetwork, p.NetworkProxy != nil, steering(p.Env)})
	if err != nil {
		return "", err
	}
	if plan != nil && plan.Policy != nil {
		key = execpolicy.AppendPacked(key, plan.Policy)
	}
	sum := sha256.Sum256(key)
	return string(sum[:]), nil
}

// steering returns the variables of a request that say which startup files run, and how. The others
// are not part of the key, as with the reference.
func steering(env map[string]string) map[string]string {
	all := map[string]string{}
	for name, value := range env {
		switch name {
		case "HOME", "ZDOTDIR", "ENV", "BASH_ENV", "SHELLOPTS", "BASHOPTS":
			all[name] = value
		}
		if strings.HasPrefix(name, "BASH_FUNC_") {
			all[name] = value
		}
	}
	return all
}

// restore makes the spec restore the shell snapshot that the request asks for. A failed capture is
// no error: the startup files then run, as without a snapshot.
func (l *launch) restore(ctx context.Context) error {
	if l.snapshot == "" {
		return nil
	}
	// The capture has a launch of its own, because it may go on after this launch has ended. Its
	// programs are confined and judged like the programs of the command.
	aside := &capture{launch: *l}
	aside.spec.Env = slices.Clone(l.spec.Env)
	aside.spec.Timeout, aside.spec.MaxOutput = 0, 0 // they are the command's
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

// capture runs the startup files of a shell in a process outside any session. A question about its
// programs or connections ends the capture: the client cannot be asked, because it does not know
// yet of the waiting start.
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
	if err == nil {
		// The variables of this request are for its command alone.
		a := c.session.agent
		own := procs.EnvPolicy{}
		state.Undo(a.tool.Before(own.Environ(nil, c.params.Env)), a.tool.Before(envPolicy(c.params.EnvPolicy).Environ(a.cfg.Environ, nil)))
	}
	if err != nil {
		c.session.agent.cfg.Logger.Debug("no shell snapshot", "session", c.session.audit.Name(), "error", err)
	}
	return state, err
}

// begin starts the shell, and serves its questions.
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

// take takes a question about a program that the shell executes, or the notice of a refusal.
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

// over is called once the shell has ended. It waits until no question is being served, because
// release closes the descriptor of the questions.
func (c *capture) over() {
	if desk := c.questions(); desk != nil {
		desk.Hang()
		c.answering.Wait()
	}
	c.audit.Captured()
	c.release()
}
