package main

import (
	"github.com/execagent/execagent/cmd/internal/program"
)

// completionFlags name the shell of the script.
type completionFlags struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionFlags) Help() string {
	return `Examples:

    source <(agent completion bash)
    agent completion zsh > "${fpath[1]}/_agent"
    agent completion fish > ~/.config/fish/completions/agent.fish`
}

// run prints the completion script for a shell.
func (f *completionFlags) run(sys program.System) int {
	_, err := sys.Stdout.Write(commands.Completion(f.Shell))
	return sys.Exit(err)
}
