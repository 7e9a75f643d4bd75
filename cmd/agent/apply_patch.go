package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// applyPatchFlags say which patch is applied, and where.
type applyPatchFlags struct {
	agentFlags
	DryRun bool   `short:"n" name:"dry-run" help:"Change nothing, and print what would change as a unified diff."`
	Dir    string `short:"C" env:"AGENT_DIR" placeholder:"DIR" help:"Directory that relative paths of the patch are below. Default: this one; elsewhere the agent's."`
	Local  bool   `help:"Change the files here, whatever the current context is."`

	File string `arg:"" optional:"" name:"file" help:"File with the patch. Default, and -: standard input."`
}

func (*applyPatchFlags) Help() string {
	return `Applies a patch of the form that models write for the tool apply_patch, from "*** Begin Patch" to "*** End Patch". Unlike the tool, it changes all files that the patch names or none. It changes those here, or those of the agent that is named.

As a program of its own, called apply_patch or applypatch, this one is the tool itself, with its texts and exit codes. Paths of a patch may lead anywhere: what it may change is for a sandbox to say.

Examples:

    agent apply-patch -n change.patch
    agent apply-patch < change.patch
    agent apply-patch --url 127.0.0.1:7000 -C /srv/w change.patch

Exit codes: 0, 1 when nothing was changed because something is wrong, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *applyPatchFlags) Check() error {
	if f.Local && (f.URL != "" || f.Registry != "" || f.Context != nil) {
		return errors.New("--local says where the files are: --context, --url and --registry have no meaning with it")
	}
	if f.Local {
		f.Context = new("")
	}
	if err := f.Flags.Check(); err != nil {
		return err
	}
	if !f.Elsewhere() && f.Context == nil && len(f.Contexts()) > 0 {
		return fmt.Errorf("%w; --local changes files here", f.Nowhere())
	}
	return nil
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
