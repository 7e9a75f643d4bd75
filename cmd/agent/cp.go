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

// cpFlags say what to copy, and to which place.
type cpFlags struct {
	agentFlags
	Recursive bool `short:"r" name:"recursive" help:"Accepted, but not needed: directories are always copied with everything below them."`
	Preserve  bool `short:"p" name:"preserve" help:"Accepted, but not needed: modes and times are always kept."`
	Force     bool `short:"f" name:"force" help:"Accepted, but not needed: existing files are always replaced."`
	Archive   bool `short:"a" name:"archive" env:"AGENT_CP_ARCHIVE" help:"Keep the owners (uid and gid). The side that writes the copy must run as root."`
	Follow    bool `short:"L" name:"follow-link" env:"AGENT_CP_FOLLOW_LINK" help:"If a source is a link, copy the file or directory that it points to."`
	Quiet     bool `short:"q" name:"quiet" env:"AGENT_CP_QUIET" help:"Show no progress."`

	Paths []string `arg:"" bytes:"" sep:"none" name:"path" help:"The sources, and the target last."`
}

func (*cpFlags) Help() string {
	return `Copies files and directories between this machine and an agent. Write a path on the agent as :PATH. A relative one starts at the agent's working directory.

A directory is copied into the target if the target is a directory. If the target does not exist, the copy gets that name. DIR/. copies only what is in DIR. A file replaces a file, or is copied into a directory. Several sources need a directory as the target. The folder that holds the target must exist.

Modes, times and links are kept; owners are kept with -a, set-ID bits never. Holes stay holes. Devices, FIFOs and sockets are skipped and named, and count as not copied. Files that cannot be read or written are skipped and named in the same way; all others are copied. An existing file is replaced only after the new file has arrived completely and its SHA-256 matches. If a file can be written but not replaced, such as a mounted one, its content is overwritten once the new one has arrived. cp follows no link at the target or below it, because an earlier copy may have made it. A target that is a link to a file, or to nothing, is replaced; any other link is refused, and so is every link if the target ends in a slash. cp writes only files of the sources that you name, whatever the agent sends. A lost connection does not change the result. Ctrl-C leaves no partial file.

The source - is a tar archive on standard input, which is unpacked into a directory. The target - is a tar archive on standard output.

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

// asOfScp returns the error for paths that agent cp does not accept. If scp would accept them, the
// error says how to write them here.
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
	return fmt.Errorf("write a path on the agent as :PATH, as in: agent cp %s", strings.Join(paths, " "))
}

func (f *cpFlags) run(sys program.System) int {
	plan, err := transfer.NewPlan(f.Paths)
	if err != nil {
		return sys.Fail(err) // Check has found the error before
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
