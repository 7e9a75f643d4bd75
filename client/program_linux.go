package client

import (
	"context"

	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// Command returns the Config that starts a server and speaks to it over its standard
// input and output, such as an agent with --listen stdio, here or behind ssh. The
// program ends with the client, and the client with the program.
func Command(argv ...string) Config { return Program(transport.CommandConfig{Argv: argv}) }

// Program is Command for a program with its own environment or directory, or with a
// use for its standard error.
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
