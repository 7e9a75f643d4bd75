// Package asked answers the questions that a server asks its client: about the network of
// processes, and about commands.
package asked

import (
	"context"
	"sync"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Network answers questions about the network of a client's processes, if they were started with a
// NetworkProxy (network.md 4). Its functions may be called concurrently.
type Network struct {
	// Decide decides whether a process may reach an address about which the list of its proxy
	// leaves the decision to the client. It must return when ctx ends, because the connection is
	// lost then, and the process was refused. nil refuses everything.
	Decide func(ctx context.Context, processID string, request protocol.PolicyRequest) protocol.PolicyChoice
	// Decided is called with every decision. It is called in the goroutine that reads the
	// connection, so it must return at once. Decisions that the server kept while the connection
	// was lost come late. Decisions that the server had to drop never come. It may be nil.
	Decided func(protocol.PolicyDecision)
}

// refusedByClient is the reason that a client without Decide gives.
const refusedByClient = "this client decides nothing"

func (n *Network) decide(ctx context.Context, p protocol.PolicyRequestParams) (*protocol.PolicyAnswer, error) {
	if n.Decide == nil {
		return &protocol.PolicyAnswer{Decision: protocol.PolicyChoice{Type: protocol.PolicyDeny, Reason: new(refusedByClient)}}, nil
	}
	// A user may take long to answer, and other requests on the same connection must go on.
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	choice := n.Decide(ctx, p.ProcessID, p.Request)
	if choice.Type != protocol.PolicyAllow && choice.Reason == nil {
		choice.Reason = new("") // the protocol requires a reason
	}
	return &protocol.PolicyAnswer{Decision: choice}, nil
}

// Approvals answers questions about commands for which a policy requires the client's approval
// (execpolicy.md 8.4). It is the policy of the server's operator, or that of
// [protocol.StartParams]. The functions may be called concurrently.
type Approvals struct {
	// Decide answers a question. It must return when ctx ends, because the question is closed or
	// the connection is lost. After a lost connection, the same question may come again, with its
	// ApprovalID. If Decide is nil, the server is told that this client answers no questions, and
	// refuses the commands about which it would ask.
	Decide func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer
	// Decided is called with decisions. It is called in the goroutine that reads the connection, so
	// it must return at once. It may be nil.
	Decided func(protocol.ExecDecision)
}

// Questions are the questions of one connection.
type Questions struct {
	Network   *Network
	Approvals *Approvals

	mu   sync.Mutex
	open map[string]context.CancelFunc // open questions about commands, by id
}

// Table returns the methods that the server calls at the client.
func (a *Questions) Table() rpc.Table {
	return rpc.Table{
		protocol.MethodNetworkPolicyRequest: {Handle: rpc.Handle(a.Network.decide)},
		protocol.MethodExecApproval:         {Handle: rpc.Handle(a.decide)},
	}
}

func (a *Questions) decide(ctx context.Context, q protocol.ExecApprovalParams) (*protocol.ExecApprovalAnswer, error) {
	if a.Approvals.Decide == nil {
		return &protocol.ExecApprovalAnswer{Decision: protocol.ApprovalDecline}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a.mu.Lock()
	if a.open == nil {
		a.open = map[string]context.CancelFunc{}
	}
	a.open[q.ApprovalID] = cancel
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.open, q.ApprovalID)
		a.mu.Unlock()
	}()
	// A user may take long to answer, and other requests on the same connection must go on.
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	answer := a.Approvals.Decide(ctx, q)
	return &answer, nil
}

// Closed ends the context of a question that needs no answer any more.
func (a *Questions) Closed(c *protocol.ExecApprovalClosed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.open[c.ApprovalID]; cancel != nil {
		cancel()
	}
}
