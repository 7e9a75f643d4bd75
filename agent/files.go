package agent

import (
	"context"
	"errors"

	"github.com/execagent/execagent/agent/metrics"
	"github.com/execagent/execagent/agent/profile"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// files returns the file system that a request with this sandbox may use: that of
// the host, or a helper's under a policy. No other place decides that.
func (a *Agent) files(ctx context.Context, s *protocol.Sandbox) (fsops.FS, error) {
	policy, err := a.filePolicy(s)
	if err != nil {
		a.metrics.Refused(metrics.RefusedByRequest)
		return nil, err
	}
	if policy == nil {
		return fsops.Host{}, nil
	}
	if !a.sandboxes.confines {
		return nil, errNoHelpers
	}
	files, err := a.sandboxes.helpers.Files(ctx, policy)
	if err != nil {
		a.metrics.Refused(refusal(err))
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	return files, nil
}

// filePolicy returns the policy of a file request; nil if it restricts no file.
func (a *Agent) filePolicy(s *protocol.Sandbox) (*sandbox.Policy, error) {
	if s == nil || s.UnrestrictedFiles() {
		return nil, nil
	}
	asked, err := profile.Of(s, "", a.sandboxes.tmpDir)
	if err != nil {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	asked.Private, asked.PrivateFolders, asked.KeepPrivate = a.sandboxes.private, a.sandboxes.door.PrivateFolders, a.sandboxes.door.KeepPrivate
	asked.Tools = a.tool.Paths()
	policy, err := asked.Compile()
	if errors.Is(err, sandbox.ErrNeedsCwd) {
		return nil, protocol.InvalidParams("sandbox.cwd: %v", err)
	}
	if err != nil {
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	if !policy.Confined {
		return nil, nil
	}
	return policy, nil
}
