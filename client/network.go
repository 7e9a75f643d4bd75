package client

import "github.com/execagent/execagent/client/internal/asked"

// Network says what a client does about the network of its processes.
type Network = asked.Network

// Approvals says what a client does about commands that a policy wants it to be asked about.
type Approvals = asked.Approvals
