// Package asked answers the questions that a server asks its client: about the network of
// processes, and about commands.
package asked

import (
	"context"
	"sync"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
)

// Network says what a client does about the network of its processes: of those that are started
// with a NetworkProxy (network.md 4). The functions may be called at once.
type Network struct {
	// Decide says whether a process may reach what the list of its proxy leaves to the client.
	// It returns when ctx ends: the connection is lost, and the process refused. nil refuses.
	Decide func(ctx context.Context, processID string, request protocol.PolicyRequest) protocol.PolicyChoice
	// Decided hears of every verdict. It is called in the goroutine that reads, so it has to
	// return at once. What the server has kept while the connection was lost comes late, and
	// what it had to drop never. nil: nobody hears.
	Decided func(protocol.PolicyDecision)
}

// refusedByClient is the reason of a client that has nobody to decide.
const refusedByClient = "this client decides nothing"

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

// Approvals says what a client does about commands that a policy wants it to be asked about
// (execpolicy.md 8.4): that of the server's operator, or that of [protocol.StartParams]. The
// functions may be called at once.
type Approvals struct {
	// Decide answers a question. It returns when ctx ends: the question is closed, or the
	// connection is lost; then the same question may come again, with its ApprovalID. nil: the
	// server is told that this client answers none, and refuses what it would ask about.
	Decide func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer
	// Decided hears of decisions. It is called in the goroutine that reads, so it has to return
	// at once. nil: nobody hears.
	Decided func(protocol.ExecDecision)
}

// Questions are those of one connection.
type Questions struct {
	Network   *Network
	Approvals *Approvals

	mu   sync.Mutex
	open map[string]context.CancelFunc // about commands, by id
}

// Table has what the server asks of a client.
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
	// A user may take long to answer, while others of the same connection go on.
	if err := rpc.Leave(ctx); err != nil {
		return nil, err
	}
	answer := a.Approvals.Decide(ctx, q)
	return &answer, nil
}

// Closed ends the wait for an answer that nobody needs any more.
func (a *Questions) Closed(c *protocol.ExecApprovalClosed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if cancel := a.open[c.ApprovalID]; cancel != nil {
		cancel()
	}
}
