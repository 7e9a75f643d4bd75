package transfer

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"os"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/applypatch"
)

// ReadPatch returns the patch in the file of that name, or on stdin if the name is "" or "-".
func ReadPatch(stdin io.Reader, name string) (string, error) {
	if name == "" || name == "-" {
		return applypatch.ReadPatch(stdin)
	}
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close() // it was only read
	return applypatch.ReadPatch(file)
}

// PatchHere applies a patch to the files of this process, all of them or none, and prints what has
// changed. Relative paths of the patch are below dir. With dryRun it prints a diff, and changes
// nothing.
func PatchHere(ctx context.Context, out io.Writer, dir, text string, dryRun bool) error {
	patch, err := applypatch.Parse(text)
	if err != nil {
		return err
	}
	target := &applypatch.Target{Files: fsops.Host{}}
	if target.Dir, err = program.Abs(dir); err != nil {
		return err
	}
	if dryRun {
		w := bufio.NewWriter(out)
		_, err := target.Preview(ctx, patch, w, math.MaxInt)
		return errors.Join(err, w.Flush())
	}
	changes, err := target.Whole(ctx, patch)
	if err == nil {
		_, err = io.WriteString(out, applypatch.Summary(changes))
	}
	return err
}

// Patch does what PatchHere does, with files of the agent.
func (f *Files) Patch(ctx context.Context, out io.Writer, dir, text string, dryRun bool) error {
	r, err := f.Client.FS(nil).ApplyPatch(ctx, f.at(dir), text, dryRun)
	if refused, ok := errors.AsType[*client.ServerError](err); ok {
		return errors.New(refused.Err.Message)
	}
	if err != nil {
		return err
	}
	if r.Diff != nil {
		r.Output = *r.Diff
	}
	_, err = io.WriteString(out, r.Output)
	return err
}
