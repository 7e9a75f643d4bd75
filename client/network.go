package client

import "github.com/execagent/execagent/client/internal/asked"

// Network says what a client does about the network of its processes (docs/client.md):
//
//	Decide  func(ctx context.Context, processID string, request protocol.PolicyRequest) protocol.PolicyChoice
//	Decided func(protocol.PolicyDecision)
type Network = asked.Network

// Approvals says what a client does about commands that a policy wants it to be asked about
// (docs/client.md):
//
//	Decide  func(ctx context.Context, q protocol.ExecApprovalParams) protocol.ExecApprovalAnswer
//	Decided func(protocol.ExecDecision)
type Approvals = asked.Approvals
