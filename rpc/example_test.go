package rpc_test

import (
	"context"
	"fmt"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Two peers in one program: one serves a method, the other one calls it.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	a, b := rpc.Pipe()
	server := rpc.NewPeer(a, rpc.Config{Table: rpc.Table{
		"greet": {Handle: rpc.Handle(func(_ context.Context, p protocol.ProcessParams) (string, error) {
			return "hello " + p.ProcessID, nil
		})},
	}})
	client := rpc.NewPeer(b, rpc.Config{})
	served := make(chan error, 2)
	for _, peer := range []*rpc.Peer{server, client} {
		go func() { served <- peer.Serve(ctx) }()
	}
	var greeting string
	err := client.Call(ctx, "greet", map[string]string{"processId": "you"}, &greeting)
	fmt.Println(greeting, err)
	cancel()
	<-served
	<-served
	// Output: hello you <nil>
}
