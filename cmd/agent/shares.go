package main

import (
	"runtime/debug"
	"slices"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/relay"
)

// limitGoMemory sets the memory limit of the garbage collector to three quarters of the
// memory of the control group or of the machine. The last quarter is for the commands.
// It does nothing if GOMEMLIMIT is set.
func limitGoMemory(environ []string) {
	if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") }) {
		debug.SetMemoryLimit(linux.MemoryLimit() / 4 * 3)
	}
}

// memoryShares bound the memory that an agent uses for clients, in bytes.
type memoryShares struct {
	messages int64 // see rpc.NewBudget
	content  int64 // see agent.Config.ContentBytes
	output   int64 // see agent.Config.RetainTotalBytes
	streams  int64 // for each of a link's two reserves: see relay.LinkConfig.ReserveBytes
	sockets  int64 // see agent.Config.SocketBytes
	proxies  int64 // see netproxy.Memory
}

const (
	// ownMemory is for the program itself and for one message of up to 64 MiB, because rpc.Budget
	// lets one message exceed its limit. While the buffer of that message grows, there are two
	// copies of it.
	ownMemory = 96 << 20
	// maxMessages bounds the memory of the large messages of all connections.
	maxMessages = 128 << 20
	// least is the minimum of each part. For streams and sockets, the minimum is a quarter of
	// least, because each stream has another 256 KiB, and each socket another 8 KiB. For proxies
	// it is three quarters, which is 64 connections.
	least = 4 << 20
)

// planShares divides the memory below the limit of the garbage collector.
func planShares() memoryShares { return divide(debug.SetMemoryLimit(-1)) }

// divide divides limit bytes. No part gets more than its usual bound.
func divide(limit int64) memoryShares {
	spare := max(limit-ownMemory, 0)
	return memoryShares{
		messages: min(max(spare/8, least), maxMessages),
		content:  min(max(spare/32*11, least), agent.DefaultContentBytes),
		output:   min(max(spare/32*6, least), agent.DefaultRetainTotalBytes),
		streams:  min(max(spare/16, least/4), relay.DefaultReserveBytes),
		sockets:  min(max(spare/32, least/4), sockets.DefaultBudget),
		proxies:  min(max(spare/32*3, least/4*3), netproxy.DefaultMemory),
	}
}
