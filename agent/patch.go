package agent

import (
	"context"
	"strings"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
)

// Limits of fs/applyPatch (rpc.md 8.5).
const (
	maxPatch     = 16 << 20 // bytes of a patch
	maxPatched   = 1024     // files that it names, counted at each mention
	maxPatchDiff = 16 << 20 // bytes of the diff of a dry run

	// maxPatchError bounds the text of an error, in bytes, because it can have all lines of a
	// patch.
	maxPatchError = 64 << 10
)

// patchKinds are the words of the wire.
var patchKinds = [...]string{
	applypatch.Add: protocol.PatchAdded, applypatch.Update: protocol.PatchUpdated, applypatch.Delete: protocol.PatchDeleted,
}

// patchResult gives back its share of memory when it has been sent.
type patchResult struct {
	protocol.ApplyPatchResult
	share answers.Share
}

func (r *patchResult) Sent() { r.share.Release() }

func (c *connection) applyPatch(ctx context.Context, p protocol.ApplyPatchParams) (*patchResult, error) {
	files, dir, err := c.file(ctx, p.Cwd, p.Sandbox)
	if err != nil {
		return nil, err
	}
	// One file is in memory at a time.
	file := &fileResult{share: c.share(c.answers)}
	defer file.share.Release()
	target := &applypatch.Target{
		Files: files, Dir: dir,
		Alloc: func(n int) ([]byte, error) { return file.alloc(ctx, n) },
		Free: func(b []byte) {
			buffer.Recycle(b)
			file.share.Release()
		},
	}
	r := &patchResult{share: c.share(c.listings)}
	if r.ApplyPatchResult, err = patchFiles(ctx, target, &p); err == nil && r.Diff != nil {
		err = r.share.List(ctx, 2*int64(len(*r.Diff)))
	}
	if err != nil {
		return nil, cut(err)
	}
	return r, nil
}

// patchFiles applies the patch to files of the target, within the limits above. Errors come from
// package applypatch or are protocol errors.
func patchFiles(ctx context.Context, target *applypatch.Target, p *protocol.ApplyPatchParams) (r protocol.ApplyPatchResult, err error) {
	if len(p.Patch) > maxPatch {
		return r, protocol.InvalidParams("patch of %d bytes is longer than %d", len(p.Patch), maxPatch)
	}
	patch, err := applypatch.Parse(p.Patch)
	if err != nil {
		return r, err
	}
	if n := patch.Files(); n > maxPatched {
		return r, protocol.InvalidParams("patch names %d files, more than %d", n, maxPatched)
	}
	var changes []applypatch.Change
	if p.DryRun {
		var diff strings.Builder
		changes, err = target.Preview(ctx, patch, &diff, maxPatchDiff)
		r.Diff = new(diff.String())
	} else {
		changes, err = target.Whole(ctx, patch)
	}
	if err != nil {
		return protocol.ApplyPatchResult{}, err
	}
	r.Output = applypatch.Summary(changes)
	r.Changes = make([]protocol.PatchedFile, len(changes))
	for i, change := range changes {
		r.Changes[i] = protocol.PatchedFile{Kind: patchKinds[change.Kind], Path: protocol.NewPathURI(change.Name)}
		if change.From != "" {
			r.Changes[i].From = new(protocol.NewPathURI(change.From))
		}
	}
	return r, nil
}

// cut returns err with its text cut to the limit.
func cut(err error) error {
	e := WireError(err)
	if len(e.Message) <= maxPatchError {
		return e
	}
	return caused(protocol.Errorf(e.Code, "%s...", strings.ToValidUTF8(e.Message[:maxPatchError], "")), err)
}
