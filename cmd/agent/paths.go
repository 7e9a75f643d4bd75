package main

import (
	"context"
	"errors"
	"path"
	"slices"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/protocol"
)

// validPaths refuses empty paths, and contradicting flags.
func (f *agentFlags) validPaths(paths []string) error {
	if slices.Contains(paths, "") {
		return errors.New("a path is empty")
	}
	return f.Check()
}

// onFiles calls do with the files of the agent, see [agentFlags.on].
func (f *agentFlags) onFiles(sys program.System, do func(context.Context, *transfer.Files) error) int {
	return f.on(sys, program.ExitFailure, func(ctx context.Context, c *client.Client) (int, error) {
		dir, err := workingDir(ctx, c)
		if err != nil {
			return 0, err
		}
		err = do(ctx, &transfer.Files{Client: c, Dir: dir})
		if failures, ok := errors.AsType[transfer.Failures](err); ok {
			for _, failure := range failures {
				program.Complain(sys.Stderr, failure)
			}
			return program.ExitFailure, nil
		}
		return program.ExitOK, err
	})
}

// workingDir returns the directory of an agent at which relative paths start.
func workingDir(ctx context.Context, c *client.Client) (string, error) {
	info, err := c.Info(ctx)
	if err != nil {
		return "", err
	}
	return below(info, "")
}

// below returns the absolute path of name at an agent. A relative path starts at the agent's
// working directory, or at the home of its user if the agent does not report its directory.
func below(info *protocol.EnvironmentInfo, name string) (string, error) {
	if path.IsAbs(name) {
		return path.Clean(name), nil
	}
	base := info.Cwd
	if base.IsZero() {
		base = info.UserHomeDir
	}
	if base.IsZero() {
		return "", errors.New("the agent does not report its working directory: use an absolute path")
	}
	native, err := base.Native()
	if err != nil {
		return "", err
	}
	return path.Join(native, name), nil
}
