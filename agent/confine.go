package agent

import (
	"errors"

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
// stderr and exits with 101 (sandbox.md 9.2), and nothing of the command runs.
func (a *Agent) confine(s *protocol.Sandbox, spec *procs.Spec) (*confine.Held, error) {
	asked, err := profile.Of(s, spec.Dir, sandbox.TmpDir(spec.Env))
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
	}
	if errors.Is(err, profile.ErrNoMXC) {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	if err != nil {
		return nil, protocol.InvalidParams("sandbox: %v", err)
	}
	if !a.sandboxes.confines {
		return nil, errNoHelpers
	}
	asked.Tools = a.cfg.Tool.Paths()
	held, err := a.sandboxes.door.Enter(asked)
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
	return held, nil
}
