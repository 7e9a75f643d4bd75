package client

import "github.com/execagent/execagent/client/internal/asked"

// Network decides about the network of a client's processes (docs/client.md):
//
//	Decide  func(ctx context.Context, processID string, request protocol.PolicyRequest) protocol.PolicyChoice
//	Decided func(protocol.PolicyDecision)
type Network = asked.Network

// Approvals decides about commands if a policy asks the client (docs/client.md):
//
//	Decide  func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer
//	Decided func(protocol.ExecDecision)
type Approvals = asked.Approvals
