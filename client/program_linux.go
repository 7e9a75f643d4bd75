package client

import (
	"context"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// Command returns how to start a server and speak to it by its standard input and
// output, such as an agent with --listen stdio, here or behind ssh. The program ends
// with the client, and the client with the program.
func Command(argv ...string) Config { return Program(transport.CommandConfig{Argv: argv}) }

// Program is Command for a program with an environment or a directory of its own, or
// whose standard error is of interest.
func Program(program transport.CommandConfig) Config {
	return Config{
		Single: true,
		Final:  func(error) bool { return true },
		Dial: func(context.Context) (rpc.Conn, error) {
			conn, err := transport.StartCommand(program)
			if err != nil {
				return nil, err // not conn, as above
			}
			return conn, nil
		},
	}
}
