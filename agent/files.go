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

// fileSystem is what a file request works on: all of it, or what a policy
// leaves of it.
type fileSystem interface {
	ReadFile(ctx context.Context, path string, links fsops.Links, alloc fsops.Alloc) ([]byte, error)
	WriteFile(ctx context.Context, path string, data []byte, links fsops.Links) error
	CreateDirectory(ctx context.Context, path string, recursive bool, links fsops.Links) error
	Stat(ctx context.Context, path string, links fsops.Links) (fsops.Metadata, error)
	Canonicalize(ctx context.Context, path string) (string, error)
	ReadDirectory(ctx context.Context, path string) ([]fsops.DirEntry, error)
	Walk(ctx context.Context, root string, o fsops.WalkOptions) (fsops.WalkResult, error)
	Remove(ctx context.Context, path string, recursive, force bool, links fsops.Links) error
	Copy(ctx context.Context, src, dst string, recursive bool) error
	Rename(ctx context.Context, src, dst string, replace bool) error
	// OpenRead and OpenWrite open a regular file for a handle, which closes
	// the descriptor.
	OpenRead(ctx context.Context, path string, links fsops.Links) (fd int, err error)
	OpenWrite(ctx context.Context, path string, links fsops.Links) (fd int, err error)
	// Watchable tells why a path may not be watched; path is taken as it is,
	// since a watch follows no link.
	Watchable(path string) error
}

// files is the file system that a request with this sandbox may use: decided
// here and nowhere else.
func (a *Agent) files(ctx context.Context, s *protocol.Sandbox) (fileSystem, error) {
	policy, err := a.filePolicy(s)
	if err != nil {
		return nil, err
	}
	if policy == nil {
		return hostFiles{}, nil
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

// hostFiles is the whole file system.
type hostFiles struct{}

func (hostFiles) ReadFile(_ context.Context, path string, links fsops.Links, alloc fsops.Alloc) ([]byte, error) {
	return fsops.ReadFile(path, links, alloc)
}

func (hostFiles) WriteFile(_ context.Context, path string, data []byte, links fsops.Links) error {
	return fsops.WriteFile(path, data, links)
}

func (hostFiles) CreateDirectory(_ context.Context, path string, recursive bool, links fsops.Links) error {
	return fsops.CreateDirectory(path, recursive, links)
}

func (hostFiles) Stat(_ context.Context, path string, links fsops.Links) (fsops.Metadata, error) {
	return fsops.Stat(path, links)
}

func (hostFiles) Canonicalize(_ context.Context, path string) (string, error) {
	return fsops.Canonicalize(path)
}

func (hostFiles) ReadDirectory(_ context.Context, path string) ([]fsops.DirEntry, error) {
	return fsops.ReadDirectory(path)
}

func (hostFiles) Walk(ctx context.Context, root string, o fsops.WalkOptions) (fsops.WalkResult, error) {
	return fsops.Walk(ctx, root, o)
}

func (hostFiles) Remove(ctx context.Context, path string, recursive, force bool, links fsops.Links) error {
	return fsops.Remove(ctx, path, recursive, force, links)
}

func (hostFiles) Copy(ctx context.Context, src, dst string, recursive bool) error {
	return fsops.Copy(ctx, src, dst, recursive)
}

func (hostFiles) Rename(_ context.Context, src, dst string, replace bool) error {
	return fsops.Rename(src, dst, replace)
}

func (hostFiles) OpenRead(_ context.Context, path string, links fsops.Links) (int, error) {
	return fsops.OpenRead(path, links)
}

func (hostFiles) OpenWrite(_ context.Context, path string, links fsops.Links) (int, error) {
	return fsops.OpenWrite(path, links)
}

func (hostFiles) Watchable(string) error { return nil }

// confinedFiles is what a policy shows. A helper opens the files; what is in
// them the agent reads and writes itself, through the descriptors it is given.
type confinedFiles struct{ *helper.Files }

func (f confinedFiles) ReadFile(ctx context.Context, path string, links fsops.Links, alloc fsops.Alloc) ([]byte, error) {
	fd, err := f.OpenRead(ctx, path, links)
	if err != nil {
		return nil, err
	}
	return fsops.ReadFrom(fd, path, alloc)
}

func (f confinedFiles) WriteFile(ctx context.Context, path string, data []byte, links fsops.Links) error {
	fd, err := f.OpenWrite(ctx, path, links)
	if err != nil {
		return err
	}
	return fsops.WriteTo(fd, path, data)
}

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
