package agent

import (
	"context"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
)

// links translates a request's choice about symbolic links in its path.
func links(follow *bool) fsops.Links {
	if follow != nil && !*follow {
		return fsops.RefuseLinks
	}
	return fsops.FollowLinks
}

// file returns the file system that a request works on, and the path that the
// request names there.
func (c *connection) file(ctx context.Context, p protocol.PathURI, s *protocol.Sandbox) (fsops.FS, string, error) {
	files, err := c.agent.filesUnder(ctx, s, &c.policies)
	if err != nil {
		return nil, "", err
	}
	path, err := p.Native()
	return files, path, err
}

// twoFiles is like file, for a request with a source and a destination.
func (c *connection) twoFiles(ctx context.Context, src, dst protocol.PathURI, s *protocol.Sandbox) (files fsops.FS, from, to string, err error) {
	files, from, err = c.file(ctx, src, s)
	if err == nil {
		to, err = dst.Native()
	}
	return files, from, to, err
}

// fileResult gives back its buffer and its share of memory when it has been
// sent.
type fileResult struct {
	protocol.ReadFileResult
	share answers.Share
}

func (r *fileResult) Sent() {
	buffer.Recycle(r.Data)
	r.share.Release()
}

// alloc returns a buffer for n bytes of the file. It is called again if the file
// grows while it is read. Before it waits for more memory, it gives back the memory
// that r holds. Otherwise two growing files would wait for each other, and a file
// larger than half of the memory would wait for itself.
func (r *fileResult) alloc(ctx context.Context, n int) ([]byte, error) {
	r.share.Release()
	if err := r.share.Answer(ctx, int64(n)); err != nil {
		return nil, err
	}
	return buffer.Get(n), nil
}

func (c *connection) readFile(ctx context.Context, p protocol.PathParams) (*fileResult, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	r := &fileResult{share: c.share(c.answers)}
	alloc := func(n int) ([]byte, error) { return r.alloc(ctx, n) }
	if r.Data, err = fsops.ReadFile(ctx, files, path, links(p.FollowSymlinks), alloc); err != nil {
		r.Sent()
		return nil, err
	}
	return r, nil
}

func (c *connection) writeFile(ctx context.Context, p protocol.WriteFileParams) (protocol.Empty, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err == nil && p.DataError != nil {
		err = protocol.InvalidRequest("dataBase64: %v", p.DataError)
	}
	if err == nil {
		o := fsops.WriteOptions{Links: links(p.FollowSymlinks), Mode: p.Mode, Parents: p.Parents, Exclusive: p.Exclusive, Atomic: p.Atomic}
		err = fsops.WriteFile(ctx, files, path, p.Data, o)
	}
	return protocol.Empty{}, err
}

func (c *connection) createDirectory(ctx context.Context, p protocol.CreateDirectoryParams) (protocol.Empty, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err == nil {
		err = files.CreateDirectory(ctx, path, *p.Recursive, links(p.FollowSymlinks))
	}
	return protocol.Empty{}, err
}

func (c *connection) canonicalize(ctx context.Context, p protocol.CanonicalizeParams) (*protocol.CanonicalizeResult, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	path, err = files.Canonicalize(ctx, path, p.AllowMissing)
	return &protocol.CanonicalizeResult{Path: protocol.NewPathURI(path)}, err
}

// directoryResult gives back its share of memory when it has been sent.
type directoryResult struct {
	protocol.ReadDirectoryResult
	share answers.Share
}

func (r *directoryResult) Sent() { r.share.Release() }

func (c *connection) readDirectory(ctx context.Context, p protocol.ReadDirectoryParams) (*directoryResult, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	details := p.Entries == protocol.Lstat
	entries, err := files.ReadDirectory(ctx, path, details)
	if err != nil {
		return nil, err
	}
	var cost int64
	for _, e := range entries {
		cost += answers.ListedCost(len(e.Name))
		if details {
			cost += detailCost
		}
	}
	r := &directoryResult{share: c.share(c.listings)}
	if err := r.share.List(ctx, cost); err != nil {
		return nil, err
	}
	r.Entries = make([]protocol.DirectoryEntry, len(entries))
	for i, e := range entries {
		r.Entries[i] = protocol.DirectoryEntry{FileName: e.Name, IsDirectory: e.IsDirectory, IsFile: e.IsFile}
		if details {
			r.Entries[i].Type = typeWords[e.Type]
			if e.Known {
				r.Entries[i].Size, r.Entries[i].ModifiedAtMs, r.Entries[i].Mode = new(e.Size), new(e.ModifiedAtMs), new(uint32(e.Mode))
			}
		}
	}
	return r, nil
}

func (c *connection) remove(ctx context.Context, p protocol.RemoveParams) (protocol.Empty, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err == nil {
		err = files.Remove(ctx, path, *p.Recursive, *p.Force, links(p.FollowSymlinks))
	}
	return protocol.Empty{}, err
}

func (c *connection) copy(ctx context.Context, p protocol.CopyParams) (protocol.Empty, error) {
	files, src, dst, err := c.twoFiles(ctx, p.SourcePath, p.DestinationPath, p.Sandbox)
	if err == nil {
		err = files.Copy(ctx, src, dst, p.Recursive)
	}
	return protocol.Empty{}, err
}

func (c *connection) rename(ctx context.Context, p protocol.RenameParams) (protocol.Empty, error) {
	files, src, dst, err := c.twoFiles(ctx, p.SourcePath, p.DestinationPath, p.Sandbox)
	if err == nil {
		err = files.Rename(ctx, src, dst, *p.Replace)
	}
	return protocol.Empty{}, err
}

func (c *connection) open(ctx context.Context, p protocol.OpenParams) (*protocol.HandleParams, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	mode, open := fsops.ModeRead, func() (int, error) { return files.OpenRead(ctx, path, fsops.FollowLinks) }
	if p.Mode == protocol.OpenReplace {
		mode, open = fsops.ModeReplace, func() (int, error) { return files.OpenWrite(ctx, path, fsops.Writing{}) }
	}
	if err := share.Descriptors().Take(c.owner, 1); err != nil {
		return nil, err
	}
	c.mu.Lock()
	c.files, c.opening = c.files+1, c.opening+1
	c.mu.Unlock()
	err = c.handles.Open(p.HandleID, mode, open)
	c.mu.Lock()
	c.opening--
	c.mu.Unlock()
	return &protocol.HandleParams{HandleID: p.HandleID}, err
}

// releaseHandles gives back the descriptors of handles that are closed.
func (c *connection) releaseHandles() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if over := c.files - c.opening - int64(c.handles.Len()); over > 0 {
		c.files -= over
		share.Descriptors().Give(c.owner, over)
	}
}

// blockResult gives back its buffer and its share of memory when it has been
// sent.
type blockResult struct {
	protocol.ReadBlockResult
	share answers.Share
}

func (r *blockResult) Sent() {
	buffer.Recycle(r.Chunk)
	r.share.Release()
}

func (c *connection) readBlock(ctx context.Context, p protocol.ReadBlockParams) (*blockResult, error) {
	r := &blockResult{share: c.share(c.answers)}
	// This may wait, so it comes before ReadBlock: a waiting call with the
	// handle would delay the closing of the handle.
	if err := r.share.Answer(ctx, int64(min(p.Len, fsops.MaxBlockLength))); err != nil {
		return nil, err
	}
	var err error
	if r.Chunk, r.EOF, err = c.handles.ReadBlock(p.HandleID, p.Offset, p.Len, room); err != nil {
		r.Sent()
		return nil, err
	}
	return r, nil
}

func room(n int) ([]byte, error) { return buffer.Get(n), nil }

func (c *connection) writeBlock(_ context.Context, p protocol.WriteBlockParams) (protocol.Empty, error) {
	return protocol.Empty{}, c.handles.WriteBlock(p.HandleID, p.Offset, p.Chunk)
}

func (c *connection) closeHandle(_ context.Context, p protocol.HandleParams) (protocol.Empty, error) {
	return protocol.Empty{}, c.handles.Close(p.HandleID)
}

// walkResult gives back its share of memory when it has been sent.
type walkResult struct {
	protocol.WalkResult
	share answers.Share
}

func (r *walkResult) Sent() { r.share.Release() }

func (c *connection) walk(ctx context.Context, p protocol.WalkParams) (*walkResult, error) {
	files, path, err := c.file(ctx, p.Path, p.Sandbox)
	if err != nil {
		return nil, err
	}
	found, err := files.Walk(ctx, path, fsops.WalkOptions{
		MaxDepth:             p.Options.MaxDepth,
		MaxDirectories:       p.Options.MaxDirectories,
		MaxEntries:           p.Options.MaxEntries,
		FollowDirectoryLinks: p.Options.FollowDirectorySymlinks,
		PruneHidden:          p.Options.PruneHiddenDirectories,
		Size:                 func(path string, err error) int { return walkCost(p.Path.Below(path), err) },
	})
	if err != nil {
		return nil, err
	}
	var cost int64
	for _, e := range found.Entries {
		cost += answers.ListedCost(len(e.Path))
	}
	for _, e := range found.Errors {
		cost += answers.ListedCost(len(e.Path))
	}
	r := &walkResult{share: c.share(c.listings)}
	if err := r.share.List(ctx, cost); err != nil {
		return nil, err
	}
	r.Root, r.Truncated = p.Path, found.Truncated
	r.Entries = make([]protocol.WalkEntry, len(found.Entries))
	for i, e := range found.Entries {
		r.Entries[i] = protocol.WalkEntry{Path: e.Path, Directory: e.IsDirectory}
	}
	for _, e := range found.Errors {
		r.Errors = append(r.Errors, protocol.WalkError{Path: e.Path, Message: errorText(e.Err)})
	}
	return r, nil
}

// walkCost is what one entry or error counts against the limit of the answer to
// a walk (rpc.md 5.4).
func walkCost(path protocol.PathURI, err error) int {
	n := len(path.String()) + 64
	if err != nil {
		n += len(errorText(err))
	}
	return n
}
