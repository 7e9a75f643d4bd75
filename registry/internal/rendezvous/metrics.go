package rendezvous

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Metrics count what a rendezvous does, from its start on. No value has an id or a
// secret in it. The zero value is ready; all may be used at once.
type Metrics struct {
	Executors atomic.Int64 // open websockets
	Harnesses atomic.Int64
	Streams   atomic.Int64 // routes of streams
	Waiting   atomic.Int64 // those among them that wait for their harness

	Frames    atomic.Uint64 // read from websockets of this server
	Bytes     atomic.Uint64
	HopFrames atomic.Uint64 // sent to and received from other servers through NATS
	HopBytes  atomic.Uint64
	Resets    atomic.Uint64 // sent by the rendezvous itself
	Dropped   atomic.Uint64 // frames that had nowhere to go
	Relieved  atomic.Uint64 // streams and websockets that ended since memory was short

	mu       sync.Mutex
	rejected map[string]uint64 // upgrades by reason: a reject constant of this package or of ticket
}

// Refused counts an upgrade that was refused for a reason, the one that the answer's
// header gives.
func (m *Metrics) Refused(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rejected == nil {
		m.rejected = make(map[string]uint64)
	}
	m.rejected[reason]++
}

// Rejected returns how many upgrades were refused, by reason. The map is the caller's.
func (m *Metrics) Rejected() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rejected)
}
