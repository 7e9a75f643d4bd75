package client_test

import (
	"context"
	"fmt"
	"os"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// An agent in the same process, reached over a pipe. To reach one that
// listens, let Dial call transport.Dial.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	a := agent.New(agent.Config{Environ: os.Environ()})
	served := make(chan error)
	defer func() {
		cancel()
		<-served
		_ = a.Close()
	}()

	c, err := client.Connect(ctx, client.Config{Dial: func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		go func() { served <- a.ServeConn(ctx, theirs) }()
		return ours, nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	p, err := c.Start(ctx, protocol.StartParams{
		Argv: []string{"sh", "-c", "echo hello; exit 3"},
		Cwd:  protocol.NewPathURI("/"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	code, err := p.CopyOutput(ctx, os.Stdout, os.Stderr)
	fmt.Println(code, err)
	// Output:
	// hello
	// 3 <nil>
}
