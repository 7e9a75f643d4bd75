package agent

import (
	"context"
	"io/fs"
	"syscall"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// files is the file system that a request with this sandbox may use: decided
// here and nowhere else.
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
	return confinedFiles{files}, nil
}

// confinedFiles is what a policy shows.
type confinedFiles struct{ *helper.Files }

func (f confinedFiles) Watchable(path string) error {
	policy := f.Policy()
	access := policy.Access(path)
	switch {
	case access == sandbox.Hidden && !policy.Leads(path):
		return &fs.PathError{Op: "watch", Path: path, Err: syscall.ENOENT}
	case access == sandbox.Denied || policy.DeniesFile(path):
		return &fs.PathError{Op: "watch", Path: path, Err: syscall.EACCES}
	}
	return nil
}
