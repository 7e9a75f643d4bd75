package client

import (
	"context"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Network says what a client does about the network of its processes: of those that are started
// with a NetworkProxy (network.md 4). The functions may be called at once.
type Network struct {
	// Decide says whether a process may reach what the list of its proxy leaves to the
	// client. It returns when ctx ends: the connection is lost, and the process refused. nil
	// refuses.
	Decide func(ctx context.Context, processID string, request protocol.PolicyRequest) protocol.PolicyChoice
	// Decided hears of every verdict. It is called in the goroutine that reads, so it has to
	// return at once. What the server has kept while the connection was lost comes late, and
	// what it had to drop never. nil: nobody hears.
	Decided func(protocol.PolicyDecision)
}

// refusedByClient is the reason of a client that has nobody to decide.
const refusedByClient = "this client decides nothing"

// table has what the server asks of a client.
func (n *Network) table() rpc.Table {
	return rpc.Table{protocol.MethodNetworkPolicyRequest: {Handle: rpc.Handle(n.decide)}}
}

func (n *Network) decide(ctx context.Context, p protocol.PolicyRequestParams) (*protocol.PolicyAnswer, error) {
	if n.Decide == nil {
		return &protocol.PolicyAnswer{Decision: protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(refusedByClient)}}, nil
	}
	// A user may take long to answer, while others of the same connection go on.
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	choice := n.Decide(ctx, p.ProcessID, p.Request)
	if choice.Type != protocol.PolicyAllow && choice.Reason == nil {
		choice.Reason = new("") // the wire wants one
	}
	return &protocol.PolicyAnswer{Decision: choice}, nil
}
