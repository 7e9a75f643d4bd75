package agent

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/metrics"
	"github.com/execagent/execagent/internal/profile"
	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// confine puts the process under the sandbox of its request. It fails only if the request is wrong,
// or if this program cannot confine at all. A sandbox that this host cannot enforce is no error:
// instead of the command, a process is started that prints the reason on its standard error and
// exits with 101 (sandbox.md 9.2).
func (l *launch) confine(context.Context) error {
	l.free = !l.enforced()
	if l.params.Sandbox == nil {
		return nil
	}
	a := l.session.agent
	asked, err := a.profileOf(l.params.Sandbox, l.spec.Dir, sandbox.TmpDir(l.spec.Env))
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
	}
	if err == errNoSandbox {
		return err
	}
	if errors.Is(err, profile.ErrNoMXC) {
		return withKind(sandboxUnavailable, protocol.InvalidParams("sandbox: %v", err))
	}
	if err != nil {
		return withKind(sandboxPreparation, protocol.InvalidParams("sandbox: %v", err))
	}
	if !a.sandboxes.confines {
		return withKind(sandboxUnavailable, protocol.InvalidParams("%s", errNoHelpers.Message))
	}
	asked.Tools = a.tool.Paths()
	if l.proxy != nil {
		if err := a.showBundle(&asked, l.proxy); err != nil {
			return err
		}
	}
	l.box, err = l.enter(asked)
	reason := refusal(err)
	if err == nil && a.cfg.Cgroups != nil && !l.box.Unconfined() && l.spec.Cgroup == nil {
		l.spec.Cgroup, err = a.cfg.Cgroups.New()
		l.refused.limit(l.spec.Cgroup, nil)
		reason = metrics.RefusedByCgroup
	}
	if err != nil {
		a.metrics.Refused(reason)
		l.box.Release()
		l.box = confine.Refused(err)
	}
	if err := l.checkUser(); err != nil {
		return err
	}
	l.box.Impose(l.rlimits)
	if l.refused != nil {
		if err := l.box.NoteRefusals(); err != nil {
			return err
		}
	}
	if !l.box.Unconfined() {
		l.spec.Stage = l.box.Stage
		if err := checkDir(l.spec.Dir); err != nil {
			return spawnError(&l.spec, err)
		}
	}
	l.free = l.free && l.box.HasNetwork()
	return nil
}

// checkDir returns the error of the directory of a confined process, which its stage would find
// only when it runs. Whether the policy shows the directory is the matter of the stage.
func checkDir(dir string) error {
	if err := linux.CheckDir(dir); err != nil {
		return &fs.PathError{Op: "chdir", Path: dir, Err: err}
	}
	return nil
}

// enter takes the sandbox from the host. If the network is enforced, the process gets the listeners
// of a proxy instead: of ours, or of the one that the client named.
func (l *launch) enter(asked sandbox.Profile) (*confine.Held, error) {
	door := &l.session.agent.sandboxes.door
	if l.enforced() && l.session.agent.cfg.UnixSockets {
		asked.Sockets = slices.Concat(asked.Sockets, egress.UnixSockets(l.params.NetworkProxy, l.params.ManagedNetwork))
	}
	switch {
	case !l.enforced():
		return door.Enter(asked)
	case l.proxy != nil:
		return door.EnterManaged(asked, confine.Managed{SOCKS5: l.proxy.SOCKS(), AllUnixSockets: l.proxy.AllUnixSockets(), Transparent: l.proxy.Transparent})
	}
	box, env, err := door.EnterBridged(asked, l.spec.Env)
	if err == nil {
		l.spec.Env = env
	}
	return box, err
}

// showBundle makes the sandbox show the file with the certificate that the command must trust,
// unless it does so anyway.
func (a *Agent) showBundle(asked *sandbox.Profile, plan *egress.Plan) error {
	bundle, err := a.networks.Bundle(plan)
	if bundle == "" || err != nil {
		return err
	}
	policy, err := asked.Compile()
	if err != nil || policy.Access(bundle) >= sandbox.Read {
		return nil // enter finds the error
	}
	asked.Entries = append(slices.Clone(asked.Entries), sandbox.Entry{Place: sandbox.PlacePath, Path: bundle, Access: sandbox.Read})
	return nil
}
