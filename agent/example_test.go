package agent_test

import (
	"context"
	"fmt"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/rpc"
)

// An agent serves a client in the same program. For others it serves a listener of package
// transport, with Agent.Serve.
func ExampleAgent() {
	a := agent.New(agent.Config{Environ: []string{"PATH=/usr/bin:/bin"}})
	defer a.Close()
	ours, theirs := rpc.Pipe()
	served := make(chan error)
	go func() { served <- a.ServeConn(context.Background(), theirs) }()

	c, err := client.Accept(context.Background(), ours, client.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := c.Run(context.Background(), client.Spec{Argv: []string{"sh", "-c", "echo hello; exit 3"}}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s%d\n", result.Stdout, result.ExitCode)
	_ = c.Close()
	fmt.Println(<-served)
	// Output:
	// hello
	// 3
	// <nil>
}
