package main

import (
	"runtime/debug"
	"slices"
	"strings"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/relay"
)

// limitMemory has the garbage collector keep this process within three quarters
// of the memory of its control group or of the machine, unless GOMEMLIMIT sets
// another limit. The last quarter is for the commands. The limit is set by a call
// and not by the variable, which commands would inherit.
func limitMemory(environ []string) {
	if !slices.ContainsFunc(environ, func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") }) {
		debug.SetMemoryLimit(procs.MemoryLimit() / 4 * 3)
	}
}

// memory says what may be held for clients, in bytes.
type memory struct {
	messages int64 // see rpc.NewBudget
	content  int64 // see agent.Config.ContentBytes
	output   int64 // see agent.Config.RetainTotalBytes
	streams  int64 // of either of a link's two reserves: see relay.LinkConfig.ReserveBytes
}

const (
	// ownMemory is for the program itself, and for the one message of up to 64 MiB
	// that rpc.Budget lets go beyond its limit, with its copy while it grows.
	ownMemory = 96 << 20
	// maxMessages is for large messages of all connections together.
	maxMessages = 128 << 20
	// least is what each part gets on a machine with next to no memory. A reserve
	// of streams gets a quarter of that, since each stream has room of its own.
	least = 4 << 20
)

// planMemory divides the memory below the limit of the garbage collector. On a
// machine with plenty of it each part has its usual bound.
func planMemory() memory { return divide(debug.SetMemoryLimit(-1)) }

func divide(limit int64) memory {
	spare := max(limit-ownMemory, 0)
	return memory{
		messages: min(max(spare/8, least), maxMessages),
		content:  min(max(spare/8*3, least), agent.DefaultContentBytes),
		output:   min(max(spare/4, least), agent.DefaultRetainTotalBytes),
		streams:  min(max(spare/16, least/4), relay.DefaultReserveBytes),
	}
}
