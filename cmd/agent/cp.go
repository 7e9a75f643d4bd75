package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
)

// cpFlags say what to copy, and where to.
type cpFlags struct {
	agentFlags
	Recursive bool `short:"r" name:"recursive" help:"Nothing: directories are always copied with all below them. For the habit of typing -r."`
	Preserve  bool `short:"p" name:"preserve" help:"Nothing: modes and times are always kept. For the habit of typing -p."`
	Force     bool `short:"f" name:"force" help:"Nothing: a file always takes the place of a file. For the habit of typing -f."`
	Archive   bool `short:"a" name:"archive" env:"AGENT_CP_ARCHIVE" help:"Keep the owners (uid and gid), which takes root where the copy is made."`
	Follow    bool `short:"L" name:"follow-link" env:"AGENT_CP_FOLLOW_LINK" help:"Copy what a link leads to that is named as a source."`
	Quiet     bool `short:"q" name:"quiet" env:"AGENT_CP_QUIET" help:"Show no progress."`

	Paths []string `arg:"" sep:"none" name:"path" help:"Sources and, last, the target."`
}

func (*cpFlags) Help() string {
	return `Copies files and directories between this machine and an agent. A path at the agent is written :PATH; a relative one is below the agent's working directory.

A directory is copied into a target that is a directory, and becomes the target if nothing is there; DIR/. stands for what is in a directory. A file takes the place of a file, or goes into a directory. Several sources need a directory. The folder of the target has to exist.

Modes, times and links are kept, owners with -a, set-ID bits never. Devices, FIFOs and sockets are left out and named, and count as not copied. What was there before stays until all of what replaces it has come and its SHA-256 is the same. A target that is itself a link is followed, as by cp; links below it are not. Nothing comes from an agent but what the sources name. A lost connection is repaired without a trace. Ctrl-C leaves no half file.

- as the source is a tar archive on standard input, for a directory; as the target it is one on standard output.

Examples:

    agent cp --url 127.0.0.1:7000 ./site :/srv/www
    agent cp --url 127.0.0.1:7000 :/var/log/app.log :report.txt .
    agent cp --url 127.0.0.1:7000 src/. :/srv/w/src
    tar c --exclude .git . | agent cp --url 127.0.0.1:7000 - :/srv/w
    agent cp --url 127.0.0.1:7000 :/etc - | tar t

Exit codes: 0 when everything was copied, 1 when something was not, 124 after --timeout, 128+n after signal n, 2 for a wrong command line.`
}

func (f *cpFlags) Check() error {
	if _, err := transfer.NewPlan(f.Paths); err != nil {
		return f.asOfScp(err)
	}
	return f.agentFlags.Check()
}

// asOfScp is the error of paths that agent cp does not take. If scp would, it says how they are
// written here.
func (f *cpFlags) asOfScp(err error) error {
	known := f.Contexts()
	context, paths := transfer.SCPPaths(f.Paths, func(name, there string) bool {
		return slices.Contains(known, name) || target.ValidContextName(name) && path.IsAbs(there)
	})
	if _, wrong := transfer.NewPlan(paths); context == "" || wrong != nil {
		return err
	}
	if f.URL == "" && f.Registry == "" && f.Context == nil {
		paths = append([]string{"--context", context}, paths...)
	}
	return fmt.Errorf("a path at the agent is written :PATH, as in: agent cp %s", strings.Join(paths, " "))
}

func (f *cpFlags) run(sys program.System) int {
	plan, err := transfer.NewPlan(f.Paths)
	if err != nil {
		return sys.Fail(err) // Check has seen it
	}
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		dir, err := workingDir(ctx, c)
		if err != nil {
			return 0, err
		}
		copying := &transfer.Copy{
			Plan: *plan, Client: c, Dir: dir, System: sys, Follow: f.Follow, Owners: f.Archive, Quiet: f.Quiet,
		}
		err = copying.Run(ctx)
		if errors.Is(err, transfer.ErrTold) {
			return program.ExitFailure, nil
		}
		return program.ExitOK, err
	})
}
