package agent

import (
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/resolve"
)

// confinement is what a process with a sandbox holds while it runs.
type confinement struct {
	layers []string // sandboxLayers
	free   []func()
	once   sync.Once
}

// release gives back what the process held, once nothing of it runs any more.
// It may be called often, also on nil.
func (c *confinement) release() {
	if c == nil {
		return
	}
	c.once.Do(func() {
		for _, free := range slices.Backward(c.free) {
			free()
		}
	})
}

// confine prepares spec to run under the sandbox of its request. What the
// request got wrong is an error. What this host cannot enforce is not: such a
// process starts, says so and exits with 101 (sandbox.md 9.2), and
// nothing of the command runs.
func (a *Agent) confine(s *protocol.Sandbox, spec *procs.Spec) (*confinement, error) {
	profile, err := Profile(s, spec.Dir, absolute(variable(spec.Env, "TMPDIR")))
	if errors.Is(err, errNoMXC) {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	if err != nil {
		return nil, protocol.InvalidParams("sandbox: %v", err)
	}
	if !a.sandboxes.confines {
		return nil, errNoHelpers
	}
	profile.Private = a.sandboxes.private
	box := &confinement{layers: []string{}}
	if err := a.enter(box, profile, spec); err != nil {
		box.release()
		spec.Stage = refuse(err)
		return &confinement{layers: []string{}}, nil
	}
	return box, nil
}

// enter chooses the layers that enforce profile, takes what they need and lets
// spec start through them.
func (a *Agent) enter(box *confinement, profile sandbox.Profile, spec *procs.Spec) error {
	policy, err := profile.Compile()
	if err != nil {
		return err
	}
	if !policy.Confined && policy.Network == sandbox.NetworkEnabled {
		return nil
	}
	if err := a.refuseOpenListeners(policy); err != nil {
		return err
	}
	backend, err := policy.Backend(a.sandboxes.probed(), a.cfg.RequireNamespaces)
	if err != nil {
		return err
	}
	box.layers = backend.Names()
	command := confine.Command{Policy: policy, Backend: backend, Limits: a.cfg.Limits, AgentPorts: a.ports()}
	if policy.Confined {
		resolved, err := resolve.Policy(policy)
		if err != nil {
			return err
		}
		defer resolved.Close()
		if err := a.sandboxes.served.Check(resolved); err != nil {
			return err
		}
		a.sandboxes.served.Note(resolved)
		command.Granted = resolved.Granted()
		missing := resolved.Missing
		if backend.Has(sandbox.MountNS) && len(missing) > 0 {
			if a.sandboxes.placeholders == nil {
				return errors.Join(errors.New("protected names that do not exist cannot be held"), a.sandboxes.placeholdersErr)
			}
			release, err := a.sandboxes.placeholders.Hold(missing)
			if err != nil {
				return err
			}
			box.free = append(box.free, release)
		}
	}
	if a.cfg.Cgroups != nil {
		if spec.Cgroup, err = a.cfg.Cgroups.New(); err != nil {
			return err
		}
	}
	spec.Stage = stage(command)
	return nil
}

// variable is the value of a variable, as getenv(3) finds it.
func variable(env []string, name string) string {
	for _, entry := range env {
		if value, ok := strings.CutPrefix(entry, name+"="); ok {
			return value
		}
	}
	return ""
}
