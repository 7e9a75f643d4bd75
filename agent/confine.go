package agent

import (
	"errors"
	"slices"

	"github.com/execagent/execagent/agent/egress"
	"github.com/execagent/execagent/agent/metrics"
	"github.com/execagent/execagent/agent/profile"
	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// confine prepares spec to run under the sandbox of its request. It fails only if
// the request is wrong, or this program cannot confine at all. For a sandbox that
// this host cannot enforce it returns no error: a process starts, says why on
// stderr and exits with 101 (sandbox.md 9.2), and nothing of the command runs. Where the
// network is enforced the command has a proxy's listeners instead of one. free tells whether
// it has the network of the host.
func (a *Agent) confine(s *protocol.Sandbox, spec *procs.Spec, plan *egress.Plan, enforced bool) (held *confine.Held, free bool, err error) {
	asked, err := profile.Of(s, spec.Dir, sandbox.TmpDir(spec.Env))
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
	}
	if errors.Is(err, profile.ErrNoMXC) {
		return nil, false, protocol.InvalidRequest("sandbox: %v", err)
	}
	if err != nil {
		return nil, false, protocol.InvalidParams("sandbox: %v", err)
	}
	if !a.sandboxes.confines {
		return nil, false, errNoHelpers
	}
	asked.Tools = a.tool.Paths()
	if plan != nil {
		if err := a.showBundle(&asked, plan); err != nil {
			return nil, false, err
		}
	}
	switch door := &a.sandboxes.door; {
	case !enforced:
		held, err = door.Enter(asked)
	case plan != nil:
		held, err = door.EnterManaged(asked, confine.Managed{SOCKS5: plan.SOCKS(), AllUnixSockets: plan.AllUnixSockets()})
	default:
		var env []string
		if held, env, err = door.EnterBridged(asked, spec.Env); err == nil {
			spec.Env = env
		}
	}
	reason := refusal(err)
	if err == nil && a.cfg.Cgroups != nil && !held.Unconfined() {
		spec.Cgroup, err = a.cfg.Cgroups.New()
		reason = metrics.RefusedByCgroup
	}
	if err != nil {
		a.metrics.Refused(reason)
		held.Release()
		held = confine.Refused(err)
	}
	if !held.Unconfined() {
		spec.Stage = held.Stage
	}
	return held, !enforced && held.Refusal() == nil && (held.Unconfined() || asked.Network == sandbox.NetworkEnabled), nil
}

// showBundle has a sandbox show the file with the certificate that the command has to trust, if
// it does not show that anyway.
func (a *Agent) showBundle(asked *sandbox.Profile, plan *egress.Plan) error {
	bundle, err := a.networks.Bundle(plan)
	if bundle == "" || err != nil {
		return err
	}
	policy, err := asked.Compile()
	if err != nil || policy.Access(bundle) >= sandbox.Read {
		return nil // what is wrong with it is found where it is entered
	}
	asked.Entries = append(slices.Clone(asked.Entries), sandbox.Entry{Place: sandbox.PlacePath, Path: bundle, Access: sandbox.Read})
	return nil
}
