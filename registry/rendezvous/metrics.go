package rendezvous

import (
	"maps"
	"sync"
	"sync/atomic"
)

// Metrics count what a rendezvous does since it started. No value has an id or a
// secret in it. The zero value is ready.
type Metrics struct {
	Executors atomic.Int64 // open websockets
	Harnesses atomic.Int64
	Streams   atomic.Int64 // routes of streams

	Frames    atomic.Uint64 // relayed by this server, in both directions
	Bytes     atomic.Uint64
	HopFrames atomic.Uint64 // of them from or to another process, through NATS
	HopBytes  atomic.Uint64
	Resets    atomic.Uint64 // sent by the rendezvous itself
	Dropped   atomic.Uint64 // frames that had nowhere to go

	mu       sync.Mutex
	rejected map[string]uint64 // upgrades by reason: one of the reject constants
}

// Refused counts an upgrade that was refused with a reject reason.
func (m *Metrics) Refused(reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.rejected == nil {
		m.rejected = make(map[string]uint64)
	}
	m.rejected[reason]++
}

// Rejected returns how many upgrades were refused, by reason.
func (m *Metrics) Rejected() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.rejected)
}
