package main

import (
	"context"
	"errors"
	"slices"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/policy"
	"github.com/execagent/execagent/cmd/agent/internal/transfer"
	"github.com/execagent/execagent/cmd/internal/program"
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
	return policy.Below(info, "")
}
