package agent

import (
	"context"
	"strings"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/protocol"
)

// maxPatchError bounds the text of an error, in bytes: it can have all lines of a patch.
const maxPatchError = 64 << 10

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
	file := &fileResult{share: answers.Share{Own: c.answers, Total: c.agent.content}}
	defer file.share.Release()
	target := &applypatch.Target{
		Files: files, Dir: dir,
		Alloc: func(n int) ([]byte, error) { return file.alloc(ctx, n) },
		Free: func(b []byte) {
			buffer.Recycle(b)
			file.share.Release()
		},
	}
	r := &patchResult{share: answers.Share{Own: c.listings, Total: c.agent.content}}
	if r.ApplyPatchResult, err = applyPatch(ctx, target, &p); err == nil && r.Diff != nil {
		err = r.share.List(ctx, 2*int64(len(*r.Diff)))
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
