package agent

import (
	"context"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

// files returns the file system that a request with this sandbox may use: that of
// the host, or a helper's under a policy. No other place decides that.
func (a *Agent) files(ctx context.Context, s *protocol.Sandbox) (fsops.FS, error) {
	policy, err := a.filePolicy(s)
	if err != nil {
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
		return nil, protocol.InvalidRequest("sandbox: %v", err)
	}
	return files, nil
}
