package agent

import (
	"context"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/protocol"
)

// files returns the file system that a request with this sandbox may use. This
// is decided here and nowhere else.
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
