package client

import (
	"context"
	"io/fs"
	"strings"

	"github.com/execagent/execagent/protocol"
)

// maxWhole is how large a file may be to pass as one message, in bytes: as
// base64 it is then below the 64 MiB that a message may have (rpc.md 7).
const maxWhole = 32 << 20

// FS is the file system of the server. Paths are native paths of the server, and
// absolute. Errors are *fs.PathError around the error of [Client.Call]; errors.Is
// finds [fs.ErrNotExist], [fs.ErrExist] and [fs.ErrPermission], see [ServerError].
//
// After a lost connection, requests that only read are made again. Requests that
// change something are not: their error is a [DisconnectedError], and the change
// may or may not have been made.
type FS struct {
	client  *Client
	sandbox *protocol.Sandbox
}

// FS gives access to files, confined by sandbox; nil does not confine.
func (c *Client) FS(sandbox *protocol.Sandbox) *FS { return &FS{client: c, sandbox: sandbox} }

// change makes a request that changes something about a path, once.
func (f *FS) change(ctx context.Context, op, path, method string, params any) error {
	if !strings.HasPrefix(path, "/") {
		return pathError(op, path, fs.ErrInvalid)
	}
	return pathError(op, path, f.client.Call(ctx, method, params, nil))
}

// ask makes a request that only reads, if necessary again over the next connection.
func (f *FS) ask(ctx context.Context, op, path, method string, params, result any) error {
	if !strings.HasPrefix(path, "/") {
		return pathError(op, path, fs.ErrInvalid)
	}
	return pathError(op, path, f.client.replay(ctx, method, params, result))
}

func pathError(op, path string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: path, Err: err}
}

func (f *FS) path(path string) *protocol.PathParams {
	return &protocol.PathParams{Path: protocol.NewPathURI(path), Sandbox: f.sandbox}
}

// ReadFile returns the content of a file. A file above 32 MiB is read in blocks, and so is a file
// for which the server has no memory as a whole.
func (f *FS) ReadFile(ctx context.Context, path string) ([]byte, error) {
	info, err := f.Stat(ctx, path)
	if err != nil {
		return nil, err
	}
	if info.Size > maxWhole {
		return f.readBlocks(ctx, path)
	}
	var r protocol.ReadFileResult
	err = f.ask(ctx, "read", path, protocol.MethodFSReadFile, f.path(path), &r)
	if isShortOfMemory(err) {
		return f.readBlocks(ctx, path)
	}
	return r.Data, err
}

// WriteFile creates or replaces a file. Data above 32 MiB is written in blocks,
// so an error may leave a part of it.
func (f *FS) WriteFile(ctx context.Context, path string, data []byte) error {
	if len(data) > maxWhole {
		return f.writeBlocks(ctx, path, data)
	}
	if data == nil {
		data = []byte{} // nil would be null
	}
	params := &protocol.WriteFileParams{Path: protocol.NewPathURI(path), Data: data, Sandbox: f.sandbox}
	return f.change(ctx, "write", path, protocol.MethodFSWriteFile, params)
}

// Stat describes a file; for a link, its target.
func (f *FS) Stat(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	return f.metadata(ctx, "stat", path, f.path(path))
}

// StatWithoutLinks describes a file. A link in the path is an error, also one that leads nowhere.
func (f *FS) StatWithoutLinks(ctx context.Context, path string) (*protocol.FileMetadata, error) {
	params := f.path(path)
	params.FollowSymlinks = new(false)
	return f.metadata(ctx, "stat", path, params)
}

// metadata asks for the description of a file. op is the word of its error.
func (f *FS) metadata(ctx context.Context, op, path string, params any) (*protocol.FileMetadata, error) {
	r := new(protocol.FileMetadata)
	if err := f.ask(ctx, op, path, protocol.MethodFSGetMetadata, params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Canonicalize resolves all links of a path that exists.
func (f *FS) Canonicalize(ctx context.Context, path string) (string, error) {
	return f.canonicalize(ctx, path, &protocol.CanonicalizeParams{Path: protocol.NewPathURI(path), Sandbox: f.sandbox})
}

func (f *FS) canonicalize(ctx context.Context, path string, params *protocol.CanonicalizeParams) (string, error) {
	var r protocol.CanonicalizeResult
	if err := f.ask(ctx, "canonicalize", path, protocol.MethodFSCanonicalize, params, &r); err != nil {
		return "", err
	}
	real, err := r.Path.Native()
	return real, pathError("canonicalize", path, err)
}

// ReadDir lists a directory, in the order that the server's system gives. A link
// is described by its target, and left out if it has none.
func (f *FS) ReadDir(ctx context.Context, path string) ([]protocol.DirectoryEntry, error) {
	var r protocol.ReadDirectoryResult
	err := f.ask(ctx, "readdir", path, protocol.MethodFSReadDirectory, f.path(path), &r)
	return r.Entries, err
}

// Walk lists a tree, breadth first (rpc.md 5.4).
func (f *FS) Walk(ctx context.Context, path string, options protocol.WalkOptions) (*protocol.WalkResult, error) {
	r := new(protocol.WalkResult)
	params := &protocol.WalkParams{Path: protocol.NewPathURI(path), Options: options, Sandbox: f.sandbox}
	if err := f.ask(ctx, "walk", path, protocol.MethodFSWalk, params, r); err != nil {
		return nil, err
	}
	return r, nil
}

// Mkdir makes a directory. With parents it also makes missing parents, and an
// existing directory is no error.
func (f *FS) Mkdir(ctx context.Context, path string, parents bool) error {
	params := &protocol.CreateDirectoryParams{Path: protocol.NewPathURI(path), Recursive: &parents, Sandbox: f.sandbox}
	return f.change(ctx, "mkdir", path, protocol.MethodFSCreateDirectory, params)
}

// Remove deletes a file, a link or an empty directory.
func (f *FS) Remove(ctx context.Context, path string) error { return f.remove(ctx, path, false) }

// RemoveAll deletes a path and everything below it. A path that does not exist is no error.
func (f *FS) RemoveAll(ctx context.Context, path string) error { return f.remove(ctx, path, true) }

func (f *FS) remove(ctx context.Context, path string, all bool) error {
	params := &protocol.RemoveParams{Path: protocol.NewPathURI(path), Recursive: &all, Force: &all, Sandbox: f.sandbox}
	return f.change(ctx, "remove", path, protocol.MethodFSRemove, params)
}

// Copy copies a file, a link or a tree.
func (f *FS) Copy(ctx context.Context, source, destination string) error {
	params := &protocol.CopyParams{
		SourcePath:      protocol.NewPathURI(source),
		DestinationPath: protocol.NewPathURI(destination),
		Recursive:       true,
		Sandbox:         f.sandbox,
	}
	return f.change(ctx, "copy", source, protocol.MethodFSCopy, params)
}

// Rename moves a path within one mount; with replace also onto an existing
// path. It needs the server's fsRename.
func (f *FS) Rename(ctx context.Context, source, destination string, replace bool) error {
	err := f.client.require(ctx, "renaming files", func(c *protocol.Capabilities) bool { return c.FSRename })
	if err != nil {
		return pathError("rename", source, err)
	}
	params := &protocol.RenameParams{
		SourcePath:      protocol.NewPathURI(source),
		DestinationPath: protocol.NewPathURI(destination),
		Replace:         &replace,
		Sandbox:         f.sandbox,
	}
	return f.change(ctx, "rename", source, protocol.MethodFSRename, params)
}

// ApplyPatch changes files as a patch of the tool apply_patch says, all of them or none. Relative
// paths of the patch are below dir. With dryRun it changes nothing, and the result has a diff. The
// text of a [ServerError] is the text that a model expects. It needs the server's fsApplyPatch.
func (f *FS) ApplyPatch(ctx context.Context, dir, patch string, dryRun bool) (*protocol.ApplyPatchResult, error) {
	err := f.client.require(ctx, "applying patches", func(c *protocol.Capabilities) bool { return c.FSApplyPatch })
	if err != nil {
		return nil, pathError("patch", dir, err)
	}
	if !strings.HasPrefix(dir, "/") {
		return nil, pathError("patch", dir, fs.ErrInvalid)
	}
	params := &protocol.ApplyPatchParams{Patch: patch, Cwd: protocol.NewPathURI(dir), DryRun: dryRun, Sandbox: f.sandbox}
	var r protocol.ApplyPatchResult
	call := f.client.Call
	if dryRun {
		call = f.client.replay
	}
	if err := call(ctx, protocol.MethodFSApplyPatch, params, &r); err != nil {
		return nil, pathError("patch", dir, err)
	}
	return &r, nil
}
