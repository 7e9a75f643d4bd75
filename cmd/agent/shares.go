// Package shares divides the memory that an agent may have among what it holds for clients.
package main

import (
	"runtime/debug"
	"slices"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/relay"
)

// limitGoMemory sets the limit that the garbage collector keeps this process within:
// three quarters of the memory of its control group or of the machine. The last
// quarter is for the commands. If GOMEMLIMIT is set, it stays as it is.
func limitGoMemory(environ []string) {
	if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") }) {
		debug.SetMemoryLimit(linux.MemoryLimit() / 4 * 3)
	}
}

// memoryShares says what may be held for clients, in bytes.
type memoryShares struct {
	Messages int64 // see rpc.NewBudget
	Content  int64 // see agent.Config.ContentBytes
	Output   int64 // see agent.Config.RetainTotalBytes
	Streams  int64 // of each of a link's two reserves: see relay.LinkConfig.ReserveBytes
	Sockets  int64 // see agent.Config.SocketBytes
}

const (
	// ownMemory is for the program itself and for one message of up to 64 MiB:
	// rpc.Budget lets one message exceed its limit, and while the buffer of that
	// message grows there are two copies.
	ownMemory = 96 << 20
	// maxMessages bounds what the large messages of all connections may take.
	maxMessages = 128 << 20
	// least is what each part gets on a machine with next to no memory. A reserve
	// of the streams gets a quarter of that: each stream has 256 KiB besides. So do sockets: each
	// has 8 KiB besides.
	least = 4 << 20
)

// planShares divides the memory below the limit of the garbage collector.
func planShares() memoryShares { return divide(debug.SetMemoryLimit(-1)) }

// divide divides limit bytes. Where there is plenty, each part gets its usual
// bound and not more.
func divide(limit int64) memoryShares {
	spare := max(limit-ownMemory, 0)
	return memoryShares{
		Messages: min(max(spare/8, least), maxMessages),
		Content:  min(max(spare/8*3, least), agent.DefaultContentBytes),
		Output:   min(max(spare/4, least), agent.DefaultRetainTotalBytes),
		Streams:  min(max(spare/16, least/4), relay.DefaultReserveBytes),
		Sockets:  min(max(spare/32, least/4), sockets.DefaultBudget),
	}
}
