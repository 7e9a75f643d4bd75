package main

import (
	"cmp"
	"context"
	"fmt"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// applyPatchFlags say which patch is applied, and where.
type applyPatchFlags struct {
	agentFlags
	DryRun bool   `short:"n" name:"dry-run" help:"Change no file; print the changes as a unified diff."`
	Dir    string `short:"C" bytes:"" env:"AGENT_DIR" placeholder:"DIR" help:"Directory where relative paths of the patch start. Default: the current directory; on another agent, that agent's working directory."`
	Local  bool   `help:"Change the files here, whatever the current context is."`

	File string `arg:"" bytes:"" optional:"" name:"file" help:"File with the patch. Default: standard input, which - also means."`
}

func (*applyPatchFlags) Help() string {
	return `Applies a patch in the form that models write for the tool apply_patch, from "*** Begin Patch" to "*** End Patch". Unlike the tool, it changes either all files that the patch names or none of them. It changes files here, or on the agent that the flags name.

If this program is called by the name apply_patch or applypatch, it behaves exactly like the tool, with the tool's texts and exit codes. The paths in a patch can lead anywhere. Only a sandbox limits which files a patch can change.

Examples:

    agent apply-patch -n change.patch
    agent apply-patch < change.patch
    agent apply-patch --url 127.0.0.1:7000 -C /srv/w change.patch

Exit codes: 0, 1 when nothing was changed because something is wrong, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *applyPatchFlags) Check() error {
	return f.checkHere(f.Local, "changes files here")
}

func (f *applyPatchFlags) run(sys program.System) int {
	patch, err := transfer.ReadPatch(sys.Stdin, f.File)
	if err != nil {
		return sys.Fail(fmt.Errorf("reading the patch: %w", err))
	}
	if f.Elsewhere() {
		return f.onFiles(sys, func(ctx context.Context, there *transfer.Files) error {
			return there.Patch(ctx, program.Harmless(sys.Stdout), f.Dir, patch, f.DryRun)
		})
	}
	ended, err := untilSignal(f.Timeout, func(ctx context.Context) error {
		return transfer.PatchHere(ctx, program.Harmless(sys.Stdout), f.Dir, patch, f.DryRun)
	})
	if err != nil {
		return failed(sys, cmp.Or(ended, err), program.ExitFailure)
	}
	return program.ExitOK
}
