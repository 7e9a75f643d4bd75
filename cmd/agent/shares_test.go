package main

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/test/rig"
)

// TestPlan: all parts together are no more than the limit, and where there is
// plenty each part has its usual bound.
func TestPlan(t *testing.T) {
	t.Parallel()
	for mib := int64(128); mib <= 64<<10; mib += mib / 8 {
		limit := mib << 20
		m := divide(limit)
		// rpc.NewBudget(n) may take n for large messages, n/4 for small ones, and
		// n/2 for large ones whose requests only wait. Where n/4 is less than
		// 16 MiB, small messages may take that much, and the rest comes out of
		// ownMemory.
		sum := m.messages + m.messages/4 + m.messages/2 + m.content + m.output + 2*m.streams + m.sockets + m.proxies + ownMemory
		rig.Is(t, sum <= limit, true, "of %d MiB %d are given away: %+v", mib, sum>>20, m)
		if m.messages > maxMessages || m.content > agent.DefaultContentBytes || m.output > agent.DefaultRetainTotalBytes || m.streams > relay.DefaultReserveBytes || m.sockets > sockets.DefaultBudget || m.proxies > netproxy.DefaultMemory {
			t.Errorf("%d MiB: %+v is above the usual bounds", mib, m)
		}
	}
	usual := memoryShares{maxMessages, agent.DefaultContentBytes, agent.DefaultRetainTotalBytes, relay.DefaultReserveBytes, sockets.DefaultBudget, netproxy.DefaultMemory}
	rig.Is(t, divide(math.MaxInt64), usual, "without a limit")
	m := divide(0)
	rig.Is(t, m.messages > 0 && m.content > 0 && m.output > 0 && m.streams > 0 && m.sockets > 0 && m.proxies > 0, true, "without any memory: %+v", m)
}

// TestLimit: the garbage collector gets a limit, unless GOMEMLIMIT is set. The
// test is not parallel, since the limit is that of the whole process.
func TestLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(math.MaxInt64))
	limitGoMemory([]string{"A=b", "GOMEMLIMIT=1GiB"})
	rig.Is(t, debug.SetMemoryLimit(-1), math.MaxInt64, "although GOMEMLIMIT was set")
	limitGoMemory([]string{"A=b", "XGOMEMLIMIT=1"})
	got, all := debug.SetMemoryLimit(-1), linux.MemoryLimit()
	rig.Is(t, got <= all/4*3 && got >= all/2, true, "%d of %d bytes", got, all)
}
