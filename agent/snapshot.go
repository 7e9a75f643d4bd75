package agent

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"slices"
	"sync"

	"github.com/execagent/execagent/agent/approval"
	"github.com/execagent/execagent/agent/snapshot"
	"github.com/execagent/execagent/execpolicy/packed"
	"github.com/execagent/execagent/helper/judge"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// enter puts a process that is about to be started under the sandbox of its request, and
// gives it its network.
type enter func(*process, *procs.Spec) error

// restoring returns an enter that also makes the spec restore the shell snapshot that the
// request asks for. It is the same one where the request asks for none, or is about no
// command of a login shell. No failure of a snapshot is an error: the startup files are run
// then, as without one. A capture enters what the command enters, and its programs are judged as
// those of the command are. A command that waits for an answer restores nothing: its startup files
// may not run before it either.
func (c *connection) restoring(ctx context.Context, p *protocol.StartParams, approvals *approval.Plan, in enter) (enter, error) {
	asked := p.ShellSnapshot
	if asked == nil || p.Builtin || len(p.Argv) < 3 || p.Argv[0] != asked.Shell.Path || p.Argv[1] != "-lc" {
		return in, nil
	}
	shell := snapshot.Shell(asked.Shell)
	if !shell.Known() {
		return nil, protocol.InvalidParams("shellSnapshot: shell snapshots are unsupported for shell `%.64s`", shell.Name)
	}
	if approvals.IsPending() {
		return in, nil
	}
	// What masks credentials takes them away from a process without a proxy: its state has none.
	key, err := json.Marshal([]any{asked, p.Cwd, p.EnvPolicy, p.Sandbox, p.EnforceManagedNetwork, p.NetworkProxy != nil})
	if err != nil {
		return nil, err
	}
	if approvals != nil && approvals.Policy != nil {
		key = packed.Append(key, approvals.Policy)
	}
	sum := sha256.Sum256(key)
	return func(started *process, spec *procs.Spec) error {
		bare := *spec
		bare.Env = slices.Clone(spec.Env)
		state, err := c.session.snapshots.Get(ctx, string(sum[:]), func() error { return rpc.Block(ctx) },
			func(ctx context.Context) (*snapshot.State, error) {
				ctx, end := context.WithCancelCause(ctx)
				defer end(nil)
				state, err := snapshot.Capture(ctx, shell, bare, judging(approvals, in).capture(c.session, end))
				if err != nil {
					c.agent.cfg.Logger.Debug("no shell snapshot", "session", c.session.audit.Name, "error", err)
				}
				return state, err
			})
		if err != nil {
			return err
		}
		if state != nil {
			if argv, env, ok := state.Apply(spec.Argv, envPolicy(p.EnvPolicy), p.Env); ok {
				spec.Shown, spec.Argv, spec.Env = spec.Argv, argv, c.agent.tool.Before(env)
			}
		}
		return in(started, spec)
	}, nil
}

// errUnasked ends a capture.
var errUnasked = errors.New("the client would have to be asked about what the startup files do")

// capture returns what starts a process of no session. Nobody is asked about what it executes and
// reaches: the client does not know yet of the start that waits. So end is called.
func (in enter) capture(s *Session, end context.CancelCauseFunc) snapshot.Start {
	return func(spec procs.Spec) (p *procs.Process, env []string, release func(), err error) {
		aside := &process{ask: func(context.Context, string, any, any) error {
			end(errUnasked)
			return errUnasked
		}}
		var answering sync.WaitGroup
		release = func() {
			if desk := aside.questions(); desk != nil {
				desk.Hang()
				answering.Wait()
			}
			aside.audit.Captured()
			aside.judged.Close()
			aside.network.Close()
			aside.box.Release()
		}
		if err = in(aside, &spec); err == nil {
			if p, err = procs.Start(spec); err != nil {
				_ = spec.Cgroup.Close() // no process is in it
			}
		}
		if err != nil {
			release()
			return nil, nil, nil, err
		}
		aside.audit = s.audit.Capturing(spec.Argv[0], p.PID(), aside.box.Names())
		if desk := aside.questions(); desk != nil {
			answering.Go(func() {
				desk.Serve(func(q judge.Question) {
					if q.Told {
						s.desk.Refused(q)
					} else {
						end(errUnasked)
					}
				})
			})
		}
		return p, spec.Env, release, nil
	}
}
