package agent

import (
	"context"
	"strings"

	"github.com/execagent/execagent/agent/patching"
	"github.com/execagent/execagent/applypatch"
	"github.com/execagent/execagent/buffer"
	"github.com/execagent/execagent/protocol"
)

// maxPatchError bounds the text of an error, in bytes: it can have all lines of a patch.
const maxPatchError = 64 << 10

// patchResult gives back its share of memory when it has been sent.
type patchResult struct {
	protocol.ApplyPatchResult
	share share
}

func (r *patchResult) Sent() { r.share.release() }

func (c *connection) applyPatch(ctx context.Context, p protocol.ApplyPatchParams) (*patchResult, error) {
	files, dir, err := c.file(ctx, p.Cwd, p.Sandbox)
	if err != nil {
		return nil, err
	}
	// One file is in memory at a time.
	file := &fileResult{share: share{own: c.answers, total: c.agent.content}}
	defer file.share.release()
	target := &applypatch.Target{
		Files: files, Dir: dir,
		Alloc: func(n int) ([]byte, error) { return file.alloc(ctx, n) },
		Free: func(b []byte) {
			buffer.Recycle(b)
			file.share.release()
		},
	}
	r := &patchResult{share: share{own: c.listings, total: c.agent.content}}
	if r.ApplyPatchResult, err = patching.Apply(ctx, target, &p); err == nil && r.Diff != nil {
		err = r.share.list(ctx, 2*int64(len(*r.Diff)))
	}
	if err != nil {
		return nil, cut(err)
	}
	return r, nil
}

// cut returns err with no more than the beginning of its text.
func cut(err error) error {
	e := WireError(err)
	if len(e.Message) <= maxPatchError {
		return e
	}
	return protocol.Errorf(e.Code, "%s...", strings.ToValidUTF8(e.Message[:maxPatchError], ""))
}
