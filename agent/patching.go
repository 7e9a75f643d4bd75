// Package patching does what fs/applyPatch asks for, within its limits.
package agent

import (
	"context"
	"strings"

	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/protocol"
)

// Limits of fs/applyPatch (rpc.md 8.5).
const (
	maxPatch = 16 << 20 // bytes of a patch
	maxFiles = 1024     // files that it names, each as often as it does
	maxDiff  = 16 << 20 // bytes of the diff of a dry run
)

// kinds are the words of the wire.
var kinds = [...]string{
	applypatch.Add: protocol.PatchAdded, applypatch.Update: protocol.PatchUpdated, applypatch.Delete: protocol.PatchDeleted,
}

// applyPatch applies the patch to files of the target. Errors are those of package applypatch, and what
// the protocol refuses.
func applyPatch(ctx context.Context, target *applypatch.Target, p *protocol.ApplyPatchParams) (r protocol.ApplyPatchResult, err error) {
	if len(p.Patch) > maxPatch {
		return r, protocol.InvalidParams("patch of %d bytes is longer than %d", len(p.Patch), maxPatch)
	}
	patch, err := applypatch.Parse(p.Patch)
	if err != nil {
		return r, err
	}
	if n := patch.Files(); n > maxFiles {
		return r, protocol.InvalidParams("patch names %d files, more than %d", n, maxFiles)
	}
	var changes []applypatch.Change
	if p.DryRun {
		var diff strings.Builder
		changes, err = target.Preview(ctx, patch, &diff, maxDiff)
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
		r.Changes[i] = protocol.PatchedFile{Kind: kinds[change.Kind], Path: protocol.NewPathURI(change.Name)}
		if change.From != "" {
			r.Changes[i].From = new(protocol.NewPathURI(change.From))
		}
	}
	return r, nil
}
