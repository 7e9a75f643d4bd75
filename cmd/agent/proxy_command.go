package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/cmd/agent/internal/forwarding"
	"github.com/execagent/execagent/cmd/internal/program"
)

// proxyCommandFlags name the address to connect to.
type proxyCommandFlags struct {
	agentFlags

	Address []string `arg:"" name:"address" help:"HOST PORT or HOST:PORT, or /PATH of a UNIX socket."`
}

func (*proxyCommandFlags) Help() string {
	return `Connects standard input and output to a port or a socket that the agent's host can reach, until the other end closes the connection. The connection survives a lost connection to the agent. ssh, and programs that use ssh (scp, sftp, rsync, git), can use this as ProxyCommand, also in ~/.ssh/config:

    Host build-1
        ProxyCommand agent proxy-command --registry https://registry.example.com --environment-id build-1 localhost %p

Examples:

    ssh -o ProxyCommand='agent proxy-command --url ws://127.0.0.1:7000 localhost %p' user@there
    agent proxy-command --url ws://127.0.0.1:7000 /run/app.sock

Exit codes: 0 when the other end has closed the connection, 1 when it cannot be made or is lost, or after --timeout, 2 for a wrong command line.`
}

// Check finds flags that contradict each other, and invalid addresses. The parser calls it.
func (f *proxyCommandFlags) Check() error {
	if len(f.Address) == 0 {
		return nil // the parser reports the missing address
	}
	if _, err := f.remote(); err != nil {
		return err
	}
	return f.agentFlags.Check()
}

func (f *proxyCommandFlags) remote() (string, error) {
	text := f.Address[0]
	switch {
	case len(f.Address) == 2 && strings.Contains(text, ":"): // IPv6
		text = fmt.Sprintf("[%s]:%s", strings.Trim(text, "[]"), f.Address[1])
	case len(f.Address) == 2:
		text += ":" + f.Address[1]
	case len(f.Address) == 1 && strings.Contains(text, ":"): // as with ssh -W
	case len(f.Address) > 2 || !strings.HasPrefix(text, "/"):
		return "", errors.New("want HOST PORT, or the path of a UNIX socket")
	}
	remote, err := forwarding.Remote(text)
	if err != nil {
		return "", fmt.Errorf("%q: %w", strings.Join(f.Address, " "), err)
	}
	return remote, nil
}

// run passes bytes on until the other end has closed its side.
func (f *proxyCommandFlags) run(sys program.System) int {
	return f.serve(sys, nil, func(ctx context.Context, c *client.Client) error {
		remote, err := f.remote()
		if err != nil {
			return err
		}
		return forwarding.Standard(ctx, c, remote, sys.Stdin, sys.Stdout)
	})
}
